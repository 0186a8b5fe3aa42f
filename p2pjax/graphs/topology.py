"""Who can talk to whom: graphs as padded neighbour tables.

A table is data, not structure: a new graph of the same width does not recompile.
Row n lists whom agent n receives from, in increasing order. `graphs` has the named
graphs beyond the three here, `weights` what the agents' models count in a mixing.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np

from p2pjax.types import Array, InputError


class Topology(NamedTuple):
    """Whom every agent receives from; a sequence of graphs has a leading axis."""

    neighbor: Array  # [N, D] int32; padding points at the agent itself
    mask: Array  # [N, D] bool; True where there is a neighbour


# A graph, a sequence of graphs [G, N, D], or a function that draws a graph.
Graphs = Topology | Callable[[np.random.Generator], Topology]


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
    ends = np.array(list(graph.edges()), np.int64).reshape(-1, 2)
    if not graph.is_directed():
        ends = np.concatenate([ends, ends[:, ::-1]])
    return from_edges(num_agents, ends[:, 0], ends[:, 1])


def from_edges(num_agents: int, sender: np.ndarray, receiver: np.ndarray) -> Topology:
    """The table of the edges `sender[e] -> receiver[e]`.

    Repeated edges count once, and edges from an agent to itself do not count: everybody
    has their own model anyway.
    """
    sender, receiver = np.asarray(sender, np.int64), np.asarray(receiver, np.int64)
    ends = np.append(sender, receiver)
    if num_agents < 1 or (len(ends) and not 0 <= ends.min() <= ends.max() < num_agents):
        raise InputError(
            "Need one agent or more and edges between agents 0 to "
            f"{num_agents - 1}, got {num_agents} agents and edges of "
            f"{np.unique(ends)}."
        )
    is_edge = sender != receiver
    by_receiver = np.unique(receiver[is_edge] * num_agents + sender[is_edge])
    receiver, sender = np.divmod(by_receiver, num_agents)
    degree = np.bincount(receiver, minlength=num_agents)
    slot = np.arange(len(receiver)) - (np.cumsum(degree) - degree)[receiver]
    width = max(1, int(degree.max()))
    neighbor = np.tile(np.arange(num_agents, dtype=np.int32)[:, None], (1, width))
    neighbor[receiver, slot] = sender
    return Topology(neighbor, np.arange(width) < degree[:, None])


def edges(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """Sender and receiver of every edge, `[E]` each; of a sequence, in any graph."""
    mask = np.asarray(topology.mask)
    receiver = np.nonzero(mask)[-2]
    return np.asarray(topology.neighbor)[mask].astype(np.int64), receiver


def receivers(topology: Topology) -> Topology:
    """The transpose: row n lists whom agent n sends to."""
    if topology.mask.ndim == 3:
        return stack([receivers(graph) for graph in unstack(topology)])
    sender, receiver = edges(topology)
    return from_edges(len(topology.mask), receiver, sender)


def in_degrees(topology: Topology) -> np.ndarray:
    """How many agents each agent receives from, `[..., N]`."""
    return np.asarray(topology.mask).sum(-1)


def out_degrees(topology: Topology) -> np.ndarray:
    """How many agents each agent sends to, `[..., N]`."""
    return in_degrees(receivers(topology))


def stack(topologies: Sequence[Topology]) -> Topology:
    """A sequence of graphs as one table with a leading axis, padded to one width."""
    sizes = {len(topology.mask) for topology in topologies}
    if len(sizes) != 1:
        raise InputError(
            "Need one or more graphs of the same agents, got graphs of "
            f"{sorted(sizes)} agents."
        )
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


def unstack(graphs: Topology) -> list[Topology]:
    """The graphs of a sequence `[G, N, D]`."""
    return [Topology(*one) for one in zip(graphs.neighbor, graphs.mask, strict=True)]


def union(graphs: Topology) -> Topology:
    """All links that ever exist in a sequence of graphs `[R, N, D]`."""
    return from_edges(graphs.mask.shape[-2], *edges(graphs))


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
