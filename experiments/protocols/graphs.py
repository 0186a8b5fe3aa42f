"""Graphs by the names of the literature, made for a number of agents.

Most are those of `experiments.compare`; here are their degrees, graphs that are drawn
for each exchange, and those of the study merge.
"""

from collections.abc import Callable, Mapping

import numpy as np

from experiments.compare.config import Config as ComparedConfig
from experiments.compare.graphs import GRAPHS as COMPARED
from experiments.compare.graphs import NamedGraph
from p2pjax.graphs.analysis import dense_matrix
from p2pjax.graphs.epidemic import epidemic_local, epidemic_oracle
from p2pjax.graphs.generators import complete
from p2pjax.graphs.mixing_matrices import matching_graph, uniform_receive
from p2pjax.graphs.topology import (
    Topology,
    is_sequence,
    random_matchings,
    stack,
    unstack,
)
from p2pjax.types import Peers

Maker = Callable[[ComparedConfig], NamedGraph]
USUAL_DEGREE = 3


def _named(name: str, degree: int | None = None) -> Maker:
    def make(config: ComparedConfig) -> NamedGraph:
        own = ComparedConfig(
            num_agents=config.num_agents,
            seed=config.seed,
            num_rounds=config.num_rounds,
            degree=degree or config.degree,
        )
        return COMPARED[name](own)

    return make


def _epidemic(draw: Callable[..., Topology], num_peers: int | None = None) -> Maker:
    def make(config: ComparedConfig) -> NamedGraph:
        number = num_peers or config.degree or USUAL_DEGREE
        draw(config.num_agents, number, seed=0)  # refused now, not later
        return NamedGraph(
            lambda rng: draw(config.num_agents, number, seed=rng), changes=True
        )

    return make


def _matchings(config: ComparedConfig) -> NamedGraph:
    size = config.num_agents
    return NamedGraph(
        lambda rng: matching_graph(random_matchings(size, 1, seed=rng)[0]), changes=True
    )


GRAPHS: Mapping[str, Maker] = {
    "ring": _named("ring"),
    "chain": _named("chain"),
    "torus": _named("torus"),
    "exponential": _named("exponential"),
    "complete": _named("complete"),
    "one_peer_exponential": _named("one_peer_exponential"),
    "base_2": _named("base_k", 1),
    "base_3": _named("base_k", 2),
    "base_4": _named("base_k", 3),
    "base_5": _named("base_k", 4),
    "el_oracle_1": _epidemic(epidemic_oracle, 1),
    "el_local_1": _epidemic(epidemic_local, 1),
    "el_local_2": _epidemic(epidemic_local, 2),
    "el_oracle": _epidemic(epidemic_oracle),
    "el_local": _epidemic(epidemic_local),
    "matchings": _matchings,
    "random_regular": _named("random_regular"),
    "erdos_renyi": _named("erdos_renyi"),
}


def matrices(
    named: NamedGraph, rng: np.random.Generator, num_mixings: int
) -> np.ndarray:
    """The mixing matrices of a run, `[T, N, N]`, with weights that mean uniformly.

    Args:
      named: the graph, sequence or function that draws one.
      rng: draws.
      num_mixings: T.
    """
    graph = named.graph
    if callable(graph):
        number = num_mixings if named.changes else 1
        graphs = [graph(rng) for _ in range(number)]
    else:
        graphs = unstack(graph) if is_sequence(graph) else [graph]
    found = [
        dense_matrix(one if isinstance(one, Peers) else uniform_receive(one))
        for one in graphs
    ]
    return np.stack([found[t % len(found)] for t in range(num_mixings)])


def hear_one(rng: np.random.Generator, num_agents: int, probability: float) -> Topology:
    """Each agent hears one other with some probability, else none.

    Args:
      rng: draws.
      num_agents: N.
      probability: of each agent.
    """
    own = np.arange(num_agents, dtype=np.int32)
    other = (own + rng.integers(1, num_agents, num_agents)) % num_agents
    hears = rng.random(num_agents) < probability
    neighbor = np.where(hears, other, own).astype(np.int32)
    return Topology(neighbor[:, None], hears[:, None])


def with_window(
    rng: np.random.Generator,
    num_agents: int,
    probability: float,
    num_exchanges: int,
    first: float,
    share: float = 0.05,
) -> Topology:
    """As `hear_one` in all exchanges, but for some in which all hear all.

    Args:
      rng: draws.
      num_agents: N.
      probability: of hearing one agent elsewhere.
      num_exchanges: of a run.
      first: where the window begins, a share of all exchanges; earlier where it would
        not end in time.
      share: of all exchanges that are in the window.
    """
    length = max(1, round(share * num_exchanges))
    begin = min(round(first * num_exchanges), num_exchanges - length)
    return stack(
        [
            complete(num_agents)
            if begin <= number < begin + length
            else hear_one(rng, num_agents, probability)
            for number in range(num_exchanges)
        ]
    )
