"""Who can talk to whom: graphs as padded neighbour tables.

A table is data, not structure: a new graph of the same width does not recompile.
Row n lists whom agent n receives from.
"""

from collections.abc import Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np

from p2pjax.types import Array, InputError


class Topology(NamedTuple):
    """Neighbours of every agent; time-varying graphs have a leading axis R."""

    neighbor: Array  # [N, D] int32; padding points at the agent itself
    mask: Array  # [N, D] bool; True where there is a neighbour


def from_graph(graph: nx.Graph) -> Topology:
    """Any networkx graph on nodes 0 .. N-1; directed edges go sender -> receiver."""
    num_agents = graph.number_of_nodes()
    if num_agents == 0:
        raise InputError("Need a graph with at least one node, got an empty one.")
    if set(graph.nodes) != set(range(num_agents)):
        raise InputError(
            f"Need a graph whose nodes are 0 to {num_agents - 1}, one per agent: "
            "relabel it with networkx.convert_node_labels_to_integers."
        )
    senders = graph.predecessors if graph.is_directed() else graph.neighbors
    rows = [sorted(set(senders(node)) - {node}) for node in range(num_agents)]
    width = max(1, max(map(len, rows)))
    neighbor = np.tile(np.arange(num_agents, dtype=np.int32)[:, None], (1, width))
    mask = np.zeros((num_agents, width), bool)
    for node, row in enumerate(rows):
        neighbor[node, : len(row)] = row
        mask[node, : len(row)] = True
    return Topology(neighbor, mask)


def ring(num_agents: int) -> Topology:
    """Everybody has two neighbours."""
    return from_graph(nx.cycle_graph(num_agents))


def complete(num_agents: int) -> Topology:
    """Everybody talks to everybody."""
    return from_graph(nx.complete_graph(num_agents))


def random_regular(rng: np.random.Generator, num_agents: int, degree: int) -> Topology:
    """A uniformly random simple graph in which everybody has `degree` neighbours."""
    if not 0 < degree < num_agents or num_agents * degree % 2:
        raise InputError(
            f"Need 0 < degree < {num_agents} (the number of agents) and an even "
            f"product of the two, got degree {degree}."
        )
    seed = int(rng.integers(2**31))
    if 2 * degree < num_agents:
        return from_graph(nx.random_regular_graph(degree, num_agents, seed=seed))
    # Pairing points at random hardly ever succeeds for dense graphs; their
    # complements are as uniform and quickly found.
    sparse = nx.random_regular_graph(num_agents - 1 - degree, num_agents, seed=seed)
    return from_graph(nx.complement(sparse))


def stack(topologies: Sequence[Topology]) -> Topology:
    """A sequence of graphs as one table with leading axis R, padded to one width."""
    width = max(topology.mask.shape[1] for topology in topologies)

    def widened(topology: Topology) -> Topology:
        num_agents, degree = topology.mask.shape
        own = np.tile(np.arange(num_agents, dtype=np.int32)[:, None], (1, width))
        mask = np.zeros((num_agents, width), bool)
        own[:, :degree] = topology.neighbor
        mask[:, :degree] = topology.mask
        return Topology(own, mask)

    neighbor, mask = zip(*map(widened, topologies), strict=True)
    return Topology(np.stack(neighbor), np.stack(mask))


def union(graphs: Topology) -> Topology:
    """All links that ever exist in a sequence of graphs `[R, N, D]`."""
    num_agents = graphs.mask.shape[1]
    linked = np.zeros((num_agents, num_agents), bool)
    _, receivers, _ = np.nonzero(graphs.mask)
    linked[receivers, np.asarray(graphs.neighbor)[np.asarray(graphs.mask)]] = True
    return from_graph(nx.from_numpy_array(linked.T, create_using=nx.DiGraph))


def random_matchings(
    rng: np.random.Generator, num_agents: int, num_rounds: int
) -> np.ndarray:
    """Partner of every agent in every round, `[R, N]`; who has none is its own."""
    order = rng.permuted(np.tile(np.arange(num_agents), (num_rounds, 1)), axis=1)
    pairs = order[:, : num_agents // 2 * 2].reshape(num_rounds, -1, 2)
    partner = np.tile(np.arange(num_agents, dtype=np.int32), (num_rounds, 1))
    for mine, other in ((0, 1), (1, 0)):
        np.put_along_axis(partner, pairs[..., mine], pairs[..., other], axis=1)
    return partner


def num_components(topology: Topology, owner: np.ndarray, group: int) -> int:
    """Parts into which the agents of one owner group fall when only they talk."""
    members = set(np.flatnonzero(owner == group).tolist())
    graph = nx.Graph()
    graph.add_nodes_from(members)
    for node in members:
        for other, linked in zip(
            topology.neighbor[node], topology.mask[node], strict=True
        ):
            if linked and int(other) in members:
                graph.add_edge(node, int(other))
    return nx.number_connected_components(graph)
