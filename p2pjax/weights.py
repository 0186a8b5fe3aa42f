"""Mixing matrices of a graph, and what they promise.

The constructors give `mixing.Peers` of one graph `[N, D]` and may be traced, so a graph
that changes does not recompile. Row = receiver: `out[n] = sum_j matrix[n, j] * in[j]`.
On a graph whose degrees are all k the first three are the same: 1 / (k + 1) each.

The analysis runs on the host. Weights are float32, so eigenvalues are exact to about
1e-6: compare them with a margin.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from p2pjax import mixing, topology
from p2pjax.mixing import Peers
from p2pjax.topology import Topology
from p2pjax.types import Array, InputError


def uniform_receive(graph: Topology) -> Peers:
    """Row-stochastic: everybody takes the plain mean of what arrives and its own."""
    own = 1 / (1 + _num_links(graph))  # [N]
    return _peers(graph, own, jnp.broadcast_to(own[:, None], graph.mask.shape))


def uniform_send(graph: Topology) -> Peers:
    """Column-stochastic: everybody splits its model among its receivers and itself.

    Rows do not sum to one unless the graph is regular; push-sum methods correct that.
    """
    arrives = graph.mask.astype(jnp.float32)
    num_agents = arrives.shape[0]
    num_receivers = jnp.zeros(num_agents).at[graph.neighbor].add(arrives)
    own = 1 / (1 + num_receivers)  # [N]
    return _peers(graph, own, own[graph.neighbor])


def metropolis_hastings(graph: Topology) -> Peers:
    """Symmetric and doubly stochastic, for undirected graphs.

    1 / (1 + the larger of the two degrees) for neighbours, the rest for oneself.
    """
    return mixing.metropolis(graph, np.zeros(graph.mask.shape[0], np.int32))


def size_weighted(graph: Topology, sizes: Array) -> Peers:
    """Row-stochastic: models count as much as their agents have training examples.

    Args:
      graph: `[N, D]`.
      sizes: examples of every agent, `[N]`. Where neither an agent nor anybody it hears
        has any, it keeps its model.
    """
    sizes = jnp.asarray(sizes).astype(jnp.float32)
    theirs = jnp.where(graph.mask, sizes[graph.neighbor], 0)  # [N, D]
    total = sizes + theirs.sum(1)
    is_known = total > 0
    divisor = jnp.where(is_known, total, 1)
    own = jnp.where(is_known, sizes / divisor, 1)
    return _peers(graph, own, theirs / divisor[:, None])


def lazy(peers: Peers) -> Peers:
    """(matrix + identity) / 2: no eigenvalue below 0 where the matrix is symmetric."""
    half = peers.weight / 2
    return Peers(peers.ids, jnp.asarray(half).at[..., 0].add(0.5))


def _num_links(graph: Topology) -> Array:
    return graph.mask.astype(jnp.float32).sum(1)


def _peers(graph: Topology, own: Array, share: Array) -> Peers:
    """Slot 0 is the agent itself; padding points at it with weight zero."""
    agent = jnp.arange(own.shape[0], dtype=jnp.int32)[:, None]
    ids = jnp.where(graph.mask, graph.neighbor, agent)
    weight = jnp.concatenate([own[:, None], jnp.where(graph.mask, share, 0)], axis=1)
    return Peers(jnp.concatenate([agent, ids], axis=1), weight)


def dense_matrix(peers: Peers) -> np.ndarray:
    """The matrix `[..., N, N]` on the host, in float64; a sequence keeps its axis."""
    ids, weight = np.asarray(peers.ids), np.asarray(peers.weight, np.float64)
    matrix = np.zeros((*ids.shape[:-1], ids.shape[-2]))
    np.add.at(matrix, (*np.indices(ids.shape)[:-1], ids), weight)
    return matrix


def smallest_eigenvalue(peers: Peers) -> float:
    """Of a symmetric matrix; D2 needs more than -1/3 (Tang et al. 2018)."""
    matrix = dense_matrix(peers)
    if matrix.ndim != 2 or not np.allclose(matrix, matrix.T, atol=1e-6):
        raise InputError(
            "Need one symmetric matrix for a smallest eigenvalue, got one that is not "
            "symmetric, or a sequence: use Metropolis-Hastings weights of an "
            "undirected graph."
        )
    return float(np.linalg.eigvalsh(matrix)[0])


def spectral_gap(peers: Peers) -> float:
    """1 - the second largest modulus of an eigenvalue: how fast models agree.

    0 means that they never do. For a sequence `[G, N, K]` of matrices it is the mean
    gap per mixing: that of the product of all, whose modulus is spread over G.
    Takes seconds for a thousand agents.
    """
    matrix = dense_matrix(peers)
    sequence = matrix if matrix.ndim == 3 else matrix[None]
    product = np.eye(matrix.shape[-1])
    for one in sequence:
        product = one @ product
    modulus = np.sort(np.abs(np.linalg.eigvals(product)))[::-1]
    second = modulus[1] if len(modulus) > 1 else 0.0
    return float(1 - min(1.0, second) ** (1 / len(sequence)))


def is_directed(graph: Topology) -> bool:
    """Whether somebody sends to an agent that does not send back, in any graph."""
    if graph.mask.ndim == 3:
        return any(map(is_directed, topology.unstack(graph)))
    sender, receiver = topology.edges(graph)
    num_agents = len(graph.mask)
    there, back = sender * num_agents + receiver, receiver * num_agents + sender
    return not np.array_equal(np.sort(there), np.sort(back))


def is_strongly_connected(graph: Topology) -> bool:
    """Whether everybody's model reaches everybody.

    For a sequence of graphs that is repeated: over all of them together.
    """
    sender, receiver = topology.edges(graph)
    num_agents = graph.mask.shape[-2]
    links = sparse.coo_array(
        (np.ones(len(sender), bool), (sender, receiver)), (num_agents, num_agents)
    )
    parts, _ = sparse.csgraph.connected_components(links.tocsr(), connection="strong")
    return bool(parts == 1)


def warn_if_directed(graph: Topology, method_name: str) -> bool:
    """Warns where a method's theory needs undirected graphs; returns whether it did."""
    outside = is_directed(graph)
    if outside:
        warnings.warn(
            f"The theory of {method_name} needs an undirected graph, and this one is "
            "directed: results are outside theory.",
            stacklevel=2,
        )
    return outside


def warn_if_not_strongly_connected(graph: Topology, method_name: str) -> bool:
    """Warns where models cannot reach all agents; returns whether it did."""
    outside = not is_strongly_connected(graph)
    if outside:
        warnings.warn(
            f"The theory of {method_name} needs a strongly connected graph, and here "
            "some models never reach some agents: no consensus of all is possible.",
            stacklevel=2,
        )
    return outside


def report(graph: Topology) -> dict[str, float | int | bool]:
    """What an experiment writes about its graph, or its sequence of graphs.

    The spectral gap is that of Metropolis-Hastings weights if the graph is undirected,
    else of uniform receiving.
    """
    directed = is_directed(graph)
    weigh = uniform_receive if directed else metropolis_hastings
    over_graphs = jax.vmap(weigh) if graph.mask.ndim == 3 else weigh
    heard, reached = topology.in_degrees(graph), topology.out_degrees(graph)
    return {
        "agents": int(heard.shape[-1]),
        "mean_degree": float(heard.mean()),
        "smallest_in_degree": int(heard.min()),
        "largest_in_degree": int(heard.max()),
        "smallest_out_degree": int(reached.min()),
        "largest_out_degree": int(reached.max()),
        "directed": directed,
        "strongly_connected": is_strongly_connected(graph),
        "spectral_gap": spectral_gap(over_graphs(graph)),
    }
