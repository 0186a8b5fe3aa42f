"""The methods that `experiments.virtual` compares, ready to run."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from experiments.engine.config import agent_loop
from experiments.engine.jobs import Program
from experiments.virtual.config import OBJECTIVES, PRIOR_MODES, Config
from experiments.virtual.design import Choices
from experiments.virtual.networks import Networks
from p2pjax.algorithms._central import central
from p2pjax.algorithms._ditto import ditto
from p2pjax.algorithms._fedcurv import fedcurv
from p2pjax.algorithms._fedper import fedper
from p2pjax.algorithms._fedprox import fedprox
from p2pjax.algorithms._local_only import local_only
from p2pjax.algorithms._mean_regularized import mean_regularized
from p2pjax.algorithms._scaffold import scaffold
from p2pjax.algorithms._virtual import virtual
from p2pjax.engines.repetition import repeat_rounds
from p2pjax.engines.server import server_rounds
from p2pjax.evaluation import posteriors
from p2pjax.evaluation.test_sets import Evaluate, before_and_after
from p2pjax.nn import gaussian
from p2pjax.tasks import bayesian
from p2pjax.tasks.task import Task
from p2pjax.training import free_energy
from p2pjax.training.learner import Learner, gradient_descent
from p2pjax.training.local_updates import epochs
from p2pjax.types import (
    Algorithm,
    Array,
    Batch,
    FederatedData,
    Key,
    Models,
    PyTree,
    Variables,
)

Observe = Callable[[PyTree], dict[str, Array]]  # of free coordinates, leaves [N, ...]


def classification(
    config: Config,
    module: nn.Module,
    networks: Networks,
    initial_stddev: float = bayesian.INITIAL_STDDEV,
) -> Task:
    """The task of Bayesian networks.

    Args:
      config: of the experiment.
      module: one of the networks.
      networks: that it is of.
      initial_stddev: of all weights.
    """
    return bayesian.variational_classification(
        module,
        networks.shape,
        num_samples=config.num_samples,
        num_test_samples=config.num_test_samples,
        flipout=config.flipout,
        dropout=config.dropout,
        objective=OBJECTIVES[config.objective],
        initial_stddev=initial_stddev,
        **networks.options,
    )


class _Bayesian(NamedTuple):
    """One network that minimises its free energy."""

    task: Task  # in free coordinates
    learner: Learner
    observed: Observe


def _bayesian(
    config: Config, choices: Choices, networks: Networks, has_columns: bool = False
) -> _Bayesian:
    module = networks.columns(choices.gate) if has_columns else networks.plain
    coordinates = gaussian.SOFTPLUS
    task = bayesian.in_coordinates(
        classification(config, module, networks, choices.initial_stddev), coordinates
    )

    def divergence(free: PyTree) -> Array:
        posterior = coordinates.gaussian(free)
        prior = gaussian.centered(choices.prior_stddev, posterior.mean)
        return choices.divergence_weight * gaussian.kl_divergence(posterior, prior)

    def observed(free: PyTree) -> dict[str, Array]:
        of_kind = posteriors.of_columns if has_columns else posteriors.of_private
        return of_kind(coordinates.gaussian(free), choices.prior_stddev)

    optimizer = _adam(choices)
    learner = free_energy.free_energy_descent(task, optimizer, divergence)
    return _Bayesian(task, learner, observed)


def _global(config: Config, networks: Networks, choices: Choices) -> Program:
    """As many passes over the data of all clients as a client's refinement."""
    made = _bayesian(config, choices, networks)
    algorithm = central(made.task, made.learner, batch_size=config.batch_size)
    algorithm = repeat_rounds(algorithm, choices.epochs)
    return _program(config, algorithm, made.task, made.observed)


def _local(config: Config, networks: Networks, choices: Choices) -> Program:
    made = _bayesian(config, choices, networks)
    return _alone(config, made, choices)


def _local_columns(config: Config, networks: Networks, choices: Choices) -> Program:
    """VIRTUAL's network for each client alone: both columns are private."""
    made = _bayesian(config, choices, networks, has_columns=True)
    return _alone(config, made, choices)


def _frozen_server(config: Config, networks: Networks, choices: Choices) -> Program:
    """Clients that read a server which stays as it was drawn, the same for all."""
    made = _bayesian(config, choices, networks, has_columns=True)

    def step(
        key: Key, variables: Variables, opt_state: PyTree, batch: Batch, context: Any
    ) -> tuple[Variables, PyTree, Array]:
        new, opt_state, loss = made.learner.step(
            key, variables, opt_state, batch, context
        )
        params = jax.tree.map(
            lambda now, before: {**now, "server": before["server"]},
            new.params,
            variables.params,
            is_leaf=lambda part: isinstance(part, dict),
        )
        return new._replace(params=params), opt_state, loss

    frozen = made._replace(learner=made.learner._replace(step=step))
    return _alone(config, frozen, choices)


def _alone(config: Config, made: _Bayesian, choices: Choices) -> Program:
    algorithm = local_only(
        made.task,
        made.learner,
        batch_size=config.batch_size,
        agent_loop=agent_loop(config, made.task),
    )
    algorithm = repeat_rounds(algorithm, choices.epochs)
    return _program(config, algorithm, made.task, made.observed)


def _served(
    method: Callable[..., Algorithm],
    config: Config,
    networks: Networks,
    choices: Choices,
) -> Program:
    """An ordinary network, trained by SGD; clients take as many passes on average."""
    num_clients = max(1, round(config.fedavg_share * config.num_agents))
    task = bayesian.variational_classification(
        networks.plain,
        networks.shape,
        num_samples=1,
        dropout=config.dropout,
        **networks.options,
    )
    task = bayesian.in_coordinates(task, gaussian.POINT)
    options: dict[str, Any] = {
        "batch_size": config.batch_size,
        "num_clients": num_clients,
        "agent_loop": agent_loop(config, task),
    }
    if method in (server_rounds, fedprox, fedper, scaffold):  # others report their own
        options["score_before"] = config.score_before
    if method in (fedprox, ditto, fedcurv, mean_regularized):
        options["penalty_weight"] = config.penalty
    if method is fedper:
        options["personal"] = (f"params/{networks.last}/.*",)
    if method is fedcurv:
        options["own_curvature"] = True
    if method is mean_regularized:  # in which all take part
        num_clients = config.num_agents
        del options["num_clients"]
    learner = gradient_descent(task, optax.sgd(choices.fedavg_rate))
    rounds = max(1, round(choices.epochs * config.num_agents / num_clients))
    return _program(
        config, repeat_rounds(method(task, learner, **options), rounds), task
    )


def _virtual(
    synchronous: bool, config: Config, networks: Networks, choices: Choices
) -> Program:
    module = networks.columns(choices.gate)
    task = classification(config, module, networks, choices.initial_stddev)
    algorithm = virtual(
        task,
        _adam(choices),
        batch_size=config.batch_size,
        local_updates=epochs(choices.epochs),
        synchronous=synchronous,
        damping=config.damping,
        prior_mode=PRIOR_MODES[choices.prior_mode],
        prior_stddev=choices.prior_stddev,
        divergence_weight=choices.divergence_weight,
        largest_start=choices.largest_start,
        shuffled=choices.order == "random",
        score_before=config.score_before,
        agent_loop=agent_loop(config, task),
    )
    if synchronous:
        return _program(config, algorithm, task)
    algorithm = repeat_rounds(algorithm, config.num_agents)
    program = _program(config, algorithm, task)
    if choices.order == "random" or not config.score_before:
        return program
    return program._replace(evaluate=_with_early(program.evaluate))


def _with_early(evaluate: Evaluate) -> Evaluate:
    """Also the accuracies of the half of the clients that come first in a pass.

    Right after their last refinement, and now that the later half has changed what all
    share: the difference is what the server has forgotten of them.
    """

    def evaluate_fn(models: Models, data: FederatedData) -> dict[str, Array]:
        values = dict(evaluate(models, data))
        for name in ("accuracy", "accuracy_before"):
            of_clients = values[name]
            early = of_clients[: max(1, len(of_clients) // 2)].mean()
            values[f"early_{name}"] = jnp.broadcast_to(early, of_clients.shape)
        return values

    return evaluate_fn


def _program(
    config: Config, algorithm: Algorithm, task: Task, observe: Observe | None = None
) -> Program:
    on_tests: Evaluate = before_and_after(task, agent_loop(config, task))
    if observe is None:
        return Program(algorithm, on_tests)

    def evaluate(models: Models, data: FederatedData) -> dict[str, Array]:
        return {**on_tests(models, data), **observe(models.reported.params)}

    return Program(algorithm, evaluate)


def _adam(choices: Choices) -> optax.GradientTransformation:
    adam = optax.adam(choices.rate)
    return free_energy.with_deviation_rate(adam, choices.deviation_rate)


PROGRAMS: dict[str, Callable[[Config, Networks, Choices], Program]] = {
    "global": _global,
    "local": _local,
    "local_columns": _local_columns,
    "frozen_server": _frozen_server,
    "fedavg": partial(_served, server_rounds),
    "fedprox": partial(_served, fedprox),
    "fedper": partial(_served, fedper),
    "ditto": partial(_served, ditto),
    "scaffold": partial(_served, scaffold),
    "ewc": partial(_served, fedcurv),
    "mean_regularized": partial(_served, mean_regularized),
    "virtual": partial(_virtual, False),
    "virtual_sync": partial(_virtual, True),
}
