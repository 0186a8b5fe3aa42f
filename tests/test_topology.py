"""Graphs: degrees, transposes, sequences, named graphs, files, refusals."""

from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pjax.graphs import (
    analysis,
    clusters,
    edge_lists,
    generators,
    schedule,
    topology,
)
from p2pjax.types import InputError


def adjacency(graph):
    """Row = receiver, one agent after the other."""
    matrix = np.zeros((len(graph.mask),) * 2, int)
    for n, (row, mask) in enumerate(zip(graph.neighbor, graph.mask, strict=True)):
        for other, linked in zip(row, mask, strict=True):
            matrix[n, other] += linked
            assert linked or other == n, "padding points at the agent itself"
    assert set(np.unique(matrix)) <= {0, 1}
    return matrix


def rows(text):
    return np.array([list(map(int, row)) for row in text.split()])


def same(a, b):
    return np.array_equal(a.neighbor, b.neighbor) and np.array_equal(a.mask, b.mask)


def generator(seed=0):
    return np.random.default_rng(seed)


@st.composite
def any_graph(draw):
    num_agents = draw(st.integers(1, 9))
    pairs = st.tuples(*[st.integers(0, num_agents - 1)] * 2)
    ends = np.array(draw(st.lists(pairs, max_size=30)), np.int64).reshape(-1, 2)
    return topology.from_edges(num_agents, ends[:, 0], ends[:, 1]), ends


W1 = rows("010011 101100 010011 010011 101100 101100")
W2 = rows("010110 100110 110001 101001 011001 001110")


def test_the_two_matrices_of_the_thesis():
    for matrix, sends, hears in (
        (W1, [1, 4, 5], [1, 4, 5]),
        (W2, [1, 2, 3], [1, 3, 4]),
    ):
        # networkx: row = sender
        graph = topology.from_graph(
            nx.from_numpy_array(matrix.T, create_using=nx.DiGraph)
        )
        np.testing.assert_array_equal(adjacency(graph), matrix)
        assert graph.neighbor[0].tolist() == hears
        assert topology.receivers(graph).neighbor[0].tolist() == sends
        assert (topology.in_degrees(graph) == 3).all()
        assert (topology.out_degrees(graph) == 3).all()
        assert analysis.is_directed(graph) == (matrix is W2)


@given(any_graph())
def test_tables_hold_the_edges(drawn):
    graph, ends = drawn
    expected = np.zeros((len(graph.mask),) * 2, int)
    for sender, receiver in ends:
        expected[receiver, sender] = sender != receiver
    np.testing.assert_array_equal(adjacency(graph), expected)
    transposed = topology.receivers(graph)
    np.testing.assert_array_equal(adjacency(transposed), expected.T)
    assert same(topology.receivers(transposed), graph)
    assert topology.in_degrees(graph).tolist() == expected.sum(1).tolist()
    assert topology.out_degrees(graph).tolist() == expected.sum(0).tolist()
    for row, mask in zip(graph.neighbor, graph.mask, strict=True):
        assert (np.diff(row[mask]) > 0).all()
    as_networkx = nx.from_numpy_array(expected.T, create_using=nx.DiGraph)
    assert analysis.is_strongly_connected(graph) == nx.is_strongly_connected(
        as_networkx
    )
    assert analysis.is_directed(graph) == bool((expected != expected.T).any())


def test_sequences():
    one_way = generators.ring(5, directed=True)
    other_way = topology.receivers(one_way)
    both = topology.stack([one_way, other_way, generators.complete(5)])
    assert both.mask.shape == (3, 5, 4)
    transposed = topology.receivers(both)
    np.testing.assert_array_equal(topology.out_degrees(both).T, [[1, 1, 4]] * 5)
    for graph, expected in zip(topology.unstack(transposed), both.mask, strict=True):
        assert graph.mask.sum() == expected.sum()
    assert adjacency(topology.unstack(transposed)[0])[0].tolist() == [0, 1, 0, 0, 0]
    assert same(
        topology.union(topology.stack([one_way, other_way])), generators.ring(5)
    )

    def draw(rng):
        return generators.directed_regular(9, 2, seed=rng)

    drawn = schedule.varying(draw, 4, seed=0)
    assert drawn.mask.shape == (4, 9, 2)
    assert len({graph.neighbor.tobytes() for graph in topology.unstack(drawn)}) == 4
    again = schedule.varying(draw, 4, seed=0)
    assert same(drawn, again)

    of_epoch = schedule.graph_of_epoch(np.arange(17), switch_every=5, num_graphs=3)
    assert of_epoch.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [0] * 2


def test_rings_and_complete_graphs():
    directed = generators.ring(4, directed=True)
    np.testing.assert_array_equal(  # W[(i + 1) % N, i] = 1
        adjacency(directed), rows("0001 1000 0100 0010")
    )
    np.testing.assert_array_equal(
        adjacency(generators.ring(4)), rows("0101 1010 0101 1010")
    )
    np.testing.assert_array_equal(adjacency(generators.complete(5)), 1 - np.eye(5))
    assert (
        generators.ring(1).mask.sum()
        == generators.ring(1, directed=True).mask.sum()
        == 0
    )
    assert generators.ring(2).mask.sum() == 2


def test_grid_and_torus():
    grid = generators.grid(6, rows=2)  # 0 1 2 / 3 4 5
    assert [row[m].tolist() for row, m in zip(*grid, strict=True)] == [
        [1, 3], [0, 2, 4], [1, 5], [0, 4], [1, 3, 5], [2, 4],
    ]  # fmt: skip
    torus = generators.torus(12, rows=3)  # columns of 3, rows of 4
    assert (topology.in_degrees(torus) == 4).all()
    assert torus.neighbor[0].tolist() == [1, 3, 4, 8]
    assert torus.neighbor[5].tolist() == [1, 4, 6, 9]
    assert (topology.in_degrees(generators.torus(8, rows=2)) == 3).all()
    assert same(generators.torus(5, rows=1), generators.ring(5))


def test_star():
    star = generators.star(5)
    assert topology.in_degrees(star).tolist() == [4, 1, 1, 1, 1]
    assert star.neighbor[1:, 0].tolist() == [0, 0, 0, 0]


def test_erdos_renyi():
    for directed, pairs in ((False, 60 * 59 / 2), (True, 60 * 59)):
        drawn = generators.erdos_renyi(60, 0.3, directed=directed, seed=0)
        assert analysis.is_directed(drawn) == directed
        num_edges = drawn.mask.sum() / (1 if directed else 2)
        assert abs(num_edges / pairs - 0.3) < 0.04
    assert generators.erdos_renyi(6, 0.0, seed=0).mask.sum() == 0
    assert same(generators.erdos_renyi(6, 1.0, seed=0), generators.complete(6))


def test_small_world():
    lattice = generators.small_world(10, 4, 0.0, seed=0)
    assert lattice.neighbor[0].tolist() == [1, 2, 8, 9]
    rewired = generators.small_world(50, 4, 0.5, seed=0)
    assert rewired.mask.sum() == 50 * 4
    assert not analysis.is_directed(rewired)
    lattice_of_50 = adjacency(generators.small_world(50, 4, 0.0, seed=0))
    kept = (adjacency(rewired) & lattice_of_50).sum() / 200
    assert 0.3 < kept < 0.7


@given(
    st.integers(2, 14).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1)))
)
def test_directed_regular_has_the_degrees(size):
    num_agents, degree = size
    matrix = adjacency(generators.directed_regular(num_agents, degree, seed=0))
    assert (matrix.sum(0) == degree).all() and (matrix.sum(1) == degree).all()
    assert not matrix.diagonal().any()


def test_directed_regular_is_random_and_dense_where_asked():
    dense = generators.directed_regular(60, 40, seed=0)  # tries at random never succeed
    assert (topology.in_degrees(dense) == 40).all()
    assert (topology.out_degrees(dense) == 40).all()
    rng = generator()
    draws = [adjacency(generators.directed_regular(5, 1, seed=rng)) for _ in range(600)]
    frequency = Counter(matrix.tobytes() for matrix in draws)
    assert len(frequency) == 44  # derangements of five
    assert max(frequency.values()) < 3 * 600 / 44
    halves = generators.directed_regular(100, 3, seed=0)
    sender, receiver = topology.edges(halves)
    assert 0.4 < ((sender < 50) != (receiver < 50)).mean() < 0.6
    assert analysis.is_strongly_connected(halves)


@given(st.integers(3, 12), st.integers(0, 5))
def test_random_regular_has_the_degrees(num_agents, seed):
    for degree in range(1, num_agents):
        if num_agents * degree % 2 == 0:
            drawn = generators.random_regular(num_agents, degree, seed=seed)
            matrix = adjacency(drawn)
            assert (matrix == matrix.T).all() and (matrix.sum(1) == degree).all()


def test_havel_hakimi_is_homophilous():
    """Measured with networkx 3.6; other versions may break ties differently."""
    large, small = generators.havel_hakimi(100, 3), generators.havel_hakimi(40, 3)
    for graph in (large, small):
        assert (topology.in_degrees(graph) == 3).all()
        assert (topology.out_degrees(graph) == 3).all()
        assert analysis.is_strongly_connected(graph)
        assert same(graph, generators.havel_hakimi(len(graph.mask), 3))
    if not nx.__version__.startswith("3.6"):
        pytest.skip(
            f"shares of crossing edges are of networkx 3.6, not {nx.__version__}"
        )

    def crossing(graph, size):
        sender, receiver = topology.edges(graph)
        return (sender // size != receiver // size).mean()

    assert crossing(large, 50) == pytest.approx(0.253, abs=5e-4)
    assert crossing(large, 25) == pytest.approx(0.400, abs=5e-4)
    assert crossing(small, 20) == pytest.approx(0.267, abs=5e-4)
    is_other = small.neighbor // 20 != np.arange(40)[:, None] // 20
    assert is_other.all(1).sum() == 9


def test_exponential_graphs():
    graph = generators.exponential(8)
    assert topology.receivers(graph).neighbor[0].tolist() == [1, 2, 4]
    assert graph.neighbor[0].tolist() == [4, 6, 7]
    assert topology.receivers(generators.exponential(6)).neighbor[5].tolist() == [
        0,
        1,
        3,
    ]
    assert generators.exponential(2).neighbor.tolist() == [[1], [0]]
    one_peer = generators.one_peer_exponential(8)
    assert one_peer.mask.shape == (3, 8, 1) and one_peer.mask.all()
    for graph_now, hop in zip(topology.unstack(one_peer), (1, 2, 4), strict=True):
        assert topology.receivers(graph_now).neighbor[3, 0] == 3 + hop
    assert same(topology.union(one_peer), graph)
    product = np.eye(8)
    for graph_now in topology.unstack(one_peer):
        product = (adjacency(graph_now) + np.eye(8)) / 2 @ product
    np.testing.assert_allclose(product, 1 / 8)
    assert len(generators.one_peer_exponential(6).mask) == 3
    with pytest.raises(InputError, match="two agents or more"):
        generators.one_peer_exponential(1)


def other_share(graph, cluster):
    matrix = adjacency(graph)
    is_other = cluster[:, None] != cluster
    return (matrix * is_other).sum(1) / matrix.sum(1)


@pytest.mark.parametrize(
    "sizes",
    [(3, 3), (20, 20), (20, 20, 20, 20), (5, 5, 5), (3, 4, 6), (8, 4, 4), (4,) * 25],
)
def test_clustered(sizes):
    cluster = generator(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    graph = clusters.clustered(cluster, seed=0)
    assert (topology.in_degrees(graph) == 3).all()
    assert (topology.out_degrees(graph) == 3).all()
    assert (np.abs(other_share(graph, cluster) - 1 / 3) < 1e-9).all()
    sent = other_share(topology.receivers(graph), cluster)
    assert (np.abs(sent - 1 / 3) < 1e-9).all()
    table = np.zeros((len(sizes),) * 2, int)
    sender, receiver = topology.edges(graph)
    np.add.at(table, (cluster[sender], cluster[receiver]), 1)
    if len(set(sizes)) == 1:  # as even as whole numbers can be
        between = table[~np.eye(len(sizes), dtype=bool)]
        assert between.max() - between.min() <= 1
    if sizes == (8, 4, 4):  # the largest needs all of the others
        assert table.tolist() == [[16, 4, 4], [4, 8, 0], [4, 0, 8]]


def test_clustered_and_oracle_draw_different_graphs():
    cluster = np.repeat([0, 1], 3)
    assert {
        tuple(map(tuple, clusters.clustered(cluster, seed=seed).neighbor[:1]))
        for seed in range(30)
    } == {((1, 2, 3),), ((1, 2, 4),), ((1, 2, 5),)}
    wider = clusters.clustered(np.repeat([0, 1], 6), degree=5, seed=0)
    assert other_share(wider, np.repeat([0, 1], 6)) == pytest.approx(1 / 5)


@pytest.mark.parametrize("sizes", [(8, 8), (7, 7, 7), (4, 6, 8)])
@pytest.mark.parametrize("num_foreign", [0, 1, 2, 3])
def test_clustered_with_any_share_of_foreign_edges(sizes, num_foreign):
    cluster = generator(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    graph = clusters.clustered(cluster, foreign=num_foreign / 3, seed=0)
    assert (topology.in_degrees(graph) == 3).all()
    assert (topology.out_degrees(graph) == 3).all()
    assert other_share(graph, cluster) == pytest.approx(num_foreign / 3)
    sent = other_share(topology.receivers(graph), cluster)
    assert sent == pytest.approx(num_foreign / 3)


def test_one_foreign_edge_is_what_clustered_graphs_have():
    cluster = np.repeat([0, 1], 6)
    one, same = (
        clusters.clustered(cluster, foreign=foreign, seed=3) for foreign in (None, 0.33)
    )
    np.testing.assert_array_equal(one.neighbor, same.neighbor)


def test_oracle():
    cluster = np.array([4, 7, 4, 7, 4, 7, 4, 7, 7])
    graph = clusters.oracle(cluster, seed=0)
    assert (topology.in_degrees(graph) == 3).all()
    assert (topology.out_degrees(graph) == 3).all()
    assert (other_share(graph, cluster) == 0).all()
    pairs = clusters.oracle([0, 0, 1, 1], degree=1, seed=0)
    assert pairs.neighbor.tolist() == [[1], [0], [3], [2]]


def test_edge_list(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("# sender receiver\n0 1\n\n2 1  # two\n 1\t2\n2 1\n3 3\n3 0\n")
    graph = edge_lists.from_edge_list(path, directed=True)
    assert adjacency(graph).tolist() == rows("0001 1010 0100 0000").tolist()
    both_ways = edge_lists.from_edge_list(str(path))
    assert adjacency(both_ways).tolist() == rows("0101 1010 0100 1000").tolist()
    assert len(edge_lists.from_edge_list(path, num_agents=6).mask) == 6
    path.write_text("")
    assert edge_lists.from_edge_list(path, num_agents=2).mask.sum() == 0


@pytest.mark.parametrize(
    "text, options, message",
    [
        ("0 1\n0 1 0.5\n", {}, r'got "0 1 0.5" in .*edges.txt line 2'),
        ("0 b\n", {}, "two whole numbers"),
        ("0 -1\n", {}, "two whole numbers"),
        ("# nothing\n", {}, "has none"),
        ("1 2\n2 1\n", {}, "no edge of agent 0"),
        ("0 1\n1 3\n", {}, "no edge of agent 2"),
        ("0 1\n1 3\n", {"num_agents": 3}, "agents 0 to 2, got agent 3 in .* line 2"),
        ("", {"num_agents": 0}, "one agent or more"),
    ],
)
def test_bad_edge_lists_are_refused(tmp_path, text, options, message):
    path = tmp_path / "edges.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        edge_lists.from_edge_list(path, **options)


def test_missing_edge_list_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read .No such file"):
        edge_lists.from_edge_list(tmp_path / "none.txt")


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: generators.ring(0), "at least one node"),
        (lambda: generators.complete(-1), "at least one node"),
        (lambda: generators.star(0), "at least one node"),
        (lambda: generators.torus(12, 5), "rows that divides 12"),
        (lambda: generators.grid(12, 0), "rows that divides 12"),
        (lambda: generators.erdos_renyi(5, 1.5, seed=0), "from 0 to 1, got 1.5"),
        (lambda: generators.erdos_renyi(0, 0.5, seed=0), "at least one node"),
        (lambda: generators.small_world(9, 3, 0.1, seed=0), "an even degree"),
        (lambda: generators.small_world(4, 4, 0.1, seed=0), "less than 4"),
        (lambda: generators.small_world(9, 2, -0.1, seed=0), "got -0.1"),
        (lambda: generators.directed_regular(5, 5, seed=0), "degree < 5"),
        (lambda: generators.directed_regular(5, 0, seed=0), "0 < degree"),
        (lambda: generators.havel_hakimi(3, 3), "degree < 3"),
        (lambda: generators.random_regular(7, 3, seed=0), "even product"),
        (lambda: generators.exponential(1), "two agents or more"),
        (
            lambda: clusters.clustered([0, 0, 0, 0, 1, 1, 1], seed=0),
            "equal size",
        ),
        (lambda: clusters.clustered([0, 0, 1, 1], seed=0), "smallest has 2"),
        (
            lambda: clusters.clustered([0] * 3 + [1] * 3, 1, seed=0),
            "one or more",
        ),
        (
            lambda: clusters.clustered([0, 0, 1, 1], foreign=1.5, seed=0),
            "from 0 to 1, got 1.5",
        ),
        (
            lambda: clusters.clustered([0, 0, 1, 1], foreign=1, seed=0),
            "easy to draw",
        ),
        (lambda: clusters.oracle([0, 0, 0, 1, 1, 1, 1], seed=0), "has 3 and 3"),
        (lambda: clusters.oracle([], seed=0), "there are none"),
        (
            lambda: schedule.varying(generators.ring, 0, seed=0),
            "one graph or more",
        ),
        (lambda: topology.stack([]), "one or more graphs"),
        (
            lambda: topology.stack([generators.ring(3), generators.ring(4)]),
            r"graphs of \[3, 4\] agents",
        ),
        (lambda: schedule.graph_of_epoch(np.arange(3), 0, 2), "switch_every=0"),
        (
            lambda: topology.from_edges(2, np.array([0]), np.array([2])),
            "agents 0 to 1",
        ),
    ],
)
def test_impossible_graphs_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_edges_may_be_lists():
    graph = topology.from_edges(3, [0, 1, 2, 0], [1, 2, 0, 0])
    assert graph.neighbor[:, 0].tolist() == [2, 0, 1]
    assert graph.mask.all()
