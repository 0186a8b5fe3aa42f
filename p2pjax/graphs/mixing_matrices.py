"""Mixing matrices of a graph.

The constructors give `Peers` of one graph `[N, D]` and may be traced, so a graph that
changes does not recompile. Row = receiver: `out[n] = sum_j matrix[n, j] * in[j]`.
On a graph whose degrees are all k, `uniform_receive`, `uniform_send` and
`metropolis_hastings` are the same: 1 / (k + 1) each.
"""

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.graphs.topology import (
    Topology,
    check_peers,
    check_undirected,
    is_sequence,
)
from p2pjax.types import LOCAL, Array, InputError, Peers, PyTree


def uniform_receive(graph: Topology) -> Peers:
    """Row-stochastic: each agent takes the plain mean of its model and what arrives.

    Args:
      graph: `[N, D]`.

    >>> from p2pjax.graphs import star
    >>> print(uniform_receive(star(3)).weight[1])  # own, agent 0, padding
    [0.5 0.5 0. ]
    """
    graph = _one_graph(graph)
    own = 1 / (1 + _num_links(graph))  # [N]
    return _peers(graph, own, jnp.broadcast_to(own[:, None], graph.mask.shape))


def uniform_send(graph: Topology) -> Peers:
    """Column-stochastic: each agent splits its model among its receivers and itself.

    Rows do not sum to one unless the graph is regular; push-sum methods correct that:
    Assran et al. (2019), "Stochastic gradient push for distributed deep learning",
    https://arxiv.org/abs/1811.10792.

    Args:
      graph: `[N, D]`.

    >>> from p2pjax.graphs import star
    >>> print(uniform_send(star(4)).weight.sum(1))
    [1.75 0.75 0.75 0.75]
    """
    graph = _one_graph(graph)
    arrives = jnp.asarray(graph.mask).astype(float)  # of the present width
    num_agents = arrives.shape[0]
    num_receivers = jnp.zeros(num_agents).at[graph.neighbor].add(arrives)
    own = 1 / (1 + num_receivers)  # [N]
    return _peers(graph, own, own[graph.neighbor])


def metropolis_hastings(graph: Topology) -> Peers:
    """Symmetric and doubly stochastic, for undirected graphs.

    1 / (1 + the larger of the two degrees) for neighbours, the rest for the agent
    itself. Xiao, Boyd, Lall (2005), "A scheme for robust distributed sensor fusion
    based on average consensus", https://doi.org/10.1109/IPSN.2005.1440896.

    Args:
      graph: `[N, D]`.

    >>> from p2pjax.graphs import ring
    >>> metropolis_hastings(ring(5)).weight.shape  # own and two neighbours, 1/3 each
    (5, 3)
    """
    graph = _one_graph(graph)
    if not _is_traced(graph):
        check_undirected(graph)
    return metropolis(graph, np.zeros(graph.mask.shape[0], np.int32))


def size_weighted(graph: Topology, sizes: Array) -> Peers:
    """Row-stochastic: models count as much as their agents have training examples.

    Args:
      graph: `[N, D]`.
      sizes: examples of each agent, `[N]`. Where neither an agent nor those it hears
        have any, it keeps its model.

    >>> from p2pjax.graphs import ring
    >>> print(size_weighted(ring(3), np.array([6, 3, 1])).weight[0])
    [0.6 0.3 0.1]
    """
    graph = _one_graph(graph)
    if not _is_traced(sizes):
        _check_sizes(np.asarray(sizes), len(graph.mask))
    sizes = jnp.asarray(sizes).astype(float)
    theirs = jnp.where(graph.mask, sizes[graph.neighbor], 0)  # [N, D]
    total = sizes + theirs.sum(1)
    is_known = total > 0
    divisor = jnp.where(is_known, total, 1)
    own = jnp.where(is_known, sizes / divisor, 1)
    return _peers(graph, own, theirs / divisor[:, None])


def lazy(peers: Peers) -> Peers:
    """(matrix + identity) / 2: no eigenvalue below 0 where the matrix is symmetric.

    Args:
      peers: `[N, K]` or `[G, N, K]`.

    >>> from p2pjax.graphs import complete, uniform_receive
    >>> print(lazy(uniform_receive(complete(2))).weight)
    [[0.75 0.25]
     [0.75 0.25]]
    """
    check_peers(peers)
    half = peers.weight / 2
    return Peers(peers.ids, jnp.asarray(half).at[..., 0].add(0.5))


def _is_traced(tree: PyTree) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def _one_graph(graph: Topology) -> Topology:
    """Reads anything that is a graph `[N, D]`, and checks it outside of traces."""
    if isinstance(graph, Topology) and _is_traced(graph):
        return graph
    from p2pjax.graphs.conversion import as_topology  # which needs this module

    found = as_topology(graph)
    if not isinstance(found, Topology) or is_sequence(found):
        raise InputError(
            "Need one graph for a mixing matrix, got a sequence or a function that "
            "draws graphs: use jax.vmap, or give these to the method."
        )
    return found


def _check_sizes(sizes: np.ndarray, num_agents: int) -> None:
    if sizes.shape != (num_agents,) or not (np.isfinite(sizes) & (sizes >= 0)).all():
        raise InputError(
            f"Need a number of examples of 0 or more for each of {num_agents} agents, "
            f"got {sizes.tolist()}: give data.train.size."
        )


def _num_links(graph: Topology) -> Array:
    return jnp.asarray(graph.mask).astype(float).sum(1)


def _peers(graph: Topology, own: Array, share: Array) -> Peers:
    """Slot 0 is the agent itself; padding points at it with weight zero."""
    agent = jnp.arange(own.shape[0], dtype=jnp.int32)[:, None]
    ids = jnp.where(graph.mask, graph.neighbor, agent)
    weight = jnp.concatenate([own[:, None], jnp.where(graph.mask, share, 0)], axis=1)
    return Peers(jnp.concatenate([agent, ids], axis=1), weight)


def metropolis(
    topology: Topology, owner: np.ndarray, weight: Array | None = None
) -> Peers:
    """Metropolis weights on the graph restricted to edges between equal owners.

    With weights per agent, the Metropolis-Hastings chain whose stationary law is the
    weights: repeated mixing reaches the weighted mean of every connected group.
    """
    linked = same_owner(topology, owner)  # [N, D]
    degree = linked.sum(1).astype(float)  # [N]
    larger = jnp.maximum(degree[:, None], degree[topology.neighbor])
    share = linked.astype(float) / (1 + larger)
    if weight is not None:
        weight = jnp.asarray(weight, share.dtype)
        share = share * jnp.minimum(1, weight[topology.neighbor] / weight[:, None])
    return _with_self(topology, linked, share)


def pairwise_weights(
    partner: Array, owner: np.ndarray, weight: Array | None = None
) -> Peers:
    """Both ends of a matched pair with equal owner take their (weighted) mean."""
    topology = matching_graph(partner)
    linked = same_owner(topology, owner)
    share = linked.astype(float) / 2
    if weight is not None:
        weight = jnp.asarray(weight, share.dtype)
        theirs = weight[topology.neighbor]
        share = linked.astype(float) * theirs / (weight[:, None] + theirs)
    return _with_self(topology, linked, share)


def matching_graph(partner: Array) -> Topology:
    """A matching `[N]` as a graph of width one; a lone agent is its own partner."""
    if not _is_traced(partner):
        _check_matching(np.asarray(partner))
    own = jnp.arange(partner.shape[0], dtype=partner.dtype)
    return Topology(partner[:, None], (partner != own)[:, None])


def _check_matching(partner: np.ndarray) -> None:
    own = np.arange(len(partner))
    known = partner.ndim == 1 and partner.dtype.kind in "iu"
    if not known or not np.isin(partner, own).all() or (partner[partner] != own).any():
        raise InputError(
            f"Need a matching [N] in which the partner of each agent has it as its "
            f"partner, got {partner.tolist()}: an agent without one is its own."
        )


def same_owner(topology: Topology, owner: np.ndarray) -> Array:
    """`[N, D]`: links whose two ends average the parameters of this class."""
    owners = jnp.asarray(owner, jnp.int32)
    mine = owners[:, None]
    return topology.mask & (owners[topology.neighbor] == mine) & (mine != LOCAL)


def _with_self(topology: Topology, linked: Array, share: Array) -> Peers:
    """Adds slot 0, the remainder; links that do not count point at the agent itself.

    So a neighbour's values cannot leak through a weight of zero (0 * inf).
    """
    own = jnp.arange(linked.shape[0], dtype=jnp.int32)[:, None]
    ids = jnp.where(linked, topology.neighbor, own)
    weight = jnp.concatenate([1 - share.sum(1, keepdims=True), share], axis=1)
    return Peers(jnp.concatenate([own, ids], axis=1), weight)
