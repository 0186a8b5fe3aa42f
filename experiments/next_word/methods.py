"""Peer-to-peer methods by name, ready to run."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import optax

from experiments.engine.config import agent_loop, rate
from experiments.engine.jobs import Program
from experiments.next_word.config import SHARING, Config
from experiments.next_word.graphs import graph_of
from p2pjax.algorithms._central import central
from p2pjax.algorithms._d2 import d2_protocol
from p2pjax.algorithms._gosgd import gosgd_protocol
from p2pjax.algorithms._local_only import local_only
from p2pjax.algorithms._p2p_bn import p2p_bn
from p2pjax.algorithms._sgp import sgp_protocol
from p2pjax.asynchronous.events import Timing
from p2pjax.datasets.loaders.text import WINDOW
from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.server import server_rounds
from p2pjax.engines.stepwise import GossipProtocol, gossip
from p2pjax.evaluation.models import consensus_distance, worst_decile
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.exchange.channel import drop
from p2pjax.graphs.topology import Graphs
from p2pjax.nn.gru import NextWord
from p2pjax.tasks._next_token import next_token
from p2pjax.tasks.task import Task
from p2pjax.training import local_updates
from p2pjax.types import Algorithm, Array, FederatedData, InputError, Models

NEVER_SENDS = ("local_only", "central")
STEPWISE = ("dpsgd", "d2", "sgp", "gosgd")


class Contender(NamedTuple):
    """What is compared with others: a method, its graph and its network."""

    method: str
    num_agents: int
    graph: str = "sparse"
    directed: bool = True
    rewire_every: int | None = None  # network epochs
    batch_norm: bool = True
    growing_momentum: bool = False
    norm: str = "plain"
    local_epochs: int = 1
    local_steps: int = 1
    loss_probability: float = 0.0

    @property
    def factors(self) -> tuple[str, ...]:
        """Fields of the config with several values that mean something to it."""
        own = ("norm",) if self.batch_norm else ()
        if self.method in NEVER_SENDS:
            return own
        is_stepwise = self.method in STEPWISE
        return (
            *own,
            "loss_probability",
            f"local_{'steps' if is_stepwise else 'epochs'}",
        )


Make = Callable[
    [Config, Task, optax.GradientTransformation, Contender], Algorithm
]  # a method


def _graph_of(config: Config, contender: Contender) -> Graphs:
    return graph_of(
        contender.graph,
        contender.num_agents,
        config.degree or 3,
        directed=contender.directed,
    )


def _alone(
    config: Config,
    task: Task,
    optimizer: optax.GradientTransformation,
    contender: Contender,
) -> Algorithm:
    del contender
    return local_only(
        task,
        optimizer,
        batch_size=config.batch_size,
        agent_loop=agent_loop(config, task),
    )


def _pooled(
    config: Config,
    task: Task,
    optimizer: optax.GradientTransformation,
    contender: Contender,
) -> Algorithm:
    del contender
    return central(task, optimizer, batch_size=config.batch_size)


def _num_clients(config: Config, contender: Contender) -> int:
    if config.clients is None:
        return min(10, contender.num_agents)
    if config.clients > contender.num_agents:
        raise InputError(
            f"Need at most {contender.num_agents} clients (the number of agents), got "
            f"--clients={config.clients}: lower it, or raise --num_agents."
        )
    return config.clients


def _server(
    config: Config,
    task: Task,
    optimizer: optax.GradientTransformation,
    contender: Contender,
) -> Algorithm:
    return server_rounds(
        task,
        optimizer,
        batch_size=config.batch_size,
        num_clients=_num_clients(config, contender),
        local_updates=local_updates.epochs(contender.local_epochs),
        channel=drop(contender.loss_probability),
        local_patterns=SHARING[config.sharing],
        score_before=config.score_before,
        agent_loop=agent_loop(config, task),
    )


def _stepwise(
    protocol: Callable[[Config], GossipProtocol],
    config: Config,
    task: Task,
    optimizer: optax.GradientTransformation,
    contender: Contender,
) -> Algorithm:
    graph = _graph_of(config, contender)
    if contender.graph == "irregular" and config.score_before:
        raise InputError(
            "Need --noscore_before with --graph=irregular: exchanges that wait to be "
            "scored need graphs in which all agents have as many peers."
        )
    return gossip(
        task,
        optimizer,
        protocol(config),
        graph,
        batch_size=config.batch_size,
        local_updates=local_updates.steps(contender.local_steps),
        rewire_every=contender.rewire_every,
        channel=drop(contender.loss_probability),
        local_patterns=SHARING[config.sharing],
        score_before=config.score_before,
        agent_loop=agent_loop(config, task),
        name=contender.method,
    )


def _gosgd(config: Config) -> GossipProtocol:
    return gosgd_protocol(per_edge=config.gosgd_per_edge)


def _push(
    fine_tuning: bool,
    config: Config,
    task: Task,
    optimizer: optax.GradientTransformation,
    contender: Contender,
) -> Algorithm:
    if fine_tuning and not contender.batch_norm:
        raise InputError("Need batch norm for its fine-tuning: use p2p_bn_no_tuning.")
    return p2p_bn(
        task,
        optimizer,
        _graph_of(config, contender),
        batch_size=config.batch_size,
        local_updates=local_updates.epochs(contender.local_epochs),
        rewire_every=contender.rewire_every,
        fine_tuning=fine_tuning,
        growing_momentum=contender.growing_momentum and contender.batch_norm,
        timing=Timing(
            poisson=config.poisson,
            mean_delay=config.mean_delay,
            loss_probability=contender.loss_probability,
        ),
        local_patterns=SHARING[config.sharing],
        agent_loop=agent_loop(config, task),
    )


MAKE: dict[str, Make] = {
    "local_only": _alone,
    "dpsgd": partial(_stepwise, lambda _: neighbor_averaging()),
    "d2": partial(_stepwise, lambda _: d2_protocol()),
    "sgp": partial(_stepwise, lambda _: sgp_protocol()),
    "gosgd": partial(_stepwise, _gosgd),
    "p2p_bn_no_tuning": partial(_push, False),
    "p2p_bn": partial(_push, True),
    "fedavg": _server,
    "central": _pooled,
}


def make_task(config: Config, contender: Contender, num_ids: int) -> Task:
    """The next-word network of the thesis."""
    units = config.units
    return next_token(
        NextWord(
            num_ids,
            units,
            units,
            units,
            contender.batch_norm,
            affine=contender.norm == "affine",
        ),
        WINDOW,
        ignore_token=1,
        momentum=0.9 if contender.batch_norm else None,
    )


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Adam as Keras has it."""
    return optax.adam(rate(config, 5e-3), eps=1e-7)


def build_program(config: Config, contender: Contender, num_ids: int) -> Program:
    """The next-word network under one of the methods."""
    task, optimizer = make_task(config, contender, num_ids), make_optimizer(config)
    on_own_tests = before_and_after(task, agent_loop(config, task))

    def evaluate(models: Models, data: FederatedData) -> dict[str, Array]:
        values = dict(on_own_tests(models, data))
        return values | {
            "worst_decile": worst_decile(values["accuracy"]),
            "consensus_distance": consensus_distance(models.reported.params),
        }

    return Program(MAKE[contender.method](config, task, optimizer, contender), evaluate)
