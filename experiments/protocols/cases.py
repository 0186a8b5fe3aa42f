"""What each study runs: schemes in settings, in the order in which rates are given."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import p2pjax as pj
from experiments.compare.graphs import NamedGraph
from experiments.compare.methods import Problem
from experiments.protocols.config import SCHEMES, Config, as_compared
from experiments.protocols.graphs import GRAPHS, hear_one, with_window
from experiments.protocols.methods import METHODS, Method
from p2pjax.tasks.task import Task
from p2pjax.training.local_updates import LocalUpdates, steps
from p2pjax.types import Algorithm, FederatedData, InputError, Key, PyTree, num_agents

WINDOWS = {"window_early": 0.1, "window_middle": 0.5, "window_late": 0.9}


class Case(NamedTuple):
    """A scheme in one setting."""

    scheme: str
    setting: dict[str, Any]
    method: Method
    graph: NamedGraph
    alpha: float  # of its data
    loss: float = 0.0  # of messages
    updates: LocalUpdates | None = None  # None: the method's own
    num_training: int | None = None  # agents at a time; None: all

    @property
    def program(self) -> str:
        """Equal for cases that differ in their data only."""
        others = {k: v for k, v in self.setting.items() if k != "alpha"}
        return f"{self.scheme} {sorted(others.items())}"


def cases_of(config: Config, train_size: float) -> list[Case]:
    """All cases of a study, scheme by scheme.

    Args:
      config: of the experiment.
      train_size: training examples of an agent, in the mean.
    """
    found = {
        "heterogeneity": _by_alpha,
        "loss": _by_loss,
        "graphs": _by_graph,
        "epidemic": _by_graph,
        "merge": lambda config: _merge(config, train_size),
        "local_updates": _by_steps,
        "clusters": _by_method,
        "tokens": _by_tokens,
    }[config.study](config)
    return found


def check_given(config: Config) -> None:
    """Refuses methods and graphs in studies that have none to choose.

    Args:
      config: of the experiment.
    """
    given = {"methods": config.methods, "graphs": config.graphs}
    taken = {
        "methods": config.study in SCHEMES,
        "graphs": config.study != "merge",
    }
    for name, names in given.items():
        if names is not None and not taken[name]:
            raise InputError(
                f"Need no --{name} in the study {config.study}, whose {name} are "
                f"given, got {', '.join(names)}."
            )


def _graph(config: Config, name: str) -> NamedGraph:
    return GRAPHS[name](as_compared(config))


def _updates(config: Config) -> LocalUpdates | None:
    return steps(config.chosen_steps[0]) if config.chosen_steps else None


def _one(config: Config, name: str, setting: dict[str, Any], **changes: Any) -> Case:
    """A method on its own graph, or on that of the study."""
    method = METHODS[name]
    graph = _graph(config, method.graph or config.chosen_graphs[0])
    alpha = config.chosen_alphas[0]
    case = Case(name, setting, method, graph, alpha, updates=_updates(config))
    return case._replace(**changes)


def _by_alpha(config: Config) -> list[Case]:
    return [
        _one(config, name, {"alpha": alpha}, alpha=alpha)
        for name in config.chosen_methods
        for alpha in config.chosen_alphas
    ]


def _by_loss(config: Config) -> list[Case]:
    for value in config.losses:
        if value >= 1:
            raise InputError(f"Need --losses below 1, got {value:g}.")
    return [
        _one(config, name, {"loss": value}, loss=value)
        for name in config.chosen_methods
        for value in config.losses
    ]


def _by_graph(config: Config) -> list[Case]:
    several = len(config.chosen_methods) > 1
    return [
        _one(
            config,
            name,
            {"method": name} if several else {},
            scheme=graph,
            graph=_graph(config, graph),
        )
        for graph in config.chosen_graphs
        for name in config.chosen_methods
    ]


def _by_steps(config: Config) -> list[Case]:
    return [
        _one(config, name, {"local_steps": number}, updates=steps(number))
        for name in config.chosen_methods
        for number in config.chosen_steps
    ]


def _by_method(config: Config) -> list[Case]:
    return [_one(config, name, {}) for name in config.chosen_methods]


def _merge(config: Config, train_size: float) -> list[Case]:
    """Little communication, none, none from other starts, and windows of much."""
    size, probability = config.num_agents, config.probability
    number = round(config.num_rounds * train_size / config.batch_size)
    num_exchanges = max(1, number // config.chosen_steps[0])
    rng = np.random.default_rng(config.seed)

    def drawn(chance: float) -> NamedGraph:
        return NamedGraph(lambda rng: hear_one(rng, size, chance), changes=True)

    graphs = {
        "sparse": drawn(probability),
        "alone": drawn(0.0),
        "alone_other_starts": drawn(0.0),
    }
    for name, first in WINDOWS.items():
        sequence = with_window(rng, size, probability, num_exchanges, first)
        graphs[name] = NamedGraph(sequence, changes=True)
    usual = METHODS["dpsgd"]
    other = usual._replace(make=lambda p: with_other_starts(usual.make(p), p.task))
    return [
        _one(
            config,
            "dpsgd",
            {},
            scheme=name,
            graph=graph,
            method=other if name == "alone_other_starts" else usual,
        )
        for name, graph in graphs.items()
    ]


def _by_tokens(config: Config) -> list[Case]:
    """D-PSGD of all agents, and fewer and fewer models that wander."""
    found = [
        _one(config, "dpsgd", {}, scheme="dpsgd"),
        _one(config, "all_reduce", {}, scheme="all_reduce"),
    ]
    for number in config.tokens:
        method = Method(_wandering(number))
        scheme = f"tokens_{number}"
        found.append(
            _one(config, "dpsgd", {}, scheme=scheme, method=method, num_training=number)
        )
    return found


def _wandering(number: int) -> Callable[[Problem], Algorithm]:
    graph = pj.graphs.ring(number) if number > 2 else pj.graphs.complete(number)
    return lambda p: pj.teleportation(p.task, p.optimizer, graph, **p.sent)


def with_other_starts(method: Algorithm, task: Task) -> Algorithm:
    """The method with agents that do not start from one model.

    Args:
      method: whose state has the agents' `variables`.
      task: the same as the method's.
    """

    def init_fn(key: Key, data: FederatedData) -> PyTree:
        keys = jax.random.split(jax.random.fold_in(key, 1), num_agents(data))
        return method.init(key, data)._replace(variables=jax.vmap(task.init)(keys))

    return method._replace(init=init_fn)
