"""The methods that `experiments.virtual` compares, ready to run."""

from collections.abc import Callable
from functools import partial

import optax

from experiments.engine.config import agent_loop, rate
from experiments.engine.jobs import Program
from experiments.virtual.config import OBJECTIVES, PRIOR_MODES, Config
from p2pjax.algorithms._central import central
from p2pjax.algorithms._local_only import local_only
from p2pjax.algorithms._virtual import virtual
from p2pjax.engines.repetition import repeat_rounds
from p2pjax.engines.server import server_rounds
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.nn import gaussian
from p2pjax.nn.variational import Columns, VariationalMLP
from p2pjax.tasks import bayesian
from p2pjax.tasks.task import Task
from p2pjax.training import free_energy
from p2pjax.training.learner import Learner, gradient_descent
from p2pjax.training.local_updates import epochs
from p2pjax.types import Algorithm, Array, InputError, Layout, PyTree

Shape = tuple[int, ...]  # of an example


def classification(
    config: Config, module: Columns | VariationalMLP, shape: Shape
) -> Task:
    """The task of Bayesian networks."""
    return bayesian.variational_classification(
        module,
        shape,
        num_samples=config.num_samples,
        num_test_samples=config.num_test_samples,
        flipout=config.flipout,
        dropout=config.dropout,
        objective=OBJECTIVES[config.objective],
    )


def _bayesian(config: Config, layers: Layout, shape: Shape) -> tuple[Task, Learner]:
    """One network that minimises the free energy under a standard normal prior."""
    coordinates = gaussian.SOFTPLUS
    task = bayesian.in_coordinates(
        classification(config, VariationalMLP(layers), shape), coordinates
    )

    def divergence(free: PyTree) -> Array:
        posterior = coordinates.gaussian(free)
        prior = gaussian.centered(1.0, posterior.mean)
        return gaussian.kl_divergence(posterior, prior)

    return task, free_energy.free_energy_descent(task, _adam(config), divergence)


def _global(config: Config, layers: Layout, shape: Shape) -> Program:
    """As many passes over the data of all clients as a client's refinement."""
    task, learner = _bayesian(config, layers, shape)
    algorithm = central(task, learner, batch_size=config.batch_size)
    return _program(config, repeat_rounds(algorithm, config.epochs), task)


def _local(config: Config, layers: Layout, shape: Shape) -> Program:
    task, learner = _bayesian(config, layers, shape)
    algorithm = local_only(
        task,
        learner,
        batch_size=config.batch_size,
        agent_loop=agent_loop(config, task),
    )
    return _program(config, repeat_rounds(algorithm, config.epochs), task)


def _fedavg(config: Config, layers: Layout, shape: Shape) -> Program:
    """An ordinary network, trained by SGD; clients take as many passes on average."""
    num_clients = max(1, round(config.fedavg_share * config.num_agents))
    task = bayesian.variational_classification(
        VariationalMLP(layers), shape, num_samples=1, dropout=config.dropout
    )
    task = bayesian.in_coordinates(task, gaussian.POINT)
    algorithm = server_rounds(
        task,
        gradient_descent(task, optax.sgd(config.fedavg_rate)),
        batch_size=config.batch_size,
        num_clients=num_clients,
        score_before=config.score_before,
        agent_loop=agent_loop(config, task),
    )
    rounds = max(1, round(config.epochs * config.num_agents / num_clients))
    return _program(config, repeat_rounds(algorithm, rounds), task)


def _virtual(
    synchronous: bool, config: Config, layers: Layout, shape: Shape
) -> Program:
    if len(layers) < 2:
        raise InputError(
            f"Need a network with a hidden layer for clients to read, got "
            f"{config.network}."
        )
    task = classification(config, Columns(layers, config.same_depth), shape)
    algorithm = virtual(
        task,
        _adam(config),
        batch_size=config.batch_size,
        local_updates=epochs(config.epochs),
        synchronous=synchronous,
        damping=config.damping,
        prior_mode=PRIOR_MODES[config.prior_mode],
        agent_loop=agent_loop(config, task),
    )
    if not synchronous:
        algorithm = repeat_rounds(algorithm, config.num_agents)
    return _program(config, algorithm, task)


def _program(config: Config, algorithm: Algorithm, task: Task) -> Program:
    return Program(algorithm, before_and_after(task, agent_loop(config, task)))


def _adam(config: Config) -> optax.GradientTransformation:
    return optax.adam(rate(config, 1e-3))


PROGRAMS: dict[str, Callable[[Config, Layout, Shape], Program]] = {
    "global": _global,
    "local": _local,
    "fedavg": _fedavg,
    "virtual": partial(_virtual, False),
    "virtual_sync": partial(_virtual, True),
}
