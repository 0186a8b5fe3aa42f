"""Trees, spanning trees of graphs, and what agents have to know to relay on them."""

from collections import deque
from typing import NamedTuple

import numpy as np

from p2pjax.graphs.conversion import GraphLike, as_graph
from p2pjax.graphs.topology import (
    Topology,
    from_edges,
    from_peers,
    is_directed,
    is_sequence,
)
from p2pjax.types import Array, InputError, Peers


class Relays(NamedTuple):
    """A tree `[N, D]`; padding points at the agent itself."""

    neighbor: Array
    mask: Array
    slot_at_neighbor: Array  # where the agent is in its neighbour's row
    agents_behind: Array  # how many are reached through the neighbour


def chain(num_agents: int) -> Topology:
    """Agents in a row: each talks to those before and after it.

    Args:
      num_agents: N.

    >>> chain(4).mask.sum(1).tolist()
    [1, 2, 2, 1]
    """
    return _of_parents(np.arange(num_agents) - 1)


def binary_tree(num_agents: int) -> Topology:
    """Agent i talks to agents 2 i + 1 and 2 i + 2, and to its parent.

    Args:
      num_agents: N; the last agents are leaves, 2^d - 1 agents fill all levels.

    >>> binary_tree(6).neighbor.tolist()  # padding points at the agent itself
    [[1, 2, 0], [0, 3, 4], [0, 5, 2], [1, 3, 3], [1, 4, 4], [2, 5, 5]]
    """
    return _of_parents((np.arange(num_agents) - 1) // 2)


def bfs_tree(graph: GraphLike, root: int = 0) -> Topology:
    """The breadth-first spanning tree of a connected undirected graph, `[N, D]`.

    Each agent's path to the root is as short as in the graph; of several possible
    parents it has the one with the lowest number.

    Args:
      graph: who receives from whom: see `as_graph`.
      root: number of the agent in the middle.

    >>> from p2pjax.graphs import ring
    >>> bfs_tree(ring(5)).mask.sum(1).tolist()  # degrees: a ring without one edge
    [2, 2, 1, 1, 2]
    """
    found = as_graph(graph)
    if isinstance(found, Peers):
        found = from_peers(found)
    if not isinstance(found, Topology) or is_sequence(found):
        raise InputError(
            "Need one graph for a spanning tree, got a sequence or a function that "
            "draws graphs: give one of them."
        )
    if is_directed(found):
        raise InputError(
            "Need an undirected graph for a spanning tree, got one in which an agent "
            "sends to one that does not send back."
        )
    size = len(found.mask)
    if not 0 <= root < size:
        raise InputError(f"Need a root among 0 to {size - 1}, got {root}.")
    neighbor, mask = np.asarray(found.neighbor), np.asarray(found.mask)
    depth = np.full(size, -1)
    depth[root] = 0
    queue = deque([root])
    while queue:
        agent = queue.popleft()
        for other in neighbor[agent][mask[agent]]:
            if depth[other] < 0:
                depth[other] = depth[agent] + 1
                queue.append(int(other))
    if (depth < 0).any():
        raise InputError(
            "Need a connected graph for a spanning tree, got one in which agent "
            f"{depth.argmin()} cannot be reached from agent {root}."
        )
    is_parent = mask & (depth[neighbor] == depth[:, None] - 1)  # [N, D]
    parent = np.where(is_parent, neighbor, size).min(1)
    return _of_parents(np.where(depth > 0, parent, -1))


def relay_tables(tree: Topology) -> Relays:
    """What agents of a tree have to know of it, `[N, D]` each.

    Args:
      tree: such as `bfs_tree` makes.

    >>> from p2pjax.graphs import ring
    >>> relay_tables(bfs_tree(ring(4))).agents_behind.tolist()
    [[2, 1], [2, 1], [3, 0], [3, 0]]
    """
    neighbor, mask = np.asarray(tree.neighbor), np.asarray(tree.mask)
    size = len(mask)
    if mask.sum() != 2 * (size - 1):
        raise InputError(
            f"Need a tree of {size - 1} edges for RelaySGD, got {mask.sum() // 2}: use "
            "graphs.bfs_tree."
        )
    slot = np.zeros_like(neighbor)
    behind = np.zeros_like(neighbor)
    edges = list(zip(*np.nonzero(mask), strict=True))
    for agent, place in edges:
        other = neighbor[agent, place]
        slot[agent, place] = np.flatnonzero((neighbor[other] == agent) & mask[other])[0]
    for _ in range(size):  # counts reach one hop farther each time
        total = 1 + behind.sum(1, keepdims=True) - behind  # [N, D] behind the agent
        behind = np.where(mask, total[neighbor, slot], 0)
    return Relays(neighbor, mask, slot, behind.astype(np.int32))


def _of_parents(parent: np.ndarray) -> Topology:
    """The tree in which agent i has this parent; the root has one below 0."""
    child = np.flatnonzero(parent >= 0)
    return from_edges(
        len(parent), np.append(child, parent[child]), np.append(parent[child], child)
    )
