"""Graphs beside networkx."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from experiments.equality.comparison import Comparison
from experiments.equality.quadratics import vectors
from p2pjax import graphs
from p2pjax.graphs import generators
from p2pjax.graphs.topology import Topology, edges

KNOWN = vectors("graphs")
BUILT_ON = "p2pjax draws with networkx: what is compared is the table of neighbours"


def links_of(graph: Topology) -> np.ndarray:
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

        return links_of(ours()), _networkx(theirs(nx), size)

    problem = f"adjacency of {size} agents"
    return Comparison(
        subject, "graphs", other, "networkx", problem, run, 0.0, convention
    )


def _torus(nx: Any, periodic: bool) -> Any:
    make = nx.cycle_graph if periodic else nx.path_graph
    product = nx.cartesian_product(make(4), make(5))
    return nx.relabel_nodes(product, {(a, b): 5 * a + b for a, b in product})


def relabelled_cube(nx: Any) -> Any:
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
COMPARISONS = [
    _graph(
        "ring", "cycle_graph", partial(graphs.ring, 16), lambda n: n.cycle_graph(16), 16
    ),
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
    _graph(
        "star", "star_graph", partial(graphs.star, 16), lambda n: n.star_graph(15), 16
    ),
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
    _graph(
        "hypercube",
        "hypercube_graph",
        partial(graphs.hypercube, 16),
        relabelled_cube,
        16,
    ),
    _graph(
        "chain", "path_graph", partial(graphs.chain, 16), lambda n: n.path_graph(16), 16
    ),
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
        "from_edgelist, DiGraph",
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
        lambda n: n.barbell_graph(6, 4),
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
        "directed_havel_hakimi_graph",
        partial(graphs.havel_hakimi, 16, 4),
        lambda n: n.directed_havel_hakimi_graph([4] * 16, [4] * 16),
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
    """Networkx knows the plane only: nine copies of the square make it a torus."""
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
