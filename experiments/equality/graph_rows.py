"""Graphs, mixing matrices and their eigenvalues beside networkx, scipy and others."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from experiments.equality import decent_bench_runs
from experiments.equality.comparison import VECTORS, Comparison
from experiments.equality.quadratics import EDGES, vectors
from p2pjax import graphs
from p2pjax.exchange import mixing
from p2pjax.graphs import analysis, generators
from p2pjax.graphs.matchings import best_alpha
from p2pjax.graphs.topology import Topology, edges, unstack

KNOWN = vectors("graphs")
BUILT_ON = "p2pjax draws with networkx: what is compared is the table of neighbours"


def _links(graph: Topology) -> np.ndarray:
    """Row = receiver, column = sender, `[N, N]`."""
    sender, receiver = edges(graph)
    found = np.zeros((len(graph.mask), len(graph.mask)))
    found[receiver, sender] = 1
    return found


def _networkx(graph: Any, size: int) -> np.ndarray:
    import networkx as nx

    found = nx.to_numpy_array(graph, nodelist=range(size), weight=None)
    return found.T  # its rows are senders


def _graph(
    subject: str,
    other: str,
    ours: Callable[[], Topology],
    theirs: Callable[[Any], Any],
    size: int,
    convention: str = "",
) -> Comparison:
    def run() -> tuple[Any, Any]:
        import networkx as nx

        return _links(ours()), _networkx(theirs(nx), size)

    problem = f"adjacency of {size} agents"
    return Comparison(
        subject, "graphs", other, "networkx", problem, run, 0.0, convention
    )


def _torus(nx: Any, periodic: bool) -> Any:
    make = nx.cycle_graph if periodic else nx.path_graph
    product = nx.cartesian_product(make(4), make(5))
    return nx.relabel_nodes(product, {(a, b): 5 * a + b for a, b in product})


def _cube(nx: Any) -> Any:
    cube = nx.hypercube_graph(4)
    return nx.relabel_nodes(
        cube, {bits: sum(b << n for n, b in enumerate(bits)) for bits in cube}
    )


def _two_cliques(nx: Any, links: list[tuple[int, int]]) -> Any:
    both = nx.disjoint_union(nx.complete_graph(8), nx.complete_graph(8))
    both.add_edges_from(links)
    return both


def _tree(nx: Any) -> Any:
    """Lowest-numbered parents: networkx goes through neighbours in order."""
    graph = nx.Graph()
    graph.add_nodes_from(range(9))
    graph.add_edges_from(sorted(_grid_edges(nx)))
    return nx.bfs_tree(graph, 0, sort_neighbors=sorted).to_undirected()


def _grid_edges(nx: Any) -> list[tuple[int, int]]:
    grid = nx.relabel_nodes(
        nx.grid_2d_graph(3, 3), {(a, b): 3 * a + b for a in range(3) for b in range(3)}
    )
    return [(min(edge), max(edge)) for edge in grid.edges]


def _seed() -> int:
    """That which p2pjax gives to networkx for seed 7."""
    return generators._networkx_seed(7)


CROSS = [(i, 8 + (i + q) % 8) for i in range(8) for q in range(2)]
NAMED = [
    _graph("ring", "cycle_graph", partial(graphs.ring, 16), lambda n: n.cycle_graph(16), 16),
    _graph(
        "ring (directed)",
        "cycle_graph, DiGraph",
        partial(graphs.ring, 16, directed=True),
        lambda n: n.cycle_graph(16, create_using=n.DiGraph),
        16,
    ),
    _graph(
        "complete",
        "complete_graph",
        partial(graphs.complete, 16),
        lambda n: n.complete_graph(16),
        16,
    ),
    _graph("star", "star_graph", partial(graphs.star, 16), lambda n: n.star_graph(15), 16),
    _graph(
        "grid",
        "cartesian_product of paths",
        partial(graphs.grid, 20, rows=4),
        partial(_torus, periodic=False),
        20,
    ),
    _graph(
        "torus",
        "cartesian_product of cycles",
        partial(graphs.torus, 20, rows=4),
        partial(_torus, periodic=True),
        20,
    ),
    _graph("hypercube", "hypercube_graph", partial(graphs.hypercube, 16), _cube, 16),
    _graph("chain", "path_graph", partial(graphs.chain, 16), lambda n: n.path_graph(16), 16),
    _graph(
        "binary_tree",
        "full_rary_tree",
        partial(graphs.binary_tree, 16),
        lambda n: n.full_rary_tree(2, 16),
        16,
    ),
    _graph(
        "bfs_tree",
        "bfs_tree of a grid, neighbours in order",
        lambda: graphs.bfs_tree(graphs.grid(9, rows=3)),
        _tree,
        9,
    ),
    _graph(
        "exponential",
        "circulant_graph, DiGraph",
        partial(graphs.exponential, 16),
        lambda n: n.from_edgelist(
            [(i, (i + hop) % 16) for i in range(16) for hop in (1, 2, 4, 8)], n.DiGraph
        ),
        16,
        "edges by the formula of Ying et al. (2021)",
    ),
    _graph(
        "dumbbell",
        "disjoint_union of cliques, a bridge",
        partial(graphs.dumbbell, 16),
        lambda n: _two_cliques(n, [(0, 15)]),
        16,
        "He et al. (2022) bridge the first and the last agent",
    ),
    _graph(
        "barbell",
        "barbell_graph",
        partial(graphs.barbell, 16, path=4),
        lambda n: n.relabel_nodes(
            n.barbell_graph(6, 4),
            {old: new for new, old in enumerate([*range(6), *range(6, 10), *range(10, 16)])},
        ),
        16,
        BUILT_ON,
    ),
    _graph(
        "two_worlds",
        "disjoint_union of cliques, 2 links each",
        partial(graphs.two_worlds, 16, 2),
        lambda n: _two_cliques(n, CROSS),
        16,
    ),
    _graph(
        "erdos_renyi",
        "gnp_random_graph",
        partial(graphs.erdos_renyi, 16, 0.3, seed=7),
        lambda n: n.gnp_random_graph(16, 0.3, seed=_seed()),
        16,
        BUILT_ON,
    ),
    _graph(
        "small_world",
        "watts_strogatz_graph",
        partial(graphs.small_world, 16, 4, 0.3, seed=7),
        lambda n: n.watts_strogatz_graph(16, 4, 0.3, seed=_seed()),
        16,
        BUILT_ON,
    ),
    _graph(
        "scale_free",
        "barabasi_albert_graph",
        partial(graphs.scale_free, 16, 2, seed=7),
        lambda n: n.barabasi_albert_graph(16, 2, seed=_seed()),
        16,
        BUILT_ON,
    ),
    _graph(
        "random_regular",
        "random_regular_graph",
        partial(graphs.random_regular, 16, 4, seed=7),
        lambda n: n.random_regular_graph(4, 16, seed=_seed()),
        16,
        BUILT_ON,
    ),
    _graph(
        "havel_hakimi",
        "havel_hakimi_graph",
        partial(graphs.havel_hakimi, 16, 4),
        lambda n: n.havel_hakimi_graph([4] * 16),
        16,
        BUILT_ON,
    ),
    _graph(
        "geometric",
        "geometric_edges on the torus, by copies of the square",
        partial(graphs.geometric, 16, 0.3, seed=7),
        lambda n: _near(n, np.random.default_rng(7).uniform(size=(16, 2)), 0.3),
        16,
    ),
]


def _near(nx: Any, places: np.ndarray, radius: float) -> Any:
    """networkx knows the plane only: nine copies of the square make it a torus."""
    copies = nx.Graph()
    for n, place in enumerate(places):
        for a in (-1, 0, 1):
            for b in (-1, 0, 1):
                copies.add_node((n, a, b), pos=(place[0] + a, place[1] + b))
    found = nx.empty_graph(len(places))
    for (i, *a), (j, *b) in nx.geometric_edges(copies, radius):
        if (a == [0, 0] or b == [0, 0]) and i != j:
            found.add_edge(i, j)
    return found


def _base(number: int, degree: int) -> tuple[Any, Any]:
    known = KNOWN["base_graphs"][f"n{number}_k{degree}"]["base"]
    theirs = []
    for pairs in known:
        matrix = np.zeros((number, number))
        for i, j, weight in pairs:
            matrix[i, j] = matrix[j, i] = float(Fraction(weight))
        theirs.append(matrix + np.diag(1 - matrix.sum(1)))
    ours = [analysis.dense_matrix(peers) for peers in unstack(graphs.base_k(number, degree))]
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
    laplacians = [
        nx.laplacian_matrix(
            nx.from_edgelist(
                [(n, int(m)) for n, m in enumerate(row) if n < m], nx.Graph
            ),
        ).toarray()
        if False
        else _laplacian(nx, row)
        for row in partner
    ]
    mean = sum(chance * one for one in laplacians)
    spread = sum(chance * (1 - chance) * one for one in laplacians)

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
    x = rng.normal(size=(16, 50))
    weight, ids = np.asarray(peers.weight), np.asarray(peers.ids)
    receiver = np.repeat(np.arange(16), ids.shape[1])
    matrix = sparse.csr_array((weight.ravel(), (receiver, ids.ravel())), (16, 16))
    return mixing.mix({"x": x}, peers)["x"], matrix @ x


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

    spectrum = nx.laplacian_spectrum(_cube(nx)) / 5
    apart = np.sort(np.abs(1 - spectrum))
    return graphs.spectral_gap(graphs.hypercube(16)), 1 - apart[-2]


def _metropolis() -> tuple[Any, Any]:
    ours = analysis.dense_matrix(graphs.metropolis_hastings(graphs.as_graph(EDGES)))
    return ours, decent_bench_runs.weights(EDGES)


def _uniform(column: bool) -> tuple[Any, Any]:
    """Random walks with a step to oneself."""
    import networkx as nx
    from sklearn.preprocessing import normalize

    graph = graphs.erdos_renyi(16, 0.3, seed=7, directed=True)
    weigh = graphs.uniform_send if column else graphs.uniform_receive
    links = nx.DiGraph(_links(graph)).to_directed()
    closed = nx.to_numpy_array(links) + np.eye(16)
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
    *NAMED,
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
        "one_peer_exponential",
        "the exact mean",
        "numpy",
        "product of the matrices, 16 agents",
        partial(_one_peer),
    )
    if False
    else _own(
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
        "exchange.mixing.mix",
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
