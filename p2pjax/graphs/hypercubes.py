"""Hypercubes: agents are neighbours whose numbers differ in one binary digit."""

import numpy as np

from p2pjax.graphs.topology import Topology, from_edges, stack
from p2pjax.types import InputError


def hypercube(num_agents: int) -> Topology:
    """Agent i talks to i xor 1, i xor 2, i xor 4, ...: log2 N neighbours.

    The spectral gap of its Metropolis-Hastings weights is 2 / (1 + log2 N).

    Args:
      num_agents: N, a power of two.

    >>> hypercube(8).neighbor[0].tolist()
    [1, 2, 4]
    """
    agent, bits = np.arange(num_agents), _bits(num_agents)
    other = (agent ^ bits[:, None]).ravel()
    return from_edges(num_agents, np.tile(agent, len(bits)), other)


def one_peer_hypercube(num_agents: int) -> Topology:
    """The edges of `hypercube`, one binary digit at a time: a sequence `[G, N, 1]`.

    Agents talk in pairs, and after one pass all of them have the mean: give
    `rewire_every=graphs.COMMUNICATION` to a method. It is `base_k(N, 1)` without
    weights of its own; those of Metropolis-Hastings are 1/2 here.

    Args:
      num_agents: N, a power of two.

    >>> one_peer_hypercube(8).neighbor[:, 0, 0].tolist()  # agent 0 hears 1, 2, then 4
    [1, 2, 4]
    """
    agent = np.arange(num_agents)
    return stack(
        [from_edges(num_agents, agent, agent ^ bit) for bit in _bits(num_agents)]
    )


def _bits(num_agents: int) -> np.ndarray:
    if num_agents < 2 or num_agents & (num_agents - 1):
        raise InputError(
            f"Need a power of two, 2 or more, as the number of agents of a hypercube, "
            f"got {num_agents}: base_k reaches the mean with any number."
        )
    return 1 << np.arange(num_agents.bit_length() - 1)
