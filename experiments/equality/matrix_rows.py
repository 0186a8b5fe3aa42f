"""Mixing matrices and their eigenvalues beside scipy, networkx and decent-bench."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.equality import decent_bench_runs
from experiments.equality.comparison import VECTORS, Comparison
from experiments.equality.named_graphs import BUILT_ON, links_of, relabelled_cube
from experiments.equality.quadratics import EDGES, vectors
from p2pjax import graphs
from p2pjax.exchange import mixing
from p2pjax.graphs import analysis
from p2pjax.graphs.conversion import as_topology
from p2pjax.graphs.matchings import best_alpha
from p2pjax.graphs.topology import Topology, unstack

KNOWN = vectors("graphs")


def _base(number: int, degree: int) -> tuple[Any, Any]:
    known = KNOWN["base_graphs"][f"n{number}_k{degree}"]["base"]
    theirs = []
    for pairs in known:
        matrix = np.zeros((number, number))
        for i, j, weight in pairs:
            matrix[i, j] = matrix[j, i] = float(Fraction(weight))
        theirs.append(matrix + np.diag(1 - matrix.sum(1)))
    ours = [
        analysis.dense_matrix(peers) for peers in unstack(graphs.base_k(number, degree))
    ]
    return np.array(ours), np.array(theirs)


def _all_base() -> tuple[Any, Any]:
    pairs = [_base(number, degree) for number in range(5, 10) for degree in (1, 2)]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


def _product(make: Callable[[int], Any]) -> tuple[Any, Any]:
    """After one pass all agents have the mean."""
    total = np.eye(16)
    for graph in unstack(make(16)):
        total = analysis.dense_matrix(graphs.metropolis_hastings(graph)) @ total
    return total, np.full((16, 16), 1 / 16)


def _matchings() -> tuple[Any, Any]:
    """As sets: colours have no order."""
    import networkx as nx

    partner = graphs.edge_matchings(EDGES)
    ours = {
        frozenset((n, int(m)) for n, m in enumerate(row) if n < m) for row in partner
    }
    line = nx.line_graph(nx.from_edgelist(sorted(tuple(sorted(e)) for e in EDGES)))
    color = nx.greedy_color(line, "largest_first")
    theirs = {
        frozenset(tuple(sorted(e)) for e, c in color.items() if c == number)
        for number in set(color.values())
    }
    return float(len(ours ^ theirs)), 0.0


def _alpha() -> tuple[Any, Any]:
    """The same minimum by scipy's bounded search of networkx's Laplacians."""
    import networkx as nx
    from scipy import optimize

    partner, chance = graphs.edge_matchings(EDGES), 0.5
    laplacians = [_laplacian(nx, row) for row in partner]
    total = np.sum(laplacians, axis=0)
    mean, spread = chance * total, chance * (1 - chance) * total

    def largest(alpha: float) -> float:
        matrix = np.eye(5) - 2 * alpha * mean + alpha**2 * (mean @ mean + 2 * spread)
        return float(np.linalg.eigvalsh(matrix - 1 / 5)[-1])

    found = optimize.minimize_scalar(
        largest, bounds=(0.01, 1), method="bounded", options={"xatol": 1e-12}
    )
    _, ours = best_alpha(partner, np.full(len(partner), chance))
    return ours, found.fun


def _laplacian(nx: Any, row: np.ndarray) -> np.ndarray:
    graph = nx.empty_graph(len(row))
    graph.add_edges_from((n, int(m)) for n, m in enumerate(row) if n < m)
    return nx.laplacian_matrix(graph).toarray().astype(float)


def _mixed() -> tuple[Any, Any]:
    from scipy import sparse

    rng = np.random.default_rng(3)
    peers = graphs.metropolis_hastings(graphs.small_world(16, 4, 0.3, seed=7))
    x = jnp.asarray(rng.normal(size=(16, 50)))
    weight, ids = np.asarray(peers.weight), np.asarray(peers.ids)
    receiver = np.repeat(np.arange(16), ids.shape[1])
    matrix = sparse.csr_array((weight.ravel(), (receiver, ids.ravel())), (16, 16))
    both = mixing.by_peers(peers)(x), mixing.by_matrix(mixing.dense(peers))(x)
    return both, (matrix @ np.asarray(x),) * 2


def _gap(make: Callable[[], Any]) -> tuple[Any, Any]:
    from scipy import linalg

    graph = make()
    matrix = analysis.dense_matrix(graphs.metropolis_hastings(graph))
    modulus = np.sort(np.abs(linalg.eigvals(matrix)))
    singular = linalg.svdvals(matrix - 1 / len(matrix))
    ours = (graphs.spectral_gap(graph), graphs.contraction(graph))
    return ours, (1 - modulus[-2], 1 - singular[0])


def _symmetric_gap() -> tuple[Any, Any]:
    """Of a regular graph: I - L / (degree + 1), with networkx's Laplacian."""
    import networkx as nx

    spectrum = nx.laplacian_spectrum(relabelled_cube(nx)) / 5
    apart = np.sort(np.abs(1 - spectrum))
    return graphs.spectral_gap(graphs.hypercube(16)), 1 - apart[-2]


def _metropolis() -> tuple[Any, Any]:
    graph = as_topology(EDGES)
    assert isinstance(graph, Topology)
    ours = analysis.dense_matrix(graphs.metropolis_hastings(graph))
    return ours, decent_bench_runs.weights(EDGES)


def _uniform(column: bool) -> tuple[Any, Any]:
    from sklearn.preprocessing import normalize

    graph = graphs.erdos_renyi(16, 0.3, seed=7, directed=True)
    weigh = graphs.uniform_send if column else graphs.uniform_receive
    closed = links_of(graph) + np.eye(16)
    return analysis.dense_matrix(weigh(graph)), normalize(
        closed, norm="l1", axis=0 if column else 1
    )


def _own(
    subject: str,
    other: str,
    package: str,
    problem: str,
    run: Callable[[], tuple[Any, Any]],
    convention: str = "",
    tolerance: float = 1e-12,
) -> Comparison:
    return Comparison(
        subject, "graphs", other, package, problem, run, tolerance, convention
    )


COMPARISONS = [
    _own(
        "base_k",
        "the authors' code gave the same for N = 2 to 40, k = 1 to 4",
        VECTORS,
        "all matrices, N = 5 to 9, k = 1 and 2, as fractions",
        _all_base,
    ),
    _own(
        "one_peer_hypercube",
        "the exact mean",
        "numpy",
        "product of the matrices, 16 agents",
        partial(_product, graphs.one_peer_hypercube),
    ),
    _own(
        "edge_matchings",
        "greedy_color of line_graph",
        "networkx",
        "6 edges of 5 agents, as sets",
        _matchings,
        BUILT_ON,
    ),
    _own(
        "matcha (best_alpha)",
        "optimize.minimize_scalar",
        "scipy",
        "contraction at the best alpha, 5 agents, probability 0.5",
        _alpha,
        tolerance=1e-7,
    ),
    _own(
        "exchange.mixing (by_peers, by_matrix)",
        "csr_array @ x",
        "scipy",
        "16 agents, 50 numbers, small world",
        _mixed,
    ),
    _own(
        "spectral_gap, contraction (small world)",
        "linalg.eigvals, linalg.svdvals",
        "scipy",
        "Metropolis-Hastings of 16 agents",
        partial(_gap, partial(graphs.small_world, 16, 4, 0.3, seed=7)),
    ),
    _own(
        "spectral_gap, contraction (torus)",
        "linalg.eigvals, linalg.svdvals",
        "scipy",
        "Metropolis-Hastings of 20 agents",
        partial(_gap, partial(graphs.torus, 20, rows=4)),
    ),
    _own(
        "spectral_gap (hypercube)",
        "laplacian_spectrum",
        "networkx",
        "16 agents",
        _symmetric_gap,
    ),
    _own(
        "metropolis_hastings",
        "P2PNetwork.weights",
        "decent-bench",
        "5 agents, 6 edges",
        _metropolis,
    ),
    _own(
        "uniform_receive",
        "preprocessing.normalize, l1, rows",
        "scikit-learn",
        "16 agents, random directed graph",
        partial(_uniform, False),
    ),
    _own(
        "uniform_send",
        "preprocessing.normalize, l1, columns",
        "scikit-learn",
        "16 agents, random directed graph",
        partial(_uniform, True),
    ),
]
