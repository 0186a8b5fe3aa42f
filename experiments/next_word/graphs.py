"""Graphs of `experiments.next_word`: rings, sparse ones, irregular ones."""

import numpy as np

from p2pjax.graphs import generators
from p2pjax.graphs.topology import Graphs, Topology, from_edges
from p2pjax.types import InputError


def graph_of(name: str, num_agents: int, degree: int, *, directed: bool) -> Graphs:
    """The graph, or how to draw one.

    Args:
      name: ring, sparse or irregular.
      num_agents: N.
      degree: whom each agent hears and reaches, in irregular graphs on average; rings
        have their own.
      directed: whether links go one way only, as all of irregular graphs do.
    """
    if name == "ring":
        return generators.ring(num_agents, directed=directed)
    if name == "irregular":
        if not directed:
            raise InputError(
                "Need directed links for --graph=irregular, got --nodirected: leave it "
                "out, or choose --graph=sparse."
            )
        irregular(num_agents, degree, np.random.default_rng(0))
        return lambda rng: irregular(num_agents, degree, rng)
    draw = generators.directed_regular if directed else generators.random_regular
    draw(num_agents, degree, seed=0)  # refuses what is not possible
    return lambda rng: draw(num_agents, degree, seed=rng)


def irregular(num_agents: int, degree: int, rng: np.random.Generator) -> Topology:
    """A random cycle through all agents, and links drawn independently.

    The cycle makes it strongly connected. Agents hear and reach different numbers of
    others, so that the weights of receivers (D-PSGD) are not those of senders (SGP).

    Args:
      num_agents: N.
      degree: mean number of others that an agent hears.
      rng: draws the graph.
    """
    if not 1 < degree < num_agents - 1:
        raise InputError(
            f"Need 1 < degree < {num_agents - 1} for an irregular graph of "
            f"{num_agents} agents, got --degree={degree}."
        )
    order = rng.permutation(num_agents)
    links = np.zeros((num_agents, num_agents), bool)
    links[order, np.roll(order, 1)] = True
    free = ~(links | np.eye(num_agents, dtype=bool))
    links |= free & (rng.random(links.shape) < (degree - 1) / (num_agents - 2))
    receiver, sender = np.nonzero(links)
    return from_edges(num_agents, sender, receiver)
