"""Studies of partial averaging.

A study is a list of cases; a run has the same initial weights in every case, and the
same data unless the study varies it, so that differences between cases are differences
between schemes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from absl import flags

from experiments import common, runner
from experiments.averaging_schemes import level_layout, one_model
from experiments.runner import Program
from p2pjax.engines.partial_rounds import partial_rounds
from p2pjax.evaluation.models import disagreement, parameter_norm
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.graphs import generators
from p2pjax.nn import mlp
from p2pjax.partial import averaging, placement
from p2pjax.partial.averaging import Averaging
from p2pjax.partial.schemes import Scheme
from p2pjax.partial.sharing import compile_scheme
from p2pjax.tasks import losses
from p2pjax.tasks._classification import classification
from p2pjax.tasks.task import Task
from p2pjax.training import samplers
from p2pjax.training.learner import Learner, gradient_descent, per_sample
from p2pjax.types import Array, FederatedData, InputError, Layout, Models, Wiring

LOSSES = {
    "squared_error": losses.squared_error,
    "cross_entropy": losses.binary_cross_entropy,
}

_PER_SAMPLE = flags.DEFINE_bool(
    "per_sample", True, "Update after every example of a mini-batch, as in the paper."
)
_LOSS = flags.DEFINE_enum(
    "loss", "squared_error", list(LOSSES), "Loss of the sigmoid outputs."
)
_SHARED_INIT = flags.DEFINE_bool(
    "shared_init",
    None,
    "Start all agents from the same weights: the default but for associative networks.",
)
_AVERAGE_EVERY = flags.DEFINE_integer(
    "average_every", 1, "Mini-batches between two averagings.", lower_bound=1
)
_DRIFT = flags.DEFINE_float(
    "drift",
    None,
    "Squared distance from its last averaged weights beyond which an agent asks for an "
    "averaging (dynamic averaging); if not given, agents always average.",
)
_AVERAGING = flags.DEFINE_enum(
    "averaging",
    "server",
    ["server", "gossip", "pairs"],
    "Exact mean of each model, one Metropolis step on a graph, or random matchings.",
)
_REWIRE_EVERY = flags.DEFINE_integer(
    "rewire_every", None, "Rounds between two gossip graphs; one graph if not given."
)


class Case(NamedTuple):
    """What is compared with others: a scheme, its data and its mini-batches."""

    name: str  # level_80, 784-300-100-0, ...
    setting: dict[str, Any]
    scheme: Scheme
    make_world: Callable[[int], FederatedData]  # data of a run
    batch_size: int | None = None  # --batch_size if not given
    drift: float | None = None  # --drift if not given
    runs: Sequence[int] | None = None  # all if not given
    facts: Mapping[str, float] = MappingProxyType({})  # reported with every evaluation


def level_cases(
    network: Layout,
    levels: Sequence[int],
    num_agents: int,
    make_world: Callable[[int], FederatedData],
    setting: dict[str, Any] | None = None,
    batch_size: int | None = None,
) -> list[Case]:
    """One global model of growing size; `setting` is what else the study varies."""
    return [
        Case(
            f"level_{level}",
            {"level": level} | (setting or {}),
            one_model(network, level_layout(network, level), num_agents, num_agents),
            make_world,
            batch_size,
        )
        for level in levels
    ]


def run_study(
    experiment: str,
    cases: Sequence[Case],
    build: Callable[[Case, FederatedData], Program] | None = None,
) -> Path:
    """Runs every case `num_runs` times and fills the run folder.

    Cases with the same scheme, mini-batches and shapes share a compiled program.

    Args:
      experiment: its name.
      cases: what is compared.
      build: makes a program of a case and the data of its first run; multilayer
        perceptrons if not given.

    Returns:
      The run folder.
    """
    programs: dict[Any, Program] = {}
    jobs = []
    for case in cases:
        world = case.make_world(0)
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(world))
        same = (case.scheme, case.batch_size, case.drift, shapes)
        if same not in programs:
            programs[same] = (build or perceptron_program)(case, world)
        program = programs[same]
        jobs += [
            runner.Job(
                scheme=case.name,
                setting=case.setting,
                run=run,
                algorithm=program.algorithm,
                evaluate=program.evaluate,
                make_world=partial(case.make_world, run),
                facts=case.facts,
            )
            for run in case.runs or range(common.NUM_RUNS.value)
        ]
    summary = ("accuracy", "loss", "messages", "bytes")
    return runner.run_jobs(experiment, jobs, summary)


# Everything that can be refused is refused by the two functions below, before anything
# is written.


def perceptron_program(case: Case, world: FederatedData) -> Program:
    """The paper's sigmoid network, trained by gradients."""
    widths = placement.widths(placement.align(placement.attach(case.scheme))[0])
    example_shape = world.train.examples["x"].shape[2:]
    if int(np.prod(example_shape)) != widths[0]:
        raise InputError(
            f"Layouts do not add up: examples of shape {example_shape} need "
            f"{int(np.prod(example_shape))} inputs, the network has {widths[0]}."
        )
    task = classification(mlp.MLP(widths[1:]), example_shape, LOSSES[_LOSS.value])
    learner = gradient_descent(task, optax.sgd(common.learning_rate(0.1)))
    if _PER_SAMPLE.value:
        learner = per_sample(learner)
    return averaging_program(case, task, learner, mlp.wiring(len(widths) - 1))


def averaging_program(
    case: Case, task: Task, learner: Learner, wiring: Wiring, shared_init: bool = True
) -> Program:
    """Partial averaging of any network and any way of learning.

    Whether agents share their initial weights is up to the flag first.
    """
    if _SHARED_INIT.value is not None:
        shared_init = _SHARED_INIT.value
    sharing = compile_scheme(case.scheme, wiring, task)
    algorithm = partial_rounds(
        task,
        learner,
        samplers.cyclic_window(case.batch_size or common.BATCH_SIZE.value),
        sharing,
        _averaging(len(case.scheme.networks)),
        average_every=_AVERAGE_EVERY.value,
        drift_threshold=_DRIFT.value if case.drift is None else case.drift,
        shared_init=shared_init,
        agent_loop=common.agent_loop(task),
    )
    on_own_tests = on_test_sets(task, common.agent_loop(task))

    def evaluate(models: Models, world: FederatedData) -> dict[str, Array]:
        return dict(on_own_tests(models, world)) | {
            "norm": parameter_norm(models.reported.params),
            "disagreement": disagreement(models.reported.params, sharing.plan),
        }

    return Program(algorithm, evaluate)


def _averaging(num_agents: int) -> Averaging:
    if _AVERAGING.value == "server":
        return averaging.server(num_agents)
    if _AVERAGING.value == "pairs":
        return averaging.random_pairs(num_agents)
    degree = common.DEGREE.value or 4
    generators.random_regular(num_agents, degree, seed=0)  # refuses what is impossible
    return averaging.metropolis_gossip(
        num_agents,
        lambda rng: generators.random_regular(num_agents, degree, seed=rng),
        rewire_every=_REWIRE_EVERY.value,
    )
