"""The schemes of `experiments.combination`, ready to run."""

from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
import optax

from experiments.combination.config import ACTIVATIONS, FEDAVG_EPOCHS, SERVED, Config
from experiments.engine import design
from experiments.engine.config import agent_loop, rate
from experiments.engine.jobs import Program
from p2pjax.algorithms._fedcurv import fedcurv
from p2pjax.algorithms._mean_regularized import mean_regularized
from p2pjax.algorithms._scaffold import scaffold
from p2pjax.datasets.stacking import Examples
from p2pjax.engines.combining import GlobalStopping, combined_rounds
from p2pjax.engines.server import server_rounds
from p2pjax.evaluation.models import non_finite, parameter_norm
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.exchange.factors import (
    Factors,
    additive,
    exponential,
    mean,
    size_weighted,
)
from p2pjax.nn.cnn import CNN
from p2pjax.nn.mlp import MLP
from p2pjax.tasks import losses
from p2pjax.tasks._classification import classification
from p2pjax.tasks.task import Task
from p2pjax.training.early_stopping import (
    LocalStopping,
    LocalTraining,
    for_epochs,
    until_converged,
)
from p2pjax.training.learner import gradient_descent
from p2pjax.training.local_updates import epochs
from p2pjax.types import Algorithm, Array, FederatedData, InputError, Models

PARAMETERS = 1873  # of the paper's network of one hidden layer and one output


class Choices(NamedTuple):
    """What a design varies; the fields are flags."""

    init: str
    activation: str
    optimizer: str
    fedavg_rate: float


# Names of flags by those of factors.
FLAGS = {name: name for name in Choices._fields}


def choices_of(config: Config, scheme: str) -> list[tuple[dict[str, Any], Choices]]:
    """What rows say of each combination that means something to a scheme.

    Args:
      config: of the experiment.
      scheme: its name.
    """
    factors = {name: getattr(config, name) for name in Choices._fields}
    relevant: tuple[str, ...] = ("init", "activation", "optimizer")
    if scheme in FEDAVG_EPOCHS:
        relevant = ("activation", "optimizer")
    if scheme in SERVED:
        relevant = ("activation", "fedavg_rate")
    found = design.combinations(factors, relevant)
    return [(setting, Choices(**named)) for setting, named in found]


def make_task(config: Config, examples: Examples, activation: str = "relu") -> Task:
    """The network of every host.

    Args:
      config: of the experiment.
      examples: what it is to take.
      activation: of its hidden cells.
    """
    cells = ACTIVATIONS[activation]
    shape = examples.x.shape[1:]
    num_inputs = int(np.prod(shape))
    if config.study == "hospital":
        if examples.num_classes != 2:
            raise InputError(
                f"Need two classes for --study=hospital, got {examples.num_classes}."
            )
        hidden = max(1, (PARAMETERS - 1) // (num_inputs + 2))
        module: nn.Module = MLP((hidden, 1), cells)
        loss = losses.binary_cross_entropy
        return classification(module, shape, loss, per_class=True)
    if config.network == "cnn":
        # 1,020,866 parameters on MNIST; the paper's 1,020,554 are of no known layout.
        module = CNN((32, 64), (936,), examples.num_classes, activation=cells)
    else:
        module = MLP((300, 100, examples.num_classes), cells)
    loss = losses.softmax_cross_entropy
    return classification(module, shape, loss, per_class=True)


def factors_of(config: Config, scheme: str) -> Factors | None:
    """How much a host counts; None for schemes that do not combine."""
    default = 1.0 if config.study == "digits" else 1e-3
    c = default if config.factor_rate is None else config.factor_rate
    return {
        "mean": mean,
        "size_weighted": size_weighted,
        "additive": additive(),
        "exponential": exponential(c),
    }.get(scheme)


def build_program(config: Config, scheme: str, task: Task, choices: Choices) -> Program:
    """A scheme, ready to run on any number of hosts.

    Args:
      config: of the experiment.
      scheme: its name.
      task: what each host learns.
      choices: of what a design varies.
    """
    on_tests = before_and_after(task, agent_loop(config, task))

    def evaluate(models: Models, data: FederatedData) -> dict[str, Array]:
        return dict(on_tests(models, data)) | {
            "norm": parameter_norm(models.reported.params),
            "non_finite": non_finite(models.reported.params),
        }

    return Program(_algorithm(config, scheme, task, choices), evaluate)


def _algorithm(config: Config, scheme: str, task: Task, choices: Choices) -> Algorithm:
    if scheme in SERVED:
        return _served(config, scheme, task, choices)
    optimizer = optax.sgd(config.sgd_rate)
    if choices.optimizer == "adam":
        optimizer = optax.adam(rate(config, 1e-3))
    learner = gradient_descent(task, optimizer)
    loop = agent_loop(config, task)
    options: dict[str, Any] = {"batch_size": config.batch_size, "agent_loop": loop}
    if scheme in FEDAVG_EPOCHS:
        return server_rounds(
            task,
            learner,
            local_updates=epochs(FEDAVG_EPOCHS[scheme]),
            score_before=config.score_before,
            **options,
        )
    local: LocalTraining
    if config.study != "digits":
        rule = LocalStopping(patience=config.patience, max_epochs=config.max_epochs)
        if config.study == "texts":  # no accuracy is asked of a first round
            rule = rule._replace(first_accuracy=-1.0)
        local = until_converged(task, learner, rule, **options)
    else:
        local = for_epochs(learner, 1, **options)
    factors, stop = factors_of(config, scheme), None
    if config.stop_after is not None and factors is not None:
        stop = GlobalStopping(config.stop_after)
    return combined_rounds(
        task,
        local,
        factors,
        stop=stop,
        shared_init=choices.init == "shared",
        agent_loop=loop,
    )


def _served(config: Config, scheme: str, task: Task, choices: Choices) -> Algorithm:
    """FedAvg and its neighbours, by SGD at a rate of their own."""
    learner = gradient_descent(task, optax.sgd(choices.fedavg_rate))
    options: dict[str, Any] = {
        "batch_size": config.batch_size,
        "local_updates": epochs(config.fedavg_epochs),
        "agent_loop": agent_loop(config, task),
    }
    penalty = config.penalty
    if scheme == "ewc":
        return fedcurv(
            task, learner, penalty_weight=penalty, own_curvature=True, **options
        )
    if scheme == "mean_regularized":
        return mean_regularized(task, learner, penalty_weight=penalty, **options)
    method = scaffold if scheme == "scaffold" else server_rounds
    return method(task, learner, score_before=config.score_before, **options)
