"""Who can talk to whom: graphs as padded neighbour tables.

A table is data, not structure: a new graph of the same width does not recompile. Row n
lists the agents that agent n receives from, in increasing order. `generators` and
`clusters` have the named graphs, `conversion` reads graphs of other kinds,
`mixing_matrices` says how much each model counts in a mixing.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from p2pjax.types import Array, InputError, Peers

if TYPE_CHECKING:
    import networkx as nx


class Topology(NamedTuple):
    """Whom each agent receives from; a sequence of graphs has a leading axis G.

    Example:
      >>> from p2pjax.graphs import star
      >>> star(4).mask.sum(1).tolist()  # the centre receives from three agents
      [3, 1, 1, 1]
    """

    neighbor: Array  # [N, D] int32; padding points at the agent itself
    mask: Array  # [N, D] bool; True where there is a neighbour


Graph = Topology | Peers  # one graph or a sequence [G, ...]; Peers bring their weights


# A graph, a sequence of graphs [G, N, D], or a function that draws a graph.
Graphs = Topology | Callable[[np.random.Generator], Topology]


# The same, where a graph may bring its weights.
WeightedGraphs = Graph | Callable[[np.random.Generator], Graph]


AnyGraph = TypeVar("AnyGraph", bound=Graph)


Seed = int | np.random.Generator


def generator(seed: Seed) -> np.random.Generator:
    """A generator for a seed; a generator is passed through and advances."""
    if isinstance(seed, np.random.Generator):
        return seed
    is_whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not is_whole or seed < 0:
        raise InputError(
            "Need a seed that is a whole number of 0 or more, or a "
            f"numpy.random.Generator, got {seed!r}."
        )
    return np.random.default_rng(seed)


def is_sequence(graph: Graph) -> bool:
    """Whether it is a sequence of graphs `[G, ...]`, not one."""
    return graph[0].ndim == 3


def num_agents_of(graph: Graph) -> int:
    """N, of one graph or of a sequence."""
    return graph[0].shape[-2]


def from_graph(graph: "nx.Graph") -> Topology:
    """Any networkx graph on nodes 0 .. N-1; directed edges go sender -> receiver.

    Weights and other attributes of edges are not read.
    """
    num_agents = graph.number_of_nodes()
    if num_agents == 0:
        raise InputError("Need a graph with at least one node, got an empty one.")
    if set(graph.nodes) != set(range(num_agents)):
        raise InputError(
            f"Need a graph whose nodes are 0 to {num_agents - 1}, one per agent: "
            "relabel it with networkx.convert_node_labels_to_integers."
        )
    ends = np.array([edge[:2] for edge in graph.edges()], np.int64).reshape(-1, 2)
    if not graph.is_directed():
        ends = np.concatenate([ends, ends[:, ::-1]])
    return from_edges(num_agents, ends[:, 0], ends[:, 1])


def from_edges(num_agents: int, sender: np.ndarray, receiver: np.ndarray) -> Topology:
    """The table of the edges `sender[e] -> receiver[e]`.

    Repeated edges count once, and edges from an agent to itself do not count: each
    agent has its own model anyway.
    """
    ends = np.append(np.asarray(sender), np.asarray(receiver))
    if len(ends) and ends.dtype.kind not in "iu":
        raise InputError(
            f"Need edges between numbers of agents, got {ends.dtype}: give whole "
            "numbers."
        )
    sender, receiver = np.asarray(sender, np.int64), np.asarray(receiver, np.int64)
    if num_agents < 1 or (len(ends) and not 0 <= ends.min() <= ends.max() < num_agents):
        raise InputError(
            "Need one agent or more and edges between agents 0 to "
            f"{num_agents - 1}, got {num_agents} agents and edges of "
            f"{np.unique(ends)}."
        )
    is_edge = sender != receiver
    by_receiver = np.unique(receiver[is_edge] * num_agents + sender[is_edge])
    receiver, sender = np.divmod(by_receiver, num_agents)
    slot, width = _slots(num_agents, receiver)
    neighbor = np.tile(np.arange(num_agents, dtype=np.int32)[:, None], (1, width))
    neighbor[receiver, slot] = sender
    mask = np.zeros((num_agents, width), bool)
    mask[receiver, slot] = True
    return Topology(neighbor, mask)


def weighted_edges(
    num_agents: int,
    sender: np.ndarray,
    receiver: np.ndarray,
    weight: np.ndarray,
    own: np.ndarray,
) -> Peers:
    """The weights of edges, sorted by receiver, and of each agent's own model.

    Args:
      num_agents: N.
      sender: `[E]`, different from the receiver; no edge is repeated.
      receiver: `[E]`, in increasing order.
      weight: `[E]`, of the dtype of the result.
      own: `[N]`.
    """
    slot, width = _slots(num_agents, receiver)
    ids = np.tile(np.arange(num_agents, dtype=np.int32)[:, None], (1, 1 + width))
    ids[receiver, 1 + slot] = sender
    table = np.zeros(ids.shape, weight.dtype)
    table[:, 0] = own
    table[receiver, 1 + slot] = weight
    return Peers(ids, table)


def _slots(num_agents: int, receiver: np.ndarray) -> tuple[np.ndarray, int]:
    """The slot `[E]` of each edge, sorted by receiver, and how many a table needs."""
    degree = np.bincount(receiver, minlength=num_agents)
    slot = np.arange(len(receiver)) - (np.cumsum(degree) - degree)[receiver]
    return slot, max(1, int(degree.max()))


def from_peers(peers: Peers) -> Topology:
    """The links of a mixing matrix: where the weight of another agent is not 0."""
    if is_sequence(peers):
        return stack([from_peers(one) for one in unstack(peers)])
    ids = np.asarray(peers.ids)
    receiver, slot = np.nonzero(np.asarray(peers.weight))
    return from_edges(len(ids), ids[receiver, slot], receiver)


def edges(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """Sender and receiver of each edge, `[E]` each; of a sequence, in any graph."""
    mask = np.asarray(topology.mask)
    receiver = np.nonzero(mask)[-2]
    return np.asarray(topology.neighbor)[mask].astype(np.int64), receiver


def is_directed(graph: Topology) -> bool:
    """Whether an agent sends to one that does not send back, in any graph."""
    if is_sequence(graph):
        return any(map(is_directed, unstack(graph)))
    sender, receiver = edges(graph)
    num_agents = len(graph.mask)
    there, back = sender * num_agents + receiver, receiver * num_agents + sender
    return not np.array_equal(np.sort(there), np.sort(back))


def check_undirected(graph: Topology) -> None:
    """Refuses graphs on which Metropolis-Hastings weights are not doubly stochastic.

    They are on undirected graphs, and on directed ones whose degrees are all the same.
    """
    if is_sequence(graph):
        for one in unstack(graph):
            check_undirected(one)
        return
    is_regular = len(np.unique([in_degrees(graph), out_degrees(graph)])) == 1
    if not is_regular and is_directed(graph):
        raise InputError(
            "Need an undirected graph for Metropolis-Hastings weights, which are not "
            "doubly stochastic on this directed one: use uniform_receive, or a graph "
            "whose edges go both ways."
        )


def check_peers(peers: Peers) -> None:
    """Refuses what is no matrix as `weights` makes it."""
    if not isinstance(peers, Peers):
        raise InputError(
            f"Need weights of agents (Peers), got {type(peers).__name__}: "
            "graphs.weights makes them of a matrix, graphs.metropolis_hastings and "
            "others of a graph."
        )


def receivers(topology: Topology) -> Topology:
    """The transpose: row n lists the agents that agent n sends to."""
    if is_sequence(topology):
        return stack([receivers(graph) for graph in unstack(topology)])
    sender, receiver = edges(topology)
    return from_edges(len(topology.mask), receiver, sender)


def in_degrees(topology: Topology) -> np.ndarray:
    """How many agents each agent receives from, `[..., N]`."""
    return np.asarray(topology.mask).sum(-1)


def out_degrees(topology: Topology) -> np.ndarray:
    """How many agents each agent sends to, `[..., N]`."""
    return in_degrees(receivers(topology))


def stack(graphs: Sequence[AnyGraph]) -> AnyGraph:
    """A sequence of graphs as one table with a leading axis, padded to one width."""
    if any(map(is_sequence, graphs)):
        raise InputError("Need one graph after the other, got a sequence among them.")
    sizes = {num_agents_of(graph) for graph in graphs}
    if len(sizes) != 1:
        raise InputError(
            "Need one or more graphs of the same agents, got graphs of "
            f"{sorted(sizes)} agents."
        )
    width = max(graph[0].shape[1] for graph in graphs)
    ids, other = zip(*(pad_width(graph, width) for graph in graphs), strict=True)
    return type(graphs[0])(np.stack(ids), np.stack(other))


def pad_width(graph: AnyGraph, width: int) -> AnyGraph:
    """The same graph with that many slots, of which the last are not used.

    Functions that draw graphs in which agents have any number of neighbours give them
    one width with it, so that no run has to be compiled again. Slots that are added
    point at the agent itself and have no link, or weight 0.

    Args:
      graph: `[N, D]`, of any width up to this one.
      width: D then.

    Example:
      >>> import p2pjax as pj
      >>> drawn = lambda rng: pj.graphs.pad_width(
      ...     pj.graphs.erdos_renyi(8, 0.5, seed=rng), 7
      ... )
      >>> drawn(np.random.default_rng(0)).mask.shape
      (8, 7)
    """
    ids, other = (np.asarray(leaf) for leaf in graph)
    missing = width - ids.shape[1]
    if missing < 0:
        raise InputError(
            f"Need a graph of at most {width} neighbours, got one of {ids.shape[1]}: "
            "give a larger width."
        )
    own = np.arange(len(ids), dtype=np.int32)[:, None]
    ids = np.append(ids, np.tile(own, (1, missing)), axis=1)
    return type(graph)(ids, np.pad(other, ((0, 0), (0, missing))))


def unstack(graphs: AnyGraph) -> list[AnyGraph]:
    """The graphs of a sequence `[G, ...]`."""
    return [type(graphs)(*one) for one in zip(*graphs, strict=True)]


def union(graphs: Topology) -> Topology:
    """All links that ever exist in a sequence of graphs `[R, N, D]`."""
    return from_edges(graphs.mask.shape[-2], *edges(graphs))


def random_matchings(num_agents: int, num_rounds: int, *, seed: Seed) -> np.ndarray:
    """Partner of each agent in each round, `[R, N]`.

    If the number of agents is odd, one agent per round has no partner and is listed as
    its own.
    """
    order = np.tile(np.arange(num_agents), (num_rounds, 1))
    order = generator(seed).permuted(order, axis=1)
    pairs = order[:, : num_agents // 2 * 2].reshape(num_rounds, -1, 2)
    partner = np.tile(np.arange(num_agents, dtype=np.int32), (num_rounds, 1))
    for mine, other in ((0, 1), (1, 0)):
        np.put_along_axis(partner, pairs[..., mine], pairs[..., other], axis=1)
    return partner
