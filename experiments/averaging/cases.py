"""Studies of partial averaging as lists of cases.

A run has the same initial weights in every case, and the same data unless the study
varies it, so that differences between cases are differences between schemes.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.averaging.config import LOSSES, AveragingConfig
from experiments.averaging.design import (
    LEARNING,
    WEIGHTS,
    Choices,
    choices_of,
    rate_of,
)
from experiments.averaging.realisations import facts_of, realisation
from experiments.averaging.schemes import file_schemes, level_layout, one_model
from experiments.engine import fitting
from experiments.engine.config import agent_loop
from experiments.engine.jobs import Job, Program, jobs_of_runs
from p2pjax.engines.changing_groups import group_changes
from p2pjax.engines.partial_rounds import partial_rounds
from p2pjax.evaluation.models import disagreement, parameter_norm
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.nn import mlp
from p2pjax.partial import placement
from p2pjax.partial.averaging import Averaging
from p2pjax.partial.changing_members import Changing, check_models, group_averaging
from p2pjax.partial.per_model import PerModel
from p2pjax.partial.schemes import Scheme
from p2pjax.partial.sharing import compile_scheme
from p2pjax.tasks._classification import classification
from p2pjax.tasks.task import Task
from p2pjax.training import samplers
from p2pjax.training.learner import Learner, gradient_descent, per_sample
from p2pjax.types import (
    LOCAL,
    Array,
    FederatedData,
    InputError,
    Layout,
    Models,
    Wiring,
)

MakeData = Callable[[int], FederatedData]  # of a run
ConfigType = TypeVar("ConfigType", bound=AveragingConfig)


class Case(NamedTuple):
    """What is compared with others: a scheme, its data and its mini-batches."""

    name: str  # level_80, 784-300-100-0, ...
    setting: dict[str, Any]
    scheme: Scheme
    make_data: MakeData
    batch_size: int | None = None  # the config's if not given
    drift: float | None = None  # the config's if not given
    average_every: int | None = None  # mini-batches; the config's if not given
    runs: Sequence[int] | None = None  # all if not given
    facts: Mapping[str, float] = MappingProxyType({})  # reported with every evaluation
    changing: Changing | None = None  # how members of the scheme's models change


def check_perceptrons(
    config: AveragingConfig,
    network: Layout,
    num_agents: int,
    num_examples: int,
    *,
    itemsize: int = 1,
    batch_size: int | None = None,
) -> None:
    """Refuses networks and examples that cannot fit, before anything is made.

    Args:
      config: of the experiment.
      network: of every agent, at least this.
      num_agents: N.
      num_examples: of each agent.
      itemsize: bytes of an input, at least this.
      batch_size: where the study varies it.
    """
    example = network[0] * itemsize
    fitting.check_agents(
        config,
        num_agents,
        classification(mlp.MLP(network[1:]), network[:1], LOSSES[config.loss[0]]),
        examples=num_examples * example,
        batch=(batch_size or config.batch_size) * example,
    )


def level_cases(
    network: Layout,
    levels: Sequence[int],
    num_agents: int,
    make_data: MakeData,
    setting: dict[str, Any] | None = None,
    batch_size: int | None = None,
) -> list[Case]:
    """One global model of growing size.

    Args:
      network: of every agent.
      levels: in percent of the hidden layers.
      num_agents: N.
      make_data: of a run.
      setting: what else the study varies.
      batch_size: of these cases, where the study varies it.
    """
    return [
        Case(
            f"level_{level}",
            {"level": level} | (setting or {}),
            one_model(network, level_layout(network, level), num_agents, num_agents),
            make_data,
            batch_size,
        )
        for level in levels
    ]


def file_cases(
    scheme_file: str | None,
    network: Layout,
    num_agents: int,
    make_data: MakeData,
    setting: dict[str, Any] | None = None,
    batch_size: int | None = None,
) -> list[Case]:
    """The scheme of a file, if there is one.

    Args:
      scheme_file: its path, or None.
      network: of the study, where the file has none.
      num_agents: N.
      make_data: of a run.
      setting: what else the study varies.
      batch_size: of this case, where the study varies it.
    """
    return [
        Case(one.name, one.setting | (setting or {}), one.scheme, make_data, batch_size)
        for one in file_schemes(scheme_file, network, num_agents)
    ]


def averaging_jobs(
    config: ConfigType,
    cases: Sequence[Case],
    build: Callable[[ConfigType, Choices, Case, FederatedData], Program] | None = None,
    learning: Collection[str] = LEARNING,
) -> list[Job]:
    """All runs of all cases, in every combination of how agents learn and average.

    Cases with the same scheme, mini-batches and shapes share a compiled program.

    Args:
      config: of the experiment.
      cases: what is compared.
      build: makes a program of a combination, a case and the data of its first run;
        multilayer perceptrons if not given.
      learning: what of how agents learn means something to its networks.
    """
    programs: dict[Any, Program] = {}
    jobs = []
    for (setting, choices), case in itertools.product(
        choices_of(config, learning), cases
    ):
        runs = config.runs if case.runs is None else case.runs
        data = case.make_data(runs[0])
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(data))
        rhythm = case.batch_size, case.drift, case.average_every
        same = (choices, case.scheme, rhythm, case.changing, shapes)
        if same not in programs:
            programs[same] = (build or perceptron_program)(config, choices, case, data)
        jobs += jobs_of_runs(
            config,
            case.name,
            setting | case.setting,
            programs[same],
            case.make_data,
            runs=runs,
            facts={**case.facts, **facts_of(config, choices)},
        )
    return jobs


# Everything that can be refused is refused by the two functions below, before anything
# is written.


def perceptron_program(
    config: AveragingConfig, choices: Choices, case: Case, data: FederatedData
) -> Program:
    """The paper's sigmoid network, trained by gradients."""
    widths = placement.widths(placement.align(placement.attach(case.scheme))[0])
    example_shape = data.train.examples["x"].shape[2:]
    if int(np.prod(example_shape)) != widths[0]:
        raise InputError(
            f"Layouts do not add up: examples of shape {example_shape} need "
            f"{int(np.prod(example_shape))} inputs, the network has {widths[0]}."
        )
    kernel_init, bias_init = WEIGHTS[choices.weights]
    network = mlp.MLP(widths[1:], kernel_init=kernel_init, bias_init=bias_init)
    task = classification(network, example_shape, LOSSES[choices.loss], per_class=True)
    learner = gradient_descent(task, optax.sgd(rate_of(config, choices)))
    if choices.update == "per_sample":
        learner = per_sample(learner)
    wiring = mlp.wiring(len(widths) - 1)
    return averaging_program(config, choices, case, task, learner, wiring)


def averaging_program(
    config: AveragingConfig,
    choices: Choices,
    case: Case,
    task: Task,
    learner: Learner,
    wiring: Wiring,
) -> Program:
    """Partial averaging of any network and any way of learning.

    Args:
      config: of the experiment.
      choices: whether agents share initial weights, and how they average.
      case: what is averaged.
      task: what each agent learns.
      learner: how.
      wiring: of the network.
    """
    sharing = compile_scheme(case.scheme, wiring, task)
    loop, changes = agent_loop(config, task), None
    average: Averaging | PerModel = realisation(
        config, choices, len(case.scheme.networks)
    )
    if case.changing is not None:
        if choices.averaging != "server":
            raise InputError(
                "Need --averaging=server where members of models change, got "
                f"--averaging={choices.averaging}."
            )
        below = check_models(case.scheme, case.changing.num_found)
        average = group_averaging(len(case.scheme.networks), below)
        changes = group_changes(task, case.changing, sharing, below, loop)
    algorithm = partial_rounds(
        task,
        learner,
        samplers.cyclic_window(case.batch_size or config.batch_size),
        sharing,
        average,
        average_every=case.average_every or config.average_every,
        drift_threshold=config.drift if case.drift is None else case.drift,
        changes=changes,
        shared_init=choices.init == "shared",
        score_before=config.score_before,
        agent_loop=loop,
    )
    on_own_tests = before_and_after(task, loop)

    def evaluate(models: Models, data: FederatedData) -> dict[str, Array]:
        scores = dict(on_own_tests(models, data))
        for model in range(len(case.scheme.models) if changes else 0):
            group = scores.pop(f"group_{model}")
            scores[f"members_{model}"] = (group != LOCAL).astype(jnp.float32)
            scores[f"rand_index_{model}"] = rand_index(data.cluster, group)
        return scores | {
            "norm": parameter_norm(models.reported.params),
            "disagreement": disagreement(models.reported.params, sharing.plan),
        }

    return Program(algorithm, evaluate)


def rand_index(truth: Array, group: Array) -> Array:
    """Adjusted Rand index of groups `[N]`; agents with LOCAL are alone in theirs.

    Args:
      truth: the true group of each agent, `[N]`; not all in one.
      group: what was found, `[N]`.
    """
    pair = jnp.triu(jnp.ones((len(truth), len(truth)), bool), 1)
    alike = (truth[:, None] == truth[None]) & pair
    found = (group[:, None] == group[None]) & (group != LOCAL)[None] & pair
    both, ours, theirs, pairs = (
        some.sum().astype(jnp.float32) for some in (alike & found, found, alike, pair)
    )
    expected = ours * theirs / pairs
    return (both - expected) / ((ours + theirs) / 2 - expected)
