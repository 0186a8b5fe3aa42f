"""Peer-to-peer methods by name, ready to run, and how they are compared."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import optax
from absl import flags

from experiments import common, run_folder
from experiments.runner import Program
from p2pjax.algorithms._central import central
from p2pjax.algorithms._d2 import d2_protocol
from p2pjax.algorithms._gosgd import gosgd_protocol
from p2pjax.algorithms._local_only import local_only
from p2pjax.algorithms._p2p_bn import p2p_bn
from p2pjax.algorithms._sgp import sgp_protocol
from p2pjax.asynchronous.events import Timing
from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.server import server_rounds
from p2pjax.engines.stepwise import GossipProtocol, gossip
from p2pjax.evaluation import statistics
from p2pjax.evaluation.models import consensus_distance, worst_decile
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.exchange import shared
from p2pjax.exchange.channel import drop
from p2pjax.graphs import analysis, generators, topology
from p2pjax.graphs.topology import Graphs
from p2pjax.nn.gru import NextWord
from p2pjax.tasks._next_token import next_token
from p2pjax.tasks.task import Task
from p2pjax.types import Algorithm, Array, FederatedData, InputError, Models

SHARING: dict[str, shared.Local] = {
    "full": shared.FULL,
    "fed_bn": shared.FED_BN,
    "silo_bn": shared.SILO_BN,
}
_UNITS = flags.DEFINE_integer(
    "units", 100, "Size of the embedding, the GRU and the dense layer.", lower_bound=1
)
_SHARING = flags.DEFINE_enum(
    "sharing",
    "full",
    list(SHARING),
    "What is sent: everything, all but batch norm, or all but its statistics.",
)
_CLIENTS = flags.DEFINE_integer(
    "clients", 10, "Agents that take part in a round of FedAvg.", lower_bound=1
)
_POISSON = flags.DEFINE_bool(
    "poisson", False, "Asynchronous agents wake by clocks of their own."
)
_MEAN_DELAY = flags.DEFINE_float(
    "mean_delay",
    0.0,
    "Mean delay of asynchronous messages, in units of N wake-up events.",
)
_LOSS_PROBABILITY = flags.DEFINE_float(
    "loss_probability",
    0.0,
    "Probability that an asynchronous message, or one of SGP, is lost.",
)


class Setting(NamedTuple):
    """Which method runs on which graph."""

    method: str
    num_agents: int
    ring: bool = False  # else sparse
    directed: bool = True
    rewire_every: int | None = None  # network epochs
    batch_norm: bool = True
    growing_momentum: bool = False


def graph_of(setting: Setting) -> Graphs:
    """The graph of a setting, or how to draw one."""
    size, degree = setting.num_agents, common.DEGREE.value or 3
    if setting.ring:
        return generators.ring(size, directed=setting.directed)
    draw = (
        generators.directed_regular if setting.directed else generators.random_regular
    )
    draw(size, degree, seed=0)  # refuses what is not possible
    return lambda rng: draw(size, degree, seed=rng)


def _alone(
    task: Task, optimizer: optax.GradientTransformation, setting: Setting
) -> Algorithm:
    del setting
    return local_only(
        task,
        optimizer,
        batch_size=common.BATCH_SIZE.value,
        agent_loop=common.agent_loop(task),
    )


def _pooled(
    task: Task, optimizer: optax.GradientTransformation, setting: Setting
) -> Algorithm:
    del setting
    return central(task, optimizer, batch_size=common.BATCH_SIZE.value)


def _server(
    task: Task, optimizer: optax.GradientTransformation, setting: Setting
) -> Algorithm:
    return server_rounds(
        task,
        optimizer,
        batch_size=common.BATCH_SIZE.value,
        num_clients=min(_CLIENTS.value, setting.num_agents),
        local_patterns=SHARING[_SHARING.value],
        agent_loop=common.agent_loop(task),
    )


def _stepwise(
    protocol: Callable[[], GossipProtocol],
    is_lossy: bool,
    task: Task,
    optimizer: optax.GradientTransformation,
    setting: Setting,
) -> Algorithm:
    loss = _LOSS_PROBABILITY.value if is_lossy else 0.0
    return gossip(
        task,
        optimizer,
        protocol(),
        graph_of(setting),
        batch_size=common.BATCH_SIZE.value,
        rewire_every=setting.rewire_every,
        channel=drop(loss),
        local_patterns=SHARING[_SHARING.value],
        agent_loop=common.agent_loop(task),
    )


def _push(
    fine_tuning: bool,
    task: Task,
    optimizer: optax.GradientTransformation,
    setting: Setting,
) -> Algorithm:
    if fine_tuning and not setting.batch_norm:
        raise InputError("Need batch norm for its fine-tuning: use p2p_bn_no_tuning.")
    return p2p_bn(
        task,
        optimizer,
        graph_of(setting),
        batch_size=common.BATCH_SIZE.value,
        rewire_every=setting.rewire_every,
        fine_tuning=fine_tuning,
        growing_momentum=setting.growing_momentum and setting.batch_norm,
        timing=Timing(
            poisson=_POISSON.value,
            mean_delay=_MEAN_DELAY.value,
            loss_probability=_LOSS_PROBABILITY.value,
        ),
        local_patterns=SHARING[_SHARING.value],
        agent_loop=common.agent_loop(task),
    )


METHODS: dict[
    str, Callable[[Task, optax.GradientTransformation, Setting], Algorithm]
] = {
    "local_only": _alone,
    "dpsgd": partial(_stepwise, neighbor_averaging, False),
    "d2": partial(_stepwise, d2_protocol, False),
    "sgp": partial(_stepwise, sgp_protocol, True),
    "gosgd": partial(_stepwise, gosgd_protocol, False),
    "p2p_bn_no_tuning": partial(_push, False),
    "p2p_bn": partial(_push, True),
    "fedavg": _server,
    "central": _pooled,
}


def build_program(setting: Setting, num_ids: int, window: int) -> Program:
    """The next-word network of the thesis under one of the methods."""
    if setting.method not in METHODS:
        raise InputError(
            f"Need methods among {', '.join(METHODS)}, got '{setting.method}'."
        )
    units = _UNITS.value
    module = NextWord(num_ids, units, units, units, setting.batch_norm)
    task = next_token(
        module, window, ignore_token=1, momentum=0.9 if setting.batch_norm else None
    )
    optimizer = optax.adam(common.learning_rate(5e-3), eps=1e-7)  # as Keras has it
    on_own_tests = on_test_sets(task, common.agent_loop(task))

    def evaluate(models: Models, world: FederatedData) -> dict[str, Array]:
        values = dict(on_own_tests(models, world))
        return values | {
            "worst_decile": worst_decile(values["accuracy"]),
            "consensus_distance": consensus_distance(models.reported.params),
        }

    return Program(METHODS[setting.method](task, optimizer, setting), evaluate)


def print_tops(folder: Path) -> None:
    """The best accuracy of every method, in three definitions, its cost, and a t-test.

    The test compares the runs' best with those of the method that has the best mean;
    messages are those that an agent sent until its run's best.
    """
    accuracy, messages = _curves(folder, "accuracy"), _curves(folder, "messages")
    tops = {name: statistics.top_of_runs(runs) for name, runs in accuracy.items()}
    best = max(tops, key=lambda name: float(tops[name].mean()))
    print(
        f"{'method':<32} {'mean of max':<13} {'max of mean':<13} {'stable max':<12} "
        f"{'messages':<10} p against {best}"
    )
    for name, runs in accuracy.items():
        stable = statistics.top_ua_stable_max(runs)
        until = [
            run[int(np.argmax(curve))]
            for run, curve in zip(messages[name], runs, strict=True)
        ]
        is_tested = name != best and len(runs) > 1
        print(
            f"{name:<32} {statistics.top_ua_mean_of_max(runs):<13.4f} "
            f"{statistics.top_ua_max_of_mean(runs):<13.4f} "
            f"{'none' if stable is None else f'{stable:.4f}':<12} "
            f"{np.mean(until):<10.1f} "
            f"{_p_value(tops[name], tops[best]) if is_tested else ''}"
        )


def _curves(folder: Path, metric: str) -> dict[str, list[list[float]]]:
    """Of every method in every setting: `[S, E]`."""
    curves: dict[str, list[list[float]]] = {}
    for row in run_folder.read(folder):
        name = " ".join([row["scheme"], *map(str, row["setting"].values())])
        runs = curves.setdefault(name, [])
        if row["run"] == len(runs):
            runs.append([])
        runs[row["run"]].append(row[metric])
    return curves


def _p_value(one: np.ndarray, other: np.ndarray) -> str:
    return f"{statistics.t_test(one, other)[1]:.2g}"


def print_graphs(folder: Path) -> None:
    """Who could hear whom in every method's first run: connectivity, spectral gap."""
    if not (folder / "links.jsonl").exists():
        return  # networks of more agents than links are kept of, or no peers at all
    for row in run_folder.read(folder, "links.jsonl"):
        if row["run"] == 0 and row["links"]:
            receiver, sender, _ = np.transpose(row["links"])
            graph = topology.from_edges(len(row["cluster"]), sender, receiver)
            facts = analysis.report(graph)
            print(
                f"{row['scheme']:<20} "
                f"{'' if facts['directed'] else 'un'}directed graph, "
                f"mean degree {facts['mean_degree']:.2f}, "
                f"{'' if facts['strongly_connected'] else 'not '}strongly connected, "
                f"spectral gap {facts['spectral_gap']:.3f}"
            )
