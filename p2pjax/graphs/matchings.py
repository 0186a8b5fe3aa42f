"""Matchings of a graph, of which each exchange uses some at random (MATCHA).

Wang, Sahu, Yang, Joshi, Kar (2019), "MATCHA: speeding up decentralized SGD via matching
decomposition sampling", https://arxiv.org/abs/1905.09435.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from p2pjax.graphs.conversion import GraphLike, as_topology
from p2pjax.graphs.topology import (
    Graph,
    Topology,
    edges,
    from_edges,
    is_directed,
    is_sequence,
)
from p2pjax.types import InputError, Peers


def edge_matchings(graph: GraphLike) -> np.ndarray:
    """Splits the links of a graph into matchings: the partner of each agent, `[M, N]`.

    No agent has two links in one matching, so a matching is an exchange of pairs. A
    greedy colouring of the links, those with most neighbours first; at most twice the
    largest degree, mostly the degree or one more.

    Args:
      graph: undirected, see `as_graph`.

    Returns:
      Partners `[M, N]`, in increasing order; an agent without one is its own.

    >>> from p2pjax.graphs import ring
    >>> edge_matchings(ring(4)).tolist()
    [[1, 0, 3, 2], [3, 2, 1, 0]]
    """
    import networkx as nx

    links = as_topology(graph)
    if not isinstance(links, Topology) or is_sequence(links) or is_directed(links):
        raise InputError(
            "Need one graph whose links go both ways to split it into matchings, got "
            "a directed one, a sequence, or a function that draws graphs."
        )
    ends = sorted({(int(a), int(b)) for a, b in zip(*edges(links), strict=True)})
    undirected = nx.empty_graph(len(links.mask))
    undirected.add_edges_from(pair for pair in ends if pair[0] < pair[1])
    if not undirected.number_of_edges():
        raise InputError("Need a graph with links to split into matchings, got none.")
    color = nx.greedy_color(nx.line_graph(undirected), "largest_first")
    num_agents = len(links.mask)
    partner = np.tile(
        np.arange(num_agents, dtype=np.int32), (1 + max(color.values()), 1)
    )
    for (i, j), number in color.items():
        partner[number, i], partner[number, j] = j, i
    return partner[np.lexsort(partner.T[::-1])]  # colours have no order


def matcha(
    graph: GraphLike,
    probability: float | Sequence[float] = 0.5,
    *,
    alpha: float | None = None,
    weighted: bool = True,
) -> Callable[[np.random.Generator], Graph]:
    """Draws, for each exchange, which matchings of a graph take place.

    Each matching is there with its probability, independently of the others, so that a
    share of the graph's messages is sent. The matrix of an exchange is I - alpha L, of
    the Laplacian L of the links that are there; own weights may be below 0 where an
    agent has more than 1 / alpha of them. Give `rewire_every=graphs.COMMUNICATION` to a
    method. Wang et al. (2019), https://arxiv.org/abs/1905.09435.

    Args:
      graph: undirected, see `as_graph`.
      probability: of all matchings, or of each of `edge_matchings(graph)`.
      alpha: of the matrix; None: what shrinks disagreement most, `best_alpha`.
      weighted: whether graphs bring these weights; else a method's own count, such as
        Metropolis-Hastings of the links that are there.

    Returns:
      A function that draws one graph from a `numpy.random.Generator`.

    >>> from p2pjax.graphs import ring
    >>> draw = matcha(ring(4), 0.5)
    >>> draw(np.random.default_rng(1)).ids.shape  # own, and a slot per matching
    (4, 3)
    """
    partner = edge_matchings(graph)
    chance = _probabilities(probability, len(partner))
    if alpha is None and weighted:
        alpha, _ = best_alpha(partner, chance)
    elif alpha is not None and not (weighted and 0 < alpha < np.inf):
        raise InputError(
            f"Need an alpha above 0, and weights that it belongs to, got alpha={alpha} "
            f"and weighted={weighted}."
        )
    own = np.arange(partner.shape[1], dtype=np.int32)

    def draw_fn(rng: np.random.Generator) -> Graph:
        is_active = rng.random(len(partner)) < chance
        other = np.where(is_active[:, None], partner, own).T  # [N, M]
        is_link = other != own[:, None]
        if not weighted:
            receiver, slot = np.nonzero(is_link)
            return _widened(
                from_edges(len(own), other[receiver, slot], receiver), len(partner)
            )
        dtype = jax.dtypes.canonicalize_dtype(np.float64)
        share = is_link * np.float64(alpha or 0.0)
        weight = np.append(1 - share.sum(1, keepdims=True), share, axis=1)
        return Peers(np.append(own[:, None], other, axis=1), weight.astype(dtype))

    return draw_fn


def best_alpha(partner: np.ndarray, probability: np.ndarray) -> tuple[float, float]:
    """The alpha that shrinks disagreement most in the mean, and its squared factor.

    The largest eigenvalue of the mean of W^2 - J, a convex function of alpha.

    Args:
      partner: matchings `[M, N]`.
      probability: of each, `[M]`.
    """
    from scipy import optimize

    identity = np.eye(partner.shape[1])
    laplacian = identity - identity[partner]  # [M, N, N]
    mean = np.tensordot(probability, laplacian, 1)
    spread = np.tensordot(probability * (1 - probability), laplacian, 1)

    def factor(alpha: float) -> float:
        square = identity - 2 * alpha * mean + alpha**2 * (mean @ mean + 2 * spread)
        return float(np.linalg.eigvalsh(square - 1 / len(identity))[-1])

    # 1 is too much for any graph: its Laplacian has an eigenvalue of 2 or more.
    found = optimize.minimize_scalar(
        factor, bounds=(0, 1), method="bounded", options={"xatol": 1e-9}
    )
    return float(found.x), float(found.fun)


def _widened(graph: Topology, width: int) -> Topology:
    """With padding, so that all draws have one shape."""
    missing = max(0, width - graph.mask.shape[1])
    own = np.arange(len(graph.mask), dtype=np.int32)[:, None]
    return Topology(
        np.append(np.asarray(graph.neighbor), np.tile(own, (1, missing)), axis=1),
        np.pad(graph.mask, ((0, 0), (0, missing))),
    )


def _probabilities(probability: float | Sequence[float], number: int) -> np.ndarray:
    found = np.asarray(probability, np.float64)
    if found.shape not in ((), (number,)) or not ((found > 0) & (found <= 1)).all():
        raise InputError(
            "Need a probability above 0 and up to 1, of all matchings or of each of "
            f"{number}, got {probability}."
        )
    return np.broadcast_to(found, (number,))
