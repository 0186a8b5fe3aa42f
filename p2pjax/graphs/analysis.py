"""What can be said of a graph and of its mixing matrix, on the host.

Weights are float32, so eigenvalues are exact to about 1e-6: compare them with a margin.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from p2pjax.graphs import consensus
from p2pjax.graphs.mixing_matrices import metropolis_hastings, uniform_receive
from p2pjax.graphs.topology import (
    Graph,
    Seed,
    Topology,
    check_peers,
    edges,
    from_peers,
    generator,
    in_degrees,
    is_directed,
    is_sequence,
    out_degrees,
)
from p2pjax.types import InputError, Peers

SUM_TOLERANCE = 1e-5  # of rows and columns of float32 weights


def num_components(topology: Topology, owner: np.ndarray, group: int) -> int:
    """Parts into which the agents of one owner group fall when only they talk."""
    import networkx as nx

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


def is_row_stochastic(peers: Peers) -> bool:
    """Whether weights are not negative and those of each receiver sum to 1."""
    weight = np.asarray(peers.weight, np.float64)
    return bool((weight >= 0).all() and _are_ones(weight.sum(-1)))


def is_column_stochastic(peers: Peers) -> bool:
    """Whether weights are not negative and those of each sender's model sum to 1."""
    weight = np.asarray(peers.weight, np.float64)
    return bool((weight >= 0).all() and _are_ones(column_sums(peers)))


def is_doubly_stochastic(peers: Peers) -> bool:
    """Whether a mixing, each one of a sequence, keeps the mean of all models.

    Args:
      peers: `[N, K]` or `[G, N, K]`.

    >>> from p2pjax.graphs import metropolis_hastings, star, uniform_receive
    >>> is_doubly_stochastic(metropolis_hastings(star(4)))
    True
    >>> is_doubly_stochastic(uniform_receive(star(4)))
    False
    """
    check_peers(peers)
    return is_row_stochastic(peers) and is_column_stochastic(peers)


def check_sums(peers: Peers, *, push_sum: bool = False) -> None:
    """Refuses weights that are not finite, or whose rows do not sum to 1.

    Args:
      peers: `[N, K]` or `[G, N, K]`.
      push_sum: whether it is the columns that have to.
    """
    weight = np.asarray(peers.weight, np.float64)
    sums = column_sums(peers) if push_sum else weight.sum(-1)
    if np.isfinite(weight).all() and _are_ones(sums):
        return
    line, mend = "rows", "divide each by its sum, or use a push-sum method such as SGP"
    if push_sum:
        line, mend = "columns", "use uniform_send, or weights(matrix, push_sum=True)"
    off = sums.ravel()[np.abs(sums - 1).argmax()]
    raise InputError(
        f"Need weights whose {line} sum to 1, got one of {off:.7g}: {mend}."
    )


def column_sums(peers: Peers) -> np.ndarray:
    """How much each agent's model counts in all mixings together, `[..., N]`."""
    ids, weight = np.asarray(peers.ids), np.asarray(peers.weight, np.float64)
    sums = np.zeros(ids.shape[:-1])
    np.add.at(sums, (*np.indices(ids.shape)[:-2], ids), weight)
    return sums


def _are_ones(sums: np.ndarray) -> bool:
    return bool((np.abs(sums - 1) <= SUM_TOLERANCE).all())


def spectral_gap(graph: Graph) -> float:
    """1 - the second largest modulus of an eigenvalue: how fast models agree.

    0 means that they never do. For a sequence of matrices it is the mean gap per
    mixing: that of the product of all, whose modulus is spread over G. Takes seconds
    for a thousand agents. See `contraction` for one pass through a sequence.

    Args:
      graph: weights `[N, K]` or `[G, N, K]`, or a graph without: then those of
        Metropolis-Hastings if it is undirected, else of uniform receiving.

    >>> from p2pjax.graphs import complete, ring
    >>> round(spectral_gap(complete(8)), 3), round(spectral_gap(ring(8)), 3)
    (1.0, 0.195)
    """
    matrices = _matrices(graph)
    if not _are_ones(matrices.sum(-1)):  # for push-sum; eigenvalues are the same
        matrices = matrices[::-1].swapaxes(1, 2)
    left = consensus.disagreement(matrices)
    modulus = np.abs(np.linalg.eigvals(left.matrix)).max()
    factor = consensus.per_mixing(modulus, left.log_scale, len(matrices))
    return float(1 - min(1.0, factor))


def contraction(graph: Graph) -> float:
    """1 - the factor by which a mixing shrinks disagreement at least, per mixing.

    The factor is the largest singular value of (product of all matrices - J), spread
    over the mixings of a sequence: of symmetric matrices this is the `spectral_gap`,
    of directed or changing ones it is what can be relied on after one pass, while the
    gap is about many. 1: exact agreement in one pass. 0: some disagreement stays; below
    0: some grows at first. Where the mean of models is not kept, J is replaced by what
    it becomes; weights for push-sum are taken as push-sum corrects them.

    Args:
      graph: weights `[N, K]` or `[G, N, K]`, or a graph without: see `spectral_gap`.

    >>> from p2pjax.graphs import base_k, one_peer_exponential
    >>> contraction(base_k(6, 1)), round(contraction(one_peer_exponential(6)), 3)
    (1.0, 0.4)
    """
    matrices = consensus.de_biased(_matrices(graph))
    left = consensus.disagreement(matrices)
    size = float(np.linalg.norm(left.matrix, 2))
    return 1 - consensus.per_mixing(size, left.log_scale, len(matrices))


def steps_to_consensus(graph: Graph) -> int | None:
    """After how many mixings all models are equal, whatever they were before.

    Args:
      graph: weights `[N, K]` or `[G, N, K]`, or a graph without: see `spectral_gap`.

    Returns:
      The number of mixings, or None if one pass through the sequence leaves some
      disagreement (above float32 round-off).

    >>> from p2pjax.graphs import base_k, ring
    >>> steps_to_consensus(base_k(25, 1)), steps_to_consensus(ring(25))
    (9, None)
    """
    matrices = consensus.de_biased(_matrices(graph))
    return consensus.disagreement(matrices).exact_after


def squared_error_ratio(
    draw: Callable[[np.random.Generator], Any], *, num_draws: int = 32, seed: Seed
) -> float:
    """What one mixing with a random graph leaves of squared disagreement, in the mean.

    Of models x of independent normal numbers, the mean of ||W x - J x||^2 / ||x - J
    x||^2, with J x the mean of the models.

    Args:
      draw: a function that draws a graph, as methods take it.
      num_draws: of graphs, and of models for each.
      seed: draws them.

    >>> from p2pjax.graphs import equi_dyn
    >>> found = squared_error_ratio(lambda rng: equi_dyn(8, seed=rng), seed=0)
    >>> 0.3 < found < 0.55  # 3/7 over many draws
    True
    """
    rng = generator(seed)
    if num_draws < 1:
        raise InputError(f"Need one draw or more, got {num_draws}.")
    ratios = []
    for _ in range(num_draws):
        (matrix,) = consensus.de_biased(_matrices(draw(rng)))
        models = rng.normal(size=(len(matrix), num_draws))
        models -= models.mean(0)
        mixed = matrix @ models
        left = np.square(mixed - models.mean(0)).sum(0)
        ratios.append(np.mean(left / np.square(models).sum(0)))
    return float(np.mean(ratios))


def _matrices(graph: Any) -> np.ndarray:
    """`[G, N, N]`, of anything that is a graph or a sequence."""
    matrix = dense_matrix(_weights_of(_read(graph)))
    return matrix if matrix.ndim == 3 else matrix[None]


def _read(graph: Any) -> Graph:
    """Of anything that is a graph; those that are drawn cannot be told about."""
    from p2pjax.graphs.conversion import as_graph  # which needs this module

    found = as_graph(graph)
    if not isinstance(found, Topology | Peers):
        raise InputError(
            "Need a graph or a sequence of graphs, got a function that draws one: call "
            "it with a numpy.random.Generator."
        )
    return found


def _weights_of(graph: Graph) -> Peers:
    if isinstance(graph, Peers):
        return graph
    weigh = uniform_receive if is_directed(graph) else metropolis_hastings
    return (jax.vmap(weigh) if is_sequence(graph) else weigh)(graph)


def is_strongly_connected(graph: Topology) -> bool:
    """Whether the model of each agent reaches all others.

    For a sequence of graphs that is repeated: over all of them together.
    """
    from scipy import sparse

    sender, receiver = edges(graph)
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


def report(graph: Graph) -> dict[str, float | int | bool]:
    """What an experiment writes about its graph, or its sequence of graphs.

    The spectral gap of a graph without weights is that of Metropolis-Hastings weights
    if it is undirected, else of uniform receiving. Of weights it is also said whether
    they are doubly stochastic, and after how many mixings agreement is exact, if it is:
    see `spectral_gap`, `contraction` and `steps_to_consensus`.

    Args:
      graph: `[N, D]` or `[G, N, D]`, or `Peers` with their weights.

    >>> from p2pjax.graphs import ring
    >>> found = report(ring(8))
    >>> found["agents"], found["mean_degree"], found["strongly_connected"]
    (8, 2.0, True)
    """
    graph = _read(graph)
    links = from_peers(graph) if isinstance(graph, Peers) else graph
    heard, reached = in_degrees(links), out_degrees(links)
    found = {
        "agents": int(heard.shape[-1]),
        "mean_degree": float(heard.mean()),
        "smallest_in_degree": int(heard.min()),
        "largest_in_degree": int(heard.max()),
        "smallest_out_degree": int(reached.min()),
        "largest_out_degree": int(reached.max()),
        "directed": is_directed(links),
        "strongly_connected": is_strongly_connected(links),
        "spectral_gap": spectral_gap(graph),
        "contraction": contraction(graph),
    }
    exact_after = steps_to_consensus(graph)
    if exact_after is not None:
        found["steps_to_consensus"] = exact_after
    if isinstance(graph, Peers):
        found["doubly_stochastic"] = is_doubly_stochastic(graph)
    return found
