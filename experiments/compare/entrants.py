"""What is compared: methods on one problem, some of them in several settings."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import optax

from experiments.compare.methods import AFRESH, METHODS, Problem
from experiments.engine.config import Common, agent_loop
from experiments.engine.jobs import Job, Program, jobs_of_runs
from p2pjax.evaluation.models import worst_decile
from p2pjax.evaluation.test_sets import before_and_after, on_test_sets
from p2pjax.tasks.task import Task
from p2pjax.types import Array, Evaluate, FederatedData, Models

OPTIMIZERS: Mapping[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": partial(optax.sgd, momentum=0.9),
    "adam": optax.adam,
}


class Entrant(NamedTuple):
    """A method that is compared with others."""

    method: str  # of `METHODS`
    problem: Problem
    setting: Mapping[str, Any] = MappingProxyType({})  # beside its learning rate


def swept(optimizer: str, rates: Sequence[float]) -> optax.GradientTransformation:
    """An optimizer whose state has its rate, so that rates share a program.

    Args:
      optimizer: of `OPTIMIZERS`.
      rates: of which it has the first.
    """
    injected = optax.inject_hyperparams(OPTIMIZERS[optimizer])
    return injected(learning_rate=rates[0])


def jobs_of(
    config: Common,
    entrants: Sequence[Entrant],
    optimizer: str,
    rates: Sequence[float],
    evaluate: Evaluate,
    data: Callable[[int], FederatedData],
) -> list[Job]:
    """All runs of all entrants; learning rates of most methods share a program.

    Args:
      config: of the experiment.
      entrants: what is compared; their problems have an optimizer that is `swept`.
      optimizer: its name.
      rates: that each is run with.
      evaluate: judges models.
      data: of a run.
    """
    jobs = []
    for name, problem, setting in entrants:
        is_afresh = name in AFRESH
        if not is_afresh:
            program = Program(METHODS[name](problem), evaluate)
        for value in rates:
            if is_afresh:  # no state has the rate, so each has a program
                fixed = problem._replace(optimizer=OPTIMIZERS[optimizer](value))
                program = Program(METHODS[name](fixed), evaluate)
            jobs += jobs_of_runs(
                config,
                name,
                {**setting, "learning_rate": value},
                program,
                data,
                hyperparameters={} if is_afresh else {"learning_rate": value},
            )
    return jobs


def evaluation(config: Common, task: Task, *, validates: bool) -> Evaluate:
    """Scores on own tests, the worst tenth, and the validation that chooses rates.

    Args:
      config: of the experiment.
      task: what agents learn.
      validates: whether they have validation data.
    """
    loop = agent_loop(config, task)
    on_own_tests, on_parts = before_and_after(task, loop), on_test_sets(task, loop)

    def evaluate(models: Models, data: FederatedData) -> dict[str, Array]:
        values = dict(on_own_tests(models, data))
        values["worst_decile"] = worst_decile(values["accuracy"])
        if validates:
            found = on_parts(models, data._replace(test=data.valid))
            values["valid_accuracy"] = found["accuracy"]
        return values

    return evaluate
