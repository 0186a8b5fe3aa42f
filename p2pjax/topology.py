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


def ring(num_agents: int, *, directed: bool = False) -> Topology:
    """Everybody has two neighbours; directed, i sends to i + 1 only."""
    kind = nx.DiGraph if directed else nx.Graph
    return from_graph(nx.cycle_graph(range(num_agents), create_using=kind))


def complete(num_agents: int) -> Topology:
    """Everybody talks to everybody."""
    return from_graph(nx.complete_graph(range(num_agents)))


def random_regular(rng: np.random.Generator, num_agents: int, degree: int) -> Topology:
    """A uniformly random simple graph in which everybody has `degree` neighbours.

    It is undirected. Of degree 2 it mostly falls into several rings: `ring` is one.
    """
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


def varying(
    draw: Callable[[np.random.Generator], Topology],
    rng: np.random.Generator,
    num_graphs: int,
) -> Topology:
    """A sequence of independently drawn graphs, `[G, N, D]`.

    Example: `varying(partial(random_regular, num_agents=100, degree=3), rng, 20)`.
    """
    if num_graphs < 1:
        raise InputError(f"Need one graph or more in a sequence, got {num_graphs}.")
    return stack([draw(rng) for _ in range(num_graphs)])


def graph_of_epoch(epoch: np.ndarray, switch_every: int, num_graphs: int) -> np.ndarray:
    """Which graph of a sequence is in use in each network epoch.

    A graph serves `switch_every` epochs; after the last one the first comes again.

    >>> graph_of_epoch(np.arange(7), switch_every=2, num_graphs=3).tolist()
    [0, 0, 1, 1, 2, 2, 0]
    """
    if switch_every < 1 or num_graphs < 1:
        raise InputError(
            "Need graphs that serve one epoch or more, and one graph or more, got "
            f"switch_every={switch_every} and {num_graphs} graphs."
        )
    return (np.asarray(epoch) // switch_every % num_graphs).astype(np.int32)


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


def check_rewiring(graph: Graphs, rewire_every: int | None) -> None:
    """Refuses a sequence that nothing switches, and switching without a sequence."""
    is_sequence = callable(graph) or graph.mask.ndim == 3
    if rewire_every is not None and (rewire_every < 1 or not is_sequence):
        raise InputError(
            "Need rewire_every of 1 or more and a sequence of graphs or a function "
            f"that draws them, got rewire_every={rewire_every} and "
            f"{'graphs' if is_sequence else 'one graph'}."
        )
    if rewire_every is None and not callable(graph) and is_sequence:
        raise InputError(
            "Need rewire_every for a sequence of graphs, got None: give the number of "
            "network epochs after which the next graph comes."
        )


def graphs_of_rounds(
    rng: np.random.Generator,
    graph: Graphs,
    rewire_every: int | None,
    size: int,
    num_rounds: int,
) -> tuple[Topology, np.ndarray]:
    """The graphs `[G, N, D]` of a run, and which of them each round uses, `[R]`."""
    if callable(graph):
        num_graphs = 1 if rewire_every is None else -(-num_rounds // rewire_every)
        graphs = varying(graph, rng, num_graphs)
    else:
        graphs = graph if graph.mask.ndim == 3 else stack([graph])
    if graphs.mask.shape[1] != size:
        raise InputError(
            f"Need a graph of as many agents as the data have, {size}, got one of "
            f"{graphs.mask.shape[1]}."
        )
    of_round = graph_of_epoch(
        np.arange(num_rounds), rewire_every or num_rounds, len(graphs.mask)
    )
    return graphs, of_round
