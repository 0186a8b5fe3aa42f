"""Runs of partial averaging that differ in their schemes only.

A study is a list of cases; every case runs with the same data splits and initial
weights, so that differences between cases are differences between schemes.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax
from absl import flags

from experiments import common, runner
from p2pjax import (
    InputError,
    averaging,
    data,
    metrics,
    slices,
    tasks,
    topology,
    training,
)
from p2pjax.algorithms.base import Algorithm
from p2pjax.algorithms.partial_averaging import partial_averaging, share
from p2pjax.averaging import Averaging
from p2pjax.data import World
from p2pjax.models import mlp
from p2pjax.simulate import Evaluate, on_test_sets
from p2pjax.slices import Layout, PartialModel, Scheme
from p2pjax.types import Array, Variables

LOSSES = {
    "squared_error": tasks.squared_error,
    "cross_entropy": tasks.binary_cross_entropy,
}

_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 50, "Examples of a mini-batch.", lower_bound=1
)
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 0.1, "Rate of plain SGD.")
_PER_SAMPLE = flags.DEFINE_bool(
    "per_sample", True, "Update after every example of a mini-batch, as in the paper."
)
_LOSS = flags.DEFINE_enum(
    "loss", "squared_error", list(LOSSES), "Loss of the sigmoid outputs."
)
_SHARED_INIT = flags.DEFINE_bool(
    "shared_init", True, "Start all agents from the same weights."
)
_AVERAGE_EVERY = flags.DEFINE_integer(
    "average_every", 1, "Mini-batches between two averagings.", lower_bound=1
)
_AVERAGING = flags.DEFINE_enum(
    "averaging",
    "server",
    ["server", "gossip", "pairs"],
    "Exact mean of each model, one Metropolis step on a graph, or random matchings.",
)
_DEGREE = flags.DEFINE_integer(
    "degree", 4, "Neighbours of an agent in the gossip graph.", lower_bound=1
)
_REWIRE_EVERY = flags.DEFINE_integer(
    "rewire_every", None, "Rounds between two gossip graphs; one graph if not given."
)


class Case(NamedTuple):
    """One line of a study."""

    name: str  # level_80, 784-300-100-0, ...
    setting: dict[str, Any]
    scheme: Scheme


class Program(NamedTuple):
    """A case, ready to run."""

    algorithm: Algorithm
    evaluate: Evaluate


def level_layout(network: Layout, level: int) -> Layout:
    """Cells of the global model at an averaging level, in percent of a hidden layer.

    The paper rounds the first hidden layer of its 300=100 network in its own way. The
    input and output cells are global, except at level 0, where nothing is.
    """
    if not 0 <= level <= 100:
        raise InputError(f"Need levels from 0 to 100, got {level}.")
    if level == 0:
        return (0,) * len(network)
    inputs, *hidden, outputs = network
    in_the_paper = {15: (50, 15), 30: (100, 30), 60: (200, 60), 80: (250, 80)}
    if tuple(hidden) == (300, 100) and level in in_the_paper:
        return (inputs, *in_the_paper[level], outputs)
    return (inputs, *(round(cells * level / 100) for cells in hidden), outputs)


def one_model(
    network: Layout, cells: Layout, num_agents: int, group_size: int
) -> Scheme:
    """All agents have the same network; each group of agents shares one model."""
    if group_size < 1 or num_agents % group_size:
        raise InputError(
            f"Need groups that divide the {num_agents} agents evenly, got groups of "
            f"{group_size}."
        )
    if len(cells) == len(network) and any(np.greater(cells, network)):
        raise InputError(
            f"Layouts do not add up: {'-'.join(map(str, cells))} has more cells than "
            f"{'='.join(map(str, network))}."
        )
    groups = [
        tuple(range(first, first + group_size))
        for first in range(0, num_agents, group_size)
    ]
    is_shared = any(cells) and group_size > 1
    models = tuple(PartialModel(cells, members) for members in groups)
    return Scheme((network,) * num_agents, models if is_shared else ())


def run_study(
    experiment: str, cases: Sequence[Case], make_world: Callable[[int], World]
) -> Path:
    """Runs every case `num_runs` times and fills the run folder.

    Args:
      experiment: its name.
      cases: what is compared.
      make_world: data of a run.

    Returns:
      The run folder.
    """
    worlds = [make_world(run) for run in range(common.NUM_RUNS.value)]
    for world, case in itertools.product(worlds, cases):
        for split in (world.train, world.test):
            tasks.check_labels(split.examples["y"], case.scheme.networks[0][-1])
    programs = [build_program(case, worlds[0]) for case in cases]
    jobs = [
        runner.Job(
            scheme=case.name,
            setting=case.setting,
            run=run,
            algorithm=program.algorithm,
            evaluate=program.evaluate,
            world=world,
        )
        for case, program in zip(cases, programs, strict=True)
        for run, world in enumerate(worlds)
    ]
    summary = ("accuracy", "loss", "messages", "bytes")
    return runner.run_jobs(experiment, jobs, summary)


def build_program(case: Case, world: World) -> Program:
    """Everything that can be refused is refused here, before anything is written."""
    if not 0 < _LEARNING_RATE.value < float("inf"):
        raise InputError(f"Need a positive learning rate, got {_LEARNING_RATE.value}.")
    widths = slices.widths(slices.align(slices.attach(case.scheme))[0])
    example_shape = world.train.examples["x"].shape[2:]
    if int(np.prod(example_shape)) != widths[0]:
        raise InputError(
            f"Layouts do not add up: examples of shape {example_shape} need "
            f"{int(np.prod(example_shape))} inputs, the network has {widths[0]}."
        )
    task = tasks.classification(mlp.MLP(widths[1:]), example_shape, LOSSES[_LOSS.value])
    learner = training.gradient_descent(task, optax.sgd(_LEARNING_RATE.value))
    if _PER_SAMPLE.value:
        learner = training.per_sample(learner)
    sharing = share(case.scheme, mlp.wiring(len(widths) - 1), task)
    algorithm = partial_averaging(
        task,
        learner,
        data.cyclic_window(_BATCH_SIZE.value),
        sharing,
        _averaging(len(case.scheme.networks)),
        average_every=_AVERAGE_EVERY.value,
        shared_init=_SHARED_INIT.value,
        agent_loop=common.agent_loop(),
    )
    on_own_tests = on_test_sets(task, common.agent_loop())

    def evaluate(models: Variables, world: World) -> dict[str, Array]:
        return dict(on_own_tests(models, world)) | {
            "norm": metrics.parameter_norm(models.params),
            "disagreement": metrics.disagreement(models.params, sharing.plan),
        }

    return Program(algorithm, evaluate)


def _averaging(num_agents: int) -> Averaging:
    if _AVERAGING.value == "server":
        return averaging.server(num_agents)
    if _AVERAGING.value == "pairs":
        return averaging.random_pairs(num_agents)
    draw = partial(topology.random_regular, num_agents=num_agents, degree=_DEGREE.value)
    draw(np.random.default_rng(0))  # refuses a degree that is not possible
    return averaging.gossip(num_agents, draw, rewire_every=_REWIRE_EVERY.value)
