"""Anything that is a graph, taken as one: networkx graphs, edges, matrices, functions.

`as_graph` is what methods call on the graph that a user gives them.
"""

import sys
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any

import numpy as np

from p2pjax.graphs import own_matrices
from p2pjax.graphs.analysis import SUM_TOLERANCE, column_sums
from p2pjax.graphs.edge_lists import agents_of_edges, from_pairs
from p2pjax.graphs.topology import (
    Graph,
    Graphs,
    Topology,
    WeightedGraphs,
    from_edges,
    from_graph,
    is_sequence,
    num_agents_of,
    stack,
)
from p2pjax.types import InputError, Peers

GraphLike = Any  # all that `as_graph` takes


def as_graph(
    graph: Any, num_agents: int | None = None, *, directed: bool = False
) -> WeightedGraphs:
    """Takes anything that is a graph, a sequence of graphs, or draws a graph.

    * a `Topology` or `Peers` (see `weights`), which are returned as they are;
    * a networkx graph on nodes 0 .. N-1, whose directed edges go from sender to
      receiver; one whose edges have weights other than 1 is refused;
    * edges: pairs of agents or an array `[E, 2]`, undirected unless `directed`; an
      empty list has no edges and needs `num_agents`;
    * a matrix `[N, N]` of zeros and ones, dense or a sparse one of scipy: row =
      receiver; a real-valued one is refused, `weights` takes it;
    * a list, tuple or array `[G, ...]` of any of these, which becomes a sequence;
    * a function of a `numpy.random.Generator` that returns any of these but a sequence.

    Edges from an agent to itself do not count, repeated ones count once. A 2 x 2 table
    of zeros and ones may be two edges or a matrix of two agents. It is a matrix if it
    is of bools, edges if `num_agents` is not 2, and refused where it can be either and
    the two differ.

    Args:
      graph: see above.
      num_agents: N, which the graph must have; needed for edges where agents without
        any edge exist.
      directed: whether edges given as pairs are (sender, receiver), not both ways;
        other kinds of graphs say themselves whether they are directed.

    Returns:
      A `Topology` `[N, D]` or `[G, N, D]`, `Peers` `[N, K]` or `[G, N, K]`, or a
      function that draws one `Topology` or `Peers`.

    >>> as_graph([(0, 1), (1, 2)]).mask.sum(1).tolist()
    [1, 2, 1]
    >>> as_graph([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).mask.sum(1).tolist()
    [1, 2, 1]
    """
    graph = _listed(graph)
    if _is_function(graph):
        return _drawing(graph, num_agents, directed)
    if not _is_list_of_graphs(graph):
        return _same_size([_read(graph, num_agents, directed)], num_agents, directed)[0]
    read = [_read(_listed(one), num_agents, directed) for one in graph]
    found = _same_size(read, num_agents, directed)
    if len(set(map(type, found))) > 1 or any(map(is_sequence, found)):
        raise InputError(
            "Need a sequence of single graphs, either all with weights of their own or "
            "all without, got a mixture."
        )
    return stack(found)


def as_topology(
    graph: Any, num_agents: int | None = None, *, directed: bool = False
) -> Graphs:
    """As `as_graph`, for methods that weigh models themselves: refuses weights.

    Args:
      graph: anything that `as_graph` reads.
      num_agents: N, which the graph must have.
      directed: whether edges given as pairs are (sender, receiver), not both ways.

    Returns:
      A `Topology` `[N, D]` or `[G, N, D]`, or a function that draws one.

    Example:
      >>> as_topology([(0, 1), (1, 2)], num_agents=3).mask.sum(1).tolist()  # degrees
      [1, 2, 1]
    """
    found = as_graph(graph, num_agents, directed=directed)
    if isinstance(found, Topology | Peers):
        return _without_weights(found)
    return lambda rng: _without_weights(found(rng))


def _without_weights(graph: Graph) -> Topology:
    if isinstance(graph, Peers):
        raise InputError(
            "Need a graph without weights, because this method itself decides how much "
            "models count, got weights: give only the links."
        )
    return graph


def _drawing(
    draw: Callable[..., Any], num_agents: int | None, directed: bool
) -> Callable[[np.random.Generator], Graph]:
    def draw_fn(rng: np.random.Generator) -> Graph:
        drawn = as_graph(draw(rng), num_agents, directed=directed)
        if not isinstance(drawn, Topology | Peers) or is_sequence(drawn):
            raise InputError(
                "Need a function that draws one graph at a time, got one that returns "
                "a sequence of graphs or another function."
            )
        return drawn

    return draw_fn


def _listed(graph: Any) -> Any:
    """Sets, views and iterators of edges or graphs as lists; others as they are."""
    if isinstance(graph, str | bytes | PathLike):
        raise InputError(
            f"Need a graph, got the text or path {str(graph)!r}: read a file of edges "
            "with from_edge_list."
        )
    is_known = isinstance(graph, list | tuple | dict) or hasattr(graph, "ndim")
    if is_known or _is_networkx(graph):
        return graph
    return list(graph) if isinstance(graph, Iterable) else graph


def _is_function(graph: Any) -> bool:
    """Whether it draws graphs; networkx's views of edges can be called too."""
    return callable(graph) and not isinstance(graph, Iterable)


def _is_networkx(graph: Any) -> bool:
    """Without importing networkx: who has such a graph has imported it."""
    networkx = sys.modules.get("networkx")
    return networkx is not None and isinstance(graph, networkx.Graph)


def _is_list_of_graphs(graph: Any) -> bool:
    if isinstance(graph, Topology | Peers) or not isinstance(graph, list | tuple):
        return getattr(graph, "ndim", 0) == 3
    return any(
        isinstance(one, Topology | Peers)
        or _is_networkx(one)
        or _is_function(one)
        or own_matrices.depth(_listed(one)) >= 2
        for one in graph
    )


def _same_size(
    found: list[Graph | np.ndarray], num_agents: int | None, directed: bool
) -> list[Graph]:
    """Edges `[E, 2]` become graphs of as many agents as the other graphs have."""
    edges = [one for one in found if isinstance(one, np.ndarray)]
    sizes = {num_agents_of(one) for one in found if not isinstance(one, np.ndarray)}
    if num_agents is None:
        num_agents = max(sizes) if sizes else agents_of_edges(edges, "the list")
    if sizes - {num_agents}:
        raise InputError(
            f"Need graphs of {num_agents} agents, got one of "
            f"{min(sizes - {num_agents})}."
        )
    return [
        from_pairs(one, num_agents, directed) if isinstance(one, np.ndarray) else one
        for one in found
    ]


def _read(graph: Any, num_agents: int | None, directed: bool) -> Graph | np.ndarray:
    """One graph, or the edges `[E, 2]` of one whose number of agents is not known."""
    if isinstance(graph, Topology):
        return _checked_topology(graph)
    if isinstance(graph, Peers):
        return _checked_peers(graph)
    if _is_networkx(graph):
        return _from_networkx(graph)
    if own_matrices.is_sparse(graph):
        return _from_matrix(graph)
    if isinstance(graph, list | tuple) and not graph:
        return np.zeros((0, 2), np.int64)
    if own_matrices.depth(graph) != 2:
        raise InputError(
            "Need a networkx graph, edges [E, 2], a matrix [N, N], a sequence of them, "
            f"or a function that draws one, got {type(graph).__name__} "
            f"{str(graph)[:60]!r}."
        )
    table = own_matrices.numbers(graph)
    if table.shape == (2, 2):
        is_bool = np.asarray(graph).dtype == bool
        return _from_two_by_two(table, is_bool, num_agents, directed)
    if table.shape[0] == table.shape[1]:
        return _from_matrix(table)
    if table.shape[1] == 2:
        return _pairs(table)
    raise InputError(
        f"Need edges [E, 2] or a matrix [N, N], got shape {table.shape}: weights of "
        "edges belong into a matrix, see weights."
    )


def _from_networkx(graph: Any) -> Topology:
    if any(data.get("weight", 1) != 1 for *_, data in graph.edges(data=True)):
        raise InputError(
            "Need a graph whose edges count the same, got one with weights: give "
            "list(graph.edges) to leave them out, or weights(matrix) for a mixing "
            "matrix of your own."
        )
    return from_graph(graph)


def _from_matrix(matrix: Any) -> Topology:
    found = own_matrices.entries(matrix)
    is_other = found.value != 1
    if is_other.any():
        raise InputError(
            "Need zeros and ones in the matrix of a graph, got "
            f"{found.value[is_other][0]}: weights(matrix) takes a mixing matrix of "
            "your own."
        )
    return from_edges(found.num_agents, found.sender, found.receiver)


def _from_two_by_two(
    table: np.ndarray, is_bool: bool, num_agents: int | None, directed: bool
) -> Topology | np.ndarray:
    """A matrix of two agents or two edges, see `as_graph`."""
    if is_bool or (table % 1 != 0).any() or (table < 0).any():
        return _from_matrix(table)
    ends = _pairs(table)
    if ends.max() > 1 or num_agents not in (None, 2):
        return ends
    matrix = _from_matrix(table)
    links = from_pairs(ends, 2, directed)
    is_sure = num_agents == 2 or links.mask.any()  # of there being two agents
    if is_sure and np.array_equal(matrix.mask, links.mask):
        return ends
    raise InputError(
        "Need a graph that can be read in one way, got a 2 x 2 table of zeros and "
        f"ones, {table.astype(int).tolist()}, two edges or a matrix: give a matrix of "
        "bools, or a networkx graph of the edges."
    )


def _pairs(table: np.ndarray) -> np.ndarray:
    if not np.isfinite(table).all() or (table % 1 != 0).any() or (table < 0).any():
        raise InputError(
            "Need edges between agents that are numbered from 0, got numbers that are "
            f"not whole or below 0, such as {table[(table % 1 != 0) | (table < 0)][0]}."
        )
    return table.astype(np.int64)


def _checked_topology(graph: Topology) -> Topology:
    neighbor, mask = np.asarray(graph.neighbor), np.asarray(graph.mask)
    _check_shapes(neighbor, mask)
    own = np.arange(neighbor.shape[-2])[:, None]
    if mask.dtype != bool or ((neighbor == own) != ~mask).any():
        raise InputError(
            "Need a Topology whose neighbours are other agents where the mask is True, "
            "and whose padding points at the agent itself: build it with as_graph."
        )
    width = neighbor.shape[-1]
    other = np.sort(np.where(mask, neighbor, -1 - np.arange(width)), axis=-1)
    if (np.diff(other, axis=-1) == 0).any():
        raise InputError(
            "Need a Topology that lists each neighbour once, got an agent that has one "
            "twice: build it with as_graph."
        )
    return graph


def _checked_peers(peers: Peers) -> Peers:
    ids, weight = np.asarray(peers.ids), np.asarray(peers.weight, np.float64)
    _check_shapes(ids, weight)
    if (ids[..., 0] != np.arange(ids.shape[-2])).any() or not np.isfinite(weight).all():
        raise InputError(
            "Need Peers with the agent itself in slot 0 and finite weights: build them "
            "with weights(matrix)."
        )
    off = [np.abs(sums - 1).max() for sums in (weight.sum(-1), column_sums(peers))]
    if min(off) > SUM_TOLERANCE:
        raise InputError(
            "Need weights whose rows sum to 1, or whose columns do for push-sum, got "
            f"rows that are off by up to {off[0]:.3g}."
        )
    return peers


def _check_shapes(ids: np.ndarray, other: np.ndarray) -> None:
    if ids.shape != other.shape or ids.ndim not in (2, 3) or not ids.size:
        raise InputError(
            "Need two tables of one shape, [N, D] or [G, N, D], got "
            f"{ids.shape} and {other.shape}."
        )
    if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= ids.shape[-2]:
        raise InputError(
            f"Need agents 0 to {ids.shape[-2] - 1} in the table, got {ids.dtype} from "
            f"{ids.min()} to {ids.max()}."
        )
