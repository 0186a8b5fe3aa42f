"""Graphs by name, made for a number of agents."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from p2pjax import graphs
from p2pjax.graphs.schedule import MAX_DRAWN
from p2pjax.types import InputError

if TYPE_CHECKING:  # it lists the names below
    from experiments.compare.config import Config


class NamedGraph(NamedTuple):
    """A graph, a sequence of graphs, or a function that draws one from a generator."""

    graph: Any
    changes: bool = False  # with each communication


Maker = Callable[["Config"], NamedGraph]


def _fixed(make: Callable[["Config"], Any]) -> Maker:
    return lambda config: NamedGraph(make(config))


def _sequence(make: Callable[["Config"], Any]) -> Maker:
    return lambda config: NamedGraph(make(config), changes=True)


def _drawn(make: Callable[["Config", np.random.Generator], Any]) -> Maker:
    """One graph for each run."""
    return lambda config: NamedGraph(lambda rng: make(config, rng))


def _irregular(make: Callable[["Config", np.random.Generator], Any]) -> Maker:
    """One graph for each run, whose agents have any number of neighbours.

    All runs have tables of one width, so that they share a program: three times the
    neighbours of the mean and 16 more is beyond what is drawn in any number of runs.
    """

    def named(config: "Config") -> NamedGraph:
        width = min(config.num_agents - 1, 3 * _degree(config) + 16)
        return NamedGraph(lambda rng: graphs.pad_width(make(config, rng), width))

    return named


def _rows(config: "Config") -> int:
    """Of a lattice that is as square as possible."""
    size = config.num_agents
    return max(rows for rows in range(1, int(size**0.5) + 1) if size % rows == 0)


def _degree(config: "Config") -> int:
    return config.degree or 3


def _radius(config: "Config") -> float:
    """At which agents on a unit torus have about as many neighbours as asked for."""
    return float(np.sqrt(_degree(config) / (np.pi * config.num_agents)))


def _from_file(config: "Config") -> Any:
    if config.graph_file is None:
        raise InputError("Need --graph_file for --graph=file, got none.")
    return graphs.from_edge_list(config.graph_file, num_agents=config.num_agents)


def _matcha(config: "Config") -> NamedGraph:
    """Matchings of one random regular graph, half of them in each communication."""
    base = graphs.random_regular(config.num_agents, _degree(config), seed=config.seed)
    return NamedGraph(graphs.matcha(base, 0.5), changes=True)


GRAPHS: Mapping[str, Maker] = {
    "ring": _fixed(lambda config: graphs.ring(config.num_agents)),
    "chain": _fixed(lambda config: graphs.chain(config.num_agents)),
    "binary_tree": _fixed(lambda config: graphs.binary_tree(config.num_agents)),
    "star": _fixed(lambda config: graphs.star(config.num_agents)),
    "torus": _fixed(lambda config: graphs.torus(config.num_agents, _rows(config))),
    "grid": _fixed(lambda config: graphs.grid(config.num_agents, _rows(config))),
    "hypercube": _fixed(lambda config: graphs.hypercube(config.num_agents)),
    "exponential": _fixed(lambda config: graphs.exponential(config.num_agents)),
    "complete": _fixed(lambda config: graphs.complete(config.num_agents)),
    "barbell": _fixed(lambda config: graphs.barbell(config.num_agents)),
    "dumbbell": _fixed(
        lambda config: graphs.dumbbell(config.num_agents, seed=config.seed)
    ),
    "two_worlds": _fixed(
        lambda config: graphs.two_worlds(config.num_agents, config.degree or 1)
    ),
    "one_peer_exponential": _sequence(
        lambda config: graphs.one_peer_exponential(config.num_agents)
    ),
    "one_peer_hypercube": _sequence(
        lambda config: graphs.one_peer_hypercube(config.num_agents)
    ),
    "base_k": _sequence(
        lambda config: graphs.base_k(config.num_agents, config.degree or 1)
    ),
    "random_regular": _drawn(
        lambda config, rng: graphs.random_regular(
            config.num_agents, _degree(config), seed=rng
        )
    ),
    "directed_regular": _drawn(
        lambda config, rng: graphs.directed_regular(
            config.num_agents, _degree(config), seed=rng
        )
    ),
    "erdos_renyi": _irregular(
        lambda config, rng: graphs.erdos_renyi(
            config.num_agents,
            min(1.0, _degree(config) / (config.num_agents - 1)),
            seed=rng,
        )
    ),
    "small_world": _irregular(
        lambda config, rng: graphs.small_world(
            config.num_agents, config.degree or 4, 0.1, seed=rng, connected=True
        )
    ),
    "scale_free": _drawn(
        lambda config, rng: graphs.pad_width(  # an agent may hear all others
            graphs.scale_free(config.num_agents, config.degree or 2, seed=rng),
            config.num_agents - 1,
        )
    ),
    "geometric": _irregular(
        lambda config, rng: graphs.geometric(
            config.num_agents, _radius(config), seed=rng, connected=True
        )
    ),
    "moving_geometric": _sequence(
        lambda config: graphs.moving_geometric(
            config.num_agents,
            _radius(config),
            speed=_radius(config) / 4,
            num_graphs=min(config.num_rounds, MAX_DRAWN),
            seed=config.seed,
        )
    ),
    "equi_static": _drawn(
        lambda config, rng: graphs.pad_width(  # the same neighbour may come twice
            graphs.equi_static(config.num_agents, _degree(config), seed=rng),
            1 + _degree(config),
        )
    ),
    "equi_dyn": lambda config: NamedGraph(
        lambda rng: graphs.equi_dyn(config.num_agents, seed=rng), changes=True
    ),
    "matcha": _matcha,
    "file": _fixed(_from_file),
}


def graph_of(config: "Config") -> NamedGraph:
    """The graph that is named."""
    if config.graph_file is not None and config.graph != "file":
        raise InputError(
            f"Need --graph=file for --graph_file, got --graph={config.graph}: leave "
            "one of them out."
        )
    return GRAPHS[config.graph](config)
