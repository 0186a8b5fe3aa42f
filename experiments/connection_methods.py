"""Ways of choosing peers by name, ready to run with the settings of Sajina (2025)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import optax
from absl import flags

from experiments import common
from experiments.jobs import Program
from p2pjax import sharding
from p2pjax.algorithms._d_cliques import d_cliques
from p2pjax.algorithms._diple import diple
from p2pjax.algorithms._local_only import local_only
from p2pjax.datasets import stacking
from p2pjax.engines.pulling import pull
from p2pjax.evaluation.models import worst_decile
from p2pjax.evaluation.test_sets import Evaluate, on_test_sets
from p2pjax.graphs import clusters, generators
from p2pjax.graphs.topology import Graphs, Topology
from p2pjax.selection import aucccr, peer_evaluation, tables
from p2pjax.selection.base import Selection
from p2pjax.selection.d_cliques import cliques
from p2pjax.selection.dac import dac
from p2pjax.selection.diple import line_search
from p2pjax.selection.l2c import l2c
from p2pjax.selection.panm import panm
from p2pjax.selection.peer_evaluation import Probe
from p2pjax.selection.peer_sampling import partial_view
from p2pjax.selection.pens import pens
from p2pjax.selection.request_limits import limit_requests
from p2pjax.selection.similarity import agreement, update_cosine
from p2pjax.selection.sparse import sparse
from p2pjax.simulation._simulate import simulate
from p2pjax.tasks.task import Task
from p2pjax.training.local_updates import epochs
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    InputError,
    Models,
    num_agents,
)

ALONE_EPOCHS = 15  # of AUCCCR, before agents are compared

_SECOND_STAGE = flags.DEFINE_integer(
    "second_stage",
    None,
    "First round of the second stage of PENS and PANM; a fifth of all if not given.",
    lower_bound=1,
)
_MATCHING_EVERY = flags.DEFINE_integer(
    "matching_every",
    None,
    "Rounds between two matchings of PANM; a fiftieth of all if not given.",
    lower_bound=1,
)
_COUNTS_ALL = flags.DEFINE_bool(
    "counts_all",
    True,
    "All messages of PANM; with --nocounts_all as the thesis counts them, without "
    "those of averaging in the second stage.",
)
_ROUNDS_WITH_ALL = flags.DEFINE_integer(
    "rounds_with_all",
    None,
    "Rounds in which L2C mixes all models; a fiftieth of all if not given.",
    lower_bound=1,
)
_NUM_KEPT = flags.DEFINE_integer(
    "num_kept", 3, "Peers that L2C keeps after these rounds.", lower_bound=1
)
_BILEVEL = flags.DEFINE_bool(
    "bilevel", False, "L2C as published: weights follow the mixed model's gradient."
)
_NUM_CANDIDATES = flags.DEFINE_integer(
    "num_candidates", 6, "Models that PENS and PANM try in a round.", lower_bound=1
)
_SHARPNESS = flags.DEFINE_float(
    "sharpness", 30.0, "Softmax sharpness of DAC's peer sampling.", lower_bound=0
)
_RISING = flags.DEFINE_bool("rising", False, "Sharpness of DAC rises from 1.")
_UPDATE_SHARE = flags.DEFINE_float(
    "update_share",
    0.5,
    "Weight of the last round's update in the similarity of panm_grad; the rest is for "
    "everything since the start.",
    lower_bound=0,
    upper_bound=1,
)
_ITERATIONS = flags.DEFINE_integer(
    "iterations", 5, "Averages in a cycle of DiPLe.", lower_bound=1
)
_CLIQUE_SIZE = flags.DEFINE_integer(
    "clique_size", 10, "Most agents of a clique of D-Cliques.", lower_bound=1
)
_GROUP_LIMIT = flags.DEFINE_integer(
    "group_limit",
    None,
    "Group size at which AUCCCR's value function saturates; if not given, four tenths "
    "of all "
    "agents for two true clusters and two tenths for more, as in the thesis.",
    lower_bound=1,
)
_PROBE_SIZE = flags.DEFINE_integer(
    "probe_size",
    100,
    "Test examples of the first agents on which AUCCCR, dac_probe and panm_probe "
    "compare predictions.",
    lower_bound=1,
)
_MAX_IN_LOAD = flags.DEFINE_integer(
    "max_in_load",
    None,
    "Most agents that may fetch from one agent in a round, but for d_cliques; no "
    "limit if not given.",
    lower_bound=1,
)
_VIEW_SIZE = flags.DEFINE_integer(
    "view_size",
    None,
    "Agents that each agent knows at a time, by gossip, more than --degree, where "
    "methods have no graph; all if not given.",
    lower_bound=2,
)


class Subject(NamedTuple):
    """What all methods of a study learn."""

    task: Task
    optimizer: optax.GradientTransformation
    cluster: np.ndarray  # [N] the truth, for the oracle
    num_classes: int
    is_text: bool


class Run(NamedTuple):
    """What a method may know of the run whose program it makes."""

    number: int
    world: FederatedData


def _degree() -> int:
    return common.DEGREE.value or 3


def _part_of_rounds(given: int | None, parts: int, least: int = 1) -> int:
    """What the flag says, or a share of all rounds."""
    return given or max(least, common.NUM_ROUNDS.value // parts)


def _probe(subject: Subject, world: FederatedData) -> Probe:
    """Test examples of the first agents, as the thesis has it."""
    assert subject.task.predict is not None, "all of them predict classes"
    return Probe(subject.task.predict, {"x": _probed(world)["x"]})


def _probed(world: FederatedData) -> dict[str, np.ndarray]:
    left, parts = _PROBE_SIZE.value, []
    for agent, size in enumerate(np.asarray(world.test.size)):
        rows = min(int(size), left)
        parts.append(
            {name: leaf[agent, :rows] for name, leaf in world.test.examples.items()}
        )
        left -= rows
        if not left:
            break
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def _pulling(
    selection: Selection, subject: Subject, run: Run, graph: Graphs | None = None
) -> Algorithm:
    """A selection among all agents, or those of a graph."""
    return pull(
        subject.task,
        subject.optimizer,
        _capped(selection, sees_all=graph is None),
        graph,
        batch_size=common.BATCH_SIZE.value,
        probe=_probe(subject, run.world),
        agent_loop=common.agent_loop(subject.task),
    )


def _capped(selection: Selection, sees_all: bool) -> Selection:
    """Under the caps of the flags; a graph says whom agents know."""
    if _VIEW_SIZE.value is not None and sees_all:
        if _VIEW_SIZE.value <= _degree():
            raise InputError(
                f"Need --view_size above the {_degree()} peers averaged with, which "
                f"stay known, got {_VIEW_SIZE.value}."
            )
        selection = partial_view(selection, _VIEW_SIZE.value)
    if _MAX_IN_LOAD.value is not None:
        selection = limit_requests(selection, _MAX_IN_LOAD.value)
    return selection


def _sparse(subject: Subject, run: Run) -> Algorithm:
    size, degree = len(subject.cluster), _degree()
    return _pulling(
        sparse(),
        subject,
        run,
        lambda rng: generators.directed_regular(size, degree, seed=rng),
    )


def _oracle(subject: Subject, run: Run) -> Algorithm:
    cluster, degree = subject.cluster, _degree()
    return _pulling(
        sparse(), subject, run, lambda rng: clusters.oracle(cluster, degree, seed=rng)
    )


def _pens(subject: Subject, run: Run) -> Algorithm:
    chosen = pens(
        num_peers=_degree(),
        num_candidates=_NUM_CANDIDATES.value,
        second_stage=_part_of_rounds(_SECOND_STAGE.value, 5),
    )
    return _pulling(chosen, subject, run)


def _dac(by_probe: bool, subject: Subject, run: Run) -> Algorithm:
    chosen = dac(
        num_peers=_degree(),
        sharpness=_SHARPNESS.value,
        anneal=_RISING.value,
        similarity=agreement() if by_probe else None,
    )
    return _pulling(chosen, subject, run)


def _panm(compared_by: str, subject: Subject, run: Run) -> Algorithm:
    similarity = None
    if compared_by == "updates":
        similarity = update_cosine(_UPDATE_SHARE.value)
    elif compared_by == "probe":
        similarity = agreement()
    chosen = panm(
        similarity=similarity,
        num_peers=_degree(),
        num_candidates=_NUM_CANDIDATES.value,
        second_stage=_part_of_rounds(_SECOND_STAGE.value, 5, least=2),
        matching_every=_part_of_rounds(_MATCHING_EVERY.value, 50),
        counts_all=_COUNTS_ALL.value,
    )
    return _pulling(chosen, subject, run)


def _l2c(subject: Subject, run: Run) -> Algorithm:
    chosen = l2c(
        bilevel=_BILEVEL.value,
        num_kept=_NUM_KEPT.value,
        num_rounds_all=_part_of_rounds(_ROUNDS_WITH_ALL.value, 50),
    )
    return _pulling(chosen, subject, run)


def _diple(subject: Subject, run: Run) -> Algorithm:
    del run
    chosen = _capped(line_search(num_peers=_degree()), sees_all=True)
    return diple(
        subject.task,
        subject.optimizer,
        batch_size=common.BATCH_SIZE.value,
        selection=chosen,
        num_iterations=_ITERATIONS.value,
        agent_loop=common.agent_loop(subject.task),
    )


def _aucccr(subject: Subject, run: Run) -> Algorithm:
    """Groups are found when a run is prepared; their messages are not counted."""
    if subject.is_text:
        raise InputError(
            f"Need fewer classes for aucccr, whose profiles have {subject.num_classes} "
            "x as many numbers: leave it out of --methods."
        )
    size, degree = len(subject.cluster), _degree()
    like_it = generators.directed_regular(size, degree, seed=0)
    base = _pulling(sparse(), subject, run, like_it)

    def plan_fn(
        rng: np.random.Generator, world: FederatedData, num_rounds: int
    ) -> Topology:
        group = found_groups(subject, rng, world)
        graph = tables.padded(aucccr.group_graph(rng, group, degree), degree)
        return Topology(
            *(np.repeat(np.asarray(leaf)[None], num_rounds, 0) for leaf in graph)
        )

    return base._replace(plan=plan_fn)


def found_groups(
    subject: Subject, rng: np.random.Generator, world: FederatedData
) -> np.ndarray:
    """Groups of AUCCCR, `[N]`, from what models that were trained alone predict."""
    agent_loop = common.agent_loop(subject.task)
    alone = local_only(
        subject.task,
        subject.optimizer,
        batch_size=common.BATCH_SIZE.value,
        local_updates=epochs(ALONE_EPOCHS),
        agent_loop=agent_loop,
    )
    key = jax.random.key(int(rng.integers(2**31)))
    (last,) = simulate(key, alone, world, 1, evaluate=lambda models, world: {})
    outputs = peer_evaluation.predictions(
        _probe(subject, world), last.state.variables, agent_loop
    )
    limit = _GROUP_LIMIT.value
    if limit is None:
        tenths = 4 if len(np.unique(subject.cluster)) == 2 else 2
        limit = max(1, len(subject.cluster) * tenths // 10)
    features = aucccr.profiles(sharding.on_host(outputs), _probed(world)["y"])
    return aucccr.value_groups(rng, features, aucccr.root_of_size(limit))


def _d_cliques(subject: Subject, run: Run) -> Algorithm:
    histograms = stacking.label_histograms(run.world.train, subject.num_classes)
    clique = cliques(
        np.random.default_rng([common.SEED.value, run.number]),
        np.asarray(histograms),
        max_size=_CLIQUE_SIZE.value,
    )
    return d_cliques(
        subject.task,
        subject.optimizer,
        clique,
        batch_size=common.BATCH_SIZE.value,
        agent_loop=common.agent_loop(subject.task),
    )


def _local(subject: Subject, run: Run) -> Algorithm:
    del run
    return local_only(
        subject.task,
        subject.optimizer,
        batch_size=common.BATCH_SIZE.value,
        agent_loop=common.agent_loop(subject.task),
    )


METHODS: Mapping[str, Callable[[Subject, Run], Algorithm]] = {
    "sparse": _sparse,
    "oracle": _oracle,
    "pens": _pens,
    "dac": partial(_dac, False),
    "panm_loss": partial(_panm, "loss"),
    "panm_grad": partial(_panm, "updates"),
    "l2c": _l2c,
    "aucccr": _aucccr,
    "d_cliques": _d_cliques,
    "local": _local,
    "diple": _diple,  # last: a round costs ten times as much
    "dac_probe": partial(_dac, True),
    "panm_probe": partial(_panm, "probe"),
}
NOT_DEFAULT = ("dac_probe", "panm_probe")
OF_A_RUN = ("d_cliques", "dac_probe", "panm_probe")  # whose program has a run's data


def build_programs(
    method: str, subject: Subject, worlds: Sequence[FederatedData]
) -> list[Program]:
    """A method, ready to run: one program per run, the same where it can be."""
    if method not in METHODS:
        raise InputError(f"Need methods among {', '.join(METHODS)}, got '{method}'.")
    assert num_agents(worlds[0]) == len(subject.cluster)
    evaluate = evaluation(subject.task)
    runs = [Run(number, world) for number, world in enumerate(worlds)]
    if method in OF_A_RUN:
        return [Program(METHODS[method](subject, run), evaluate) for run in runs]
    return [Program(METHODS[method](subject, runs[0]), evaluate)] * len(runs)


def evaluation(task: Task) -> Evaluate:
    """Accuracy and loss of every agent on its own test set, and the worst tenth."""
    on_own_tests = on_test_sets(task, common.agent_loop(task))

    def evaluate(models: Models, world: FederatedData) -> dict[str, Array]:
        values = dict(on_own_tests(models, world))
        return values | {"worst_decile": worst_decile(values["accuracy"])}

    return evaluate


def parameters_of(task: Task) -> int:
    """Numbers that a whole model is made of, statistics included."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    stats = {k: v for k, v in shapes.stats.items() if k != "momentum"}
    return sum(leaf.size for leaf in jax.tree.leaves((shapes.params, stats)))
