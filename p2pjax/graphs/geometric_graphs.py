"""Agents at places, who hear those that are near; the places may move.

Places are on the unit torus: a square of side 1 whose opposite sides touch, so that no
agent is at a border.
"""

import numpy as np

from p2pjax.graphs.topology import Seed, Topology, from_edges, generator, stack
from p2pjax.types import InputError


def geometric(
    num_agents: int, radius: float, *, seed: Seed, connected: bool = False
) -> Topology:
    """Agents at random places hear those at a distance below a radius.

    Gilbert (1961), "Random plane networks", https://doi.org/10.1137/0109045.

    Args:
      num_agents: N.
      radius: in parts of the side of the square.
      seed: draws the places, uniformly.
      connected: join the nearest two agents of different components until there is one
        component.

    >>> graph = geometric(16, 0.3, seed=0)
    >>> graph.mask.shape[0]
    16
    """
    places = _places(num_agents, radius, generator(seed))
    return _near(places, radius, connected)


def moving_geometric(
    num_agents: int,
    radius: float,
    *,
    speed: float,
    num_graphs: int,
    seed: Seed,
    connected: bool = False,
) -> Topology:
    """A `geometric` graph whose agents move between two graphs of a sequence.

    From one graph to the next each agent moves in a random direction by a random
    length. Give `rewire_every=1` to a method for a graph per round.

    Args:
      num_agents: N.
      radius: in parts of the side of the square.
      speed: the largest length of a move.
      num_graphs: G.
      seed: draws places and moves.
      connected: as in `geometric`, for each graph alone.

    Returns:
      A `Topology` `[G, N, D]`, as wide as its densest graph.

    >>> graphs = moving_geometric(16, 0.3, speed=0.1, num_graphs=5, seed=0)
    >>> graphs.mask.shape[:2]
    (5, 16)
    """
    if num_graphs < 1 or not 0 <= speed < np.inf:
        raise InputError(
            "Need one graph or more and a speed of 0 or more, got "
            f"num_graphs={num_graphs} and speed={speed}."
        )
    rng = generator(seed)
    places = _places(num_agents, radius, rng)
    found = []
    for _ in range(num_graphs):
        found.append(_near(places, radius, connected))
        angle = rng.uniform(0, 2 * np.pi, num_agents)
        length = rng.uniform(0, speed, num_agents)
        move = length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        places = (places + move) % 1
    return stack(found)


def _places(num_agents: int, radius: float, rng: np.random.Generator) -> np.ndarray:
    """Uniform on the torus, `[N, 2]`."""
    if num_agents < 1 or not 0 < radius < np.inf:
        raise InputError(
            "Need one agent or more and a radius above 0, got "
            f"{num_agents} agents and radius={radius}."
        )
    return rng.uniform(size=(num_agents, 2))


def _near(places: np.ndarray, radius: float, connected: bool) -> Topology:
    """Who is at a distance below the radius."""
    apart = np.abs(places[:, None] - places)
    distance = np.linalg.norm(np.minimum(apart, 1 - apart), axis=-1)  # [N, N]
    is_link = distance < radius
    if connected:
        is_link |= _joining(is_link, distance)
    sender, receiver = np.nonzero(is_link)
    return from_edges(len(places), sender, receiver)


def _joining(is_link: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """`[N, N]`: the shortest links that make one component of several."""
    from scipy import sparse

    added = np.zeros_like(is_link)
    while True:
        graph = sparse.csr_array(is_link | added)
        parts, label = sparse.csgraph.connected_components(graph, directed=False)
        if parts == 1:
            return added
        between = np.where(label[:, None] != label, distance, np.inf)
        i, j = np.unravel_index(between.argmin(), between.shape)
        added[i, j] = added[j, i] = True
