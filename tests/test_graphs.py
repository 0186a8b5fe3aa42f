"""The front door of graphs: every form of a graph, own weights, graphs that change."""

import subprocess
import sys

import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from p2pjax import graphs
from p2pjax.graphs import analysis, conversion, own_matrices, schedule, topology
from p2pjax.types import InputError, Peers


def same(a, b):
    return type(a) is type(b) and all(map(np.array_equal, a, b))


def rng(seed=0):
    return np.random.default_rng(seed)


HOUSE = [(0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (2, 4)]  # undirected
ONE_WAY = [(0, 1), (1, 2), (2, 0), (3, 0), (3, 4)]  # sender, receiver
HALVES = [[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]


def forms_of(edges, size, directed):
    """The same graph in all its forms."""
    kind = nx.DiGraph if directed else nx.Graph
    graph = nx.empty_graph(size, create_using=kind)
    graph.add_edges_from(edges)
    matrix = nx.to_numpy_array(graph, nodelist=range(size)).T  # networkx: row = sender
    yield from (
        graph,
        matrix,
        matrix.astype(bool),
        matrix.astype(np.int8),
        matrix.astype(int).tolist(),
        jnp.asarray(matrix),
        sparse.csr_array(matrix),
        sparse.coo_matrix(matrix),
        lambda draw: graph,
        lambda draw: matrix,
    )


def pairs_of(edges):
    yield from (
        edges,
        tuple(edges),
        [list(edge) for edge in edges],
        set(edges),
        iter(edges),
        zip(*np.array(edges).T, strict=True),
        np.array(edges),
        np.array(edges, float),
        np.array(edges, np.uint8),
    )


class TestForms:
    @pytest.mark.parametrize(
        "edges, directed", [(HOUSE, False), (ONE_WAY, True), ([(0, 1)], False)]
    )
    def test_all_forms_are_the_same_graph(self, edges, directed):
        size = 1 + np.max(edges)
        ends = np.array(edges if directed else edges + [edge[::-1] for edge in edges])
        expected = topology.from_edges(size, ends[:, 0], ends[:, 1])
        for form in forms_of(edges, size, directed):
            if size == 2 and not isinstance(form, nx.Graph) and not callable(form):
                continue  # a table of two agents: below
            found = graphs.as_graph(form)
            if callable(found):
                found = found(rng())
            assert same(found, expected), form
            assert same(graphs.as_graph(found, num_agents=size), expected)
        for form in pairs_of(edges):
            assert same(graphs.as_graph(form, directed=directed), expected)

    def test_a_view_of_edges(self):
        house = nx.Graph(HOUSE)
        assert same(graphs.as_graph(house.edges), graphs.as_graph(house))
        assert same(graphs.as_graph(house.edges()), graphs.as_graph(HOUSE))

    def test_rows_of_a_matrix_receive(self):
        hears = np.zeros((3, 3), int)
        hears[2, 0] = 1
        assert graphs.as_graph(hears).mask.sum(1).tolist() == [0, 0, 1]
        one_way = nx.DiGraph([(0, 2)])
        one_way.add_node(1)
        assert same(graphs.as_graph(one_way), graphs.as_graph(hears))

    def test_loops_and_repetitions_do_not_count(self):
        assert same(
            graphs.as_graph([(0, 1), (1, 0), (1, 1), (0, 1)]),
            graphs.as_graph([(0, 1)]),
        )
        matrix = np.ones((4, 4), int)  # with a diagonal
        assert same(graphs.as_graph(matrix), graphs.complete(4))
        twice = nx.MultiGraph([(0, 1), (0, 1), (1, 2)])
        assert same(graphs.as_graph(twice), graphs.as_graph([(0, 1), (1, 2)]))

    def test_lone_agents_need_their_number(self):
        assert len(graphs.as_graph([(0, 1)], num_agents=4).mask) == 4
        assert graphs.as_graph([], num_agents=3).mask.sum() == 0
        assert graphs.as_graph(np.zeros((0, 2), int), 3).mask.shape == (3, 1)
        with pytest.raises(InputError, match="no edge of agent 1"):
            graphs.as_graph([(0, 2)])
        with pytest.raises(InputError, match="give the number of agents"):
            graphs.as_graph([])

    def test_what_has_its_form_passes(self):
        for graph in (
            graphs.ring(4),
            graphs.one_peer_exponential(4),
            graphs.weights(HALVES),
            graphs.uniform_send(graphs.star(4)),  # only its columns sum to 1
            graphs.metropolis_hastings(graphs.star(40)),
        ):
            assert graphs.as_graph(graph) is graph

    def test_explicit_zeros_and_repeated_entries_of_sparse_matrices(self):
        row, column, value = [1, 0, 0, 2], [0, 1, 2, 2], [1, 1, 0, 0]
        matrix = sparse.coo_array((value, (row, column)), (3, 3))
        assert graphs.as_graph(matrix).mask.sum(1).tolist() == [1, 1, 0]
        halves = sparse.coo_array(([0.5] * 6, ([0, 0, 1, 1, 2, 2], [1] * 6)), (3, 3))
        assert same(graphs.weights(halves), graphs.weights([[0, 1, 0]] * 3))
        unsorted = sparse.csr_array(
            (np.array([0.5, 0.25, 0.25]), np.array([1, 0, 0]), np.array([0, 3, 3])),
            (2, 2),
        )
        unsorted += sparse.csr_array([[0, 0], [0, 1.0]])
        assert analysis.dense_matrix(graphs.weights(unsorted)).tolist() == [
            [0.5, 0.5],
            [0, 1],
        ]

    @pytest.mark.parametrize(
        "graph, message",
        [
            ("edges.txt", "from_edge_list"),
            (None, "Need a networkx graph"),
            (3, "Need a networkx graph"),
            ({0: [1]}, "got dict"),
            ([0, 1, 2], "Need a networkx graph"),
            ([(0, 1), (1, 2, 3)], "rows of one length"),
            ([("a", "b"), ("b", "c"), ("c", "d")], "Need numbers"),
            ([(0, 1, 0.5), (1, 2, 0.5)], r"shape \(2, 3\)"),
            ([(0, 1), (1, -1), (0, 2)], "whole or below 0, such as -1.0"),
            ([(0, 0.5), (1, 2), (0, 2)], "such as 0.5"),
            ([(0, np.nan), (1, 2), (0, 2)], "numbered from 0"),
            (HALVES, r"got 0.5: weights\(matrix\)"),
            (sparse.csr_array(HALVES), r"weights\(matrix\)"),
            ([[0, 2, 0], [2, 0, 0], [0, 0, 0]], "got 2.0"),
            (np.zeros((3, 0)), r"shape \(3, 0\)"),
            (np.zeros((2, 2, 2, 2)), "Need a networkx graph"),
            (sparse.csr_array((2, 3)), "square matrix"),
            (nx.Graph([(1, 2)]), "nodes are 0 to 1"),
            (nx.Graph(), "at least one node"),
            (nx.path_graph(["a", "b"]), "nodes are 0 to 1"),
            (nx.karate_club_graph(), "one with weights"),
            ([graphs.ring(4), graphs.ring(5)], "of 5 agents, got one of 4"),
            ([graphs.ring(3), graphs.weights(HALVES)], "all without, got a mixture"),
            ([graphs.one_peer_exponential(4)] * 2, "sequence of single graphs"),
            ([lambda draw: graphs.ring(4)], "got function"),
        ],
    )
    def test_what_is_no_graph_is_refused(self, graph, message):
        with pytest.raises(InputError, match=message):
            graphs.as_graph(graph)

    def test_the_number_of_agents_must_agree(self):
        for graph in (graphs.ring(4), nx.cycle_graph(4), np.eye(4), [graphs.ring(4)]):
            with pytest.raises(InputError, match="of 5 agents, got one of 4"):
                graphs.as_graph(graph, num_agents=5)
        with pytest.raises(InputError, match="agents 0 to 2"):
            graphs.as_graph([(0, 3)], num_agents=3)
        with pytest.raises(InputError, match="of 5 agents"):
            graphs.as_graph(lambda draw: graphs.ring(4), num_agents=5)(rng())

    @pytest.mark.parametrize(
        "graph, message",
        [
            (topology.Topology(np.zeros((3, 1), int), np.ones((3, 2), bool)), "shape"),
            (topology.Topology(np.zeros(3, int), np.ones(3, bool)), "one shape"),
            (topology.Topology(np.full((3, 1), 3), np.ones((3, 1), bool)), "0 to 2"),
            (topology.Topology(np.full((3, 1), 0.0), np.ones((3, 1), bool)), "float"),
            (topology.Topology(np.zeros((3, 1), int), np.ones((3, 1), bool)), "other"),
            (topology.Topology(np.array([[1], [0]]), np.ones((2, 1))), "mask is True"),
            (topology.Topology(np.array([[1], [0]]), np.zeros((2, 1), bool)), "paddin"),
            (Peers(np.array([[1, 0], [0, 1]]), np.full((2, 2), 0.5)), "in slot 0"),
            (Peers(np.array([[0, 1], [1, 0]]), np.full((2, 2), np.nan)), "finite"),
            (Peers(np.array([[0, 1], [1, 0]]), np.full((2, 2), 0.4)), "off by up to 0"),
        ],
    )
    def test_tables_that_are_not_right_are_refused(self, graph, message):
        with pytest.raises(InputError, match=message):
            graphs.as_graph(graph)


class TestTwoByTwo:
    """A matrix of two agents, or two edges."""

    @pytest.mark.parametrize("values", list(np.ndindex(2, 2, 2, 2)))
    def test_one_reading_or_none(self, values):
        table = np.reshape(values, (2, 2))
        matrix = table.astype(bool)
        np.fill_diagonal(matrix, False)
        as_matrix = topology.from_edges(2, *np.nonzero(matrix)[::-1])
        assert same(graphs.as_graph(table.astype(bool)), as_matrix)
        edges = [tuple(edge) for edge in table.tolist()]
        as_edges = graphs.as_graph([*edges, *edges], num_agents=2)
        assert same(
            graphs.as_graph(table, num_agents=3), graphs.as_graph([*edges, *edges], 3)
        )
        if same(as_edges, as_matrix):
            assert same(graphs.as_graph(table, num_agents=2), as_matrix)
        else:
            with pytest.raises(InputError, match="two edges or a matrix"):
                graphs.as_graph(table, num_agents=2)
        if same(as_edges, as_matrix) and as_edges.mask.any():
            assert same(graphs.as_graph(table.tolist()), as_matrix)
        else:
            with pytest.raises(InputError, match="two edges or a matrix"):
                graphs.as_graph(table.tolist())

    def test_other_numbers_say_what_it_is(self):
        assert same(
            graphs.as_graph([(0, 1), (1, 2)]), graphs.as_graph(nx.path_graph(3))
        )
        with pytest.raises(InputError, match=r"weights\(matrix\)"):
            graphs.as_graph([[0.5, 0.5], [0.5, 0.5]])
        with pytest.raises(InputError, match=r"weights\(matrix\)"):
            graphs.as_graph([[0, -1], [1, 0]])

    def test_edges_of_a_sequence_are_of_all_agents(self):
        found = graphs.as_graph([[(0, 1), (1, 0)], [(1, 2), (2, 1)]])
        assert found.mask.shape == (2, 3, 1)


class TestSequences:
    def test_any_forms_make_a_sequence(self):
        ring, line = nx.cycle_graph(4), [(0, 1), (1, 2), (2, 3)]
        expected = topology.stack([graphs.ring(4), graphs.as_graph(line)])
        for sequence in (
            [ring, line],
            (graphs.ring(4), nx.path_graph(4)),
            [
                nx.to_numpy_array(ring),
                sparse.csr_array(nx.to_numpy_array(nx.Graph(line))),
            ],
            np.stack([nx.to_numpy_array(one) for one in (ring, nx.Graph(line))]),
            [list(ring.edges), set(line)],
            iter([ring.edges, nx.path_graph(4)]),
            [[*line, (3, 0)], np.array(line)],
        ):
            found = graphs.as_graph(sequence)
            assert same(found, expected)
            assert same(graphs.as_graph(found, 4), expected)

    def test_matchings_of_all_agents_together(self):
        found = graphs.as_graph([[(0, 1)], [(2, 3)], []])
        assert found.mask.shape == (3, 4, 1)
        assert found.mask.sum((1, 2)).tolist() == [2, 2, 0]
        same_shape = np.array([[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]])
        assert graphs.as_graph(same_shape).mask.shape == (3, 4, 1)
        with pytest.raises(InputError, match="no edge of agent 2"):
            graphs.as_graph([[(0, 1)], [(1, 3)]])

    def test_directed_edges(self):
        found = graphs.as_graph([[(0, 1)], [(1, 0)]], directed=True)
        assert found.mask[:, :, 0].tolist() == [[False, True], [True, False]]

    def test_weights(self):
        eye = graphs.weights(np.eye(3))
        found = graphs.as_graph([graphs.weights(HALVES), eye])
        assert isinstance(found, Peers) and found.ids.shape == (2, 3, 3)
        assert analysis.dense_matrix(found).tolist() == [HALVES, np.eye(3).tolist()]
        assert same(found, graphs.weights([HALVES, np.eye(3)]))
        assert same(found, graphs.weights(np.stack([HALVES, np.eye(3)])))
        assert same(found, graphs.weights([sparse.csr_array(HALVES), np.eye(3)]))


class TestFunctions:
    def test_a_function_draws_anew(self):
        draw = graphs.as_graph(lambda rng: nx.gnp_random_graph(9, 0.5, seed=rng))
        source = rng()
        assert not same(draw(source), draw(source))
        again = rng()
        first = graphs.as_graph(lambda rng: graphs.random_regular(9, 4, seed=rng))
        assert same(first(again), graphs.random_regular(9, 4, seed=0))
        weighted = graphs.as_graph(lambda rng: graphs.weights(HALVES))
        assert isinstance(weighted(rng()), Peers)

    def test_it_draws_one_graph(self):
        for draw in (lambda rng: graphs.one_peer_exponential(4), lambda rng: len):
            with pytest.raises(InputError, match="one graph at a time"):
                graphs.as_graph(draw)(rng())

    def test_methods_that_weigh_themselves(self):
        assert same(conversion.as_topology([(0, 1), (1, 2)]), graphs.grid(3, 1))
        drawn = conversion.as_topology(lambda rng: [(0, 1), (1, 2)])
        assert same(drawn(rng()), graphs.grid(3, 1))
        with pytest.raises(InputError, match="graph without weights"):
            conversion.as_topology(graphs.weights(HALVES))
        with pytest.raises(InputError, match="graph without weights"):
            conversion.as_topology(lambda rng: graphs.weights(HALVES))(rng())


@st.composite
def stochastic(draw):
    size = draw(st.integers(1, 6))
    source = rng(draw(st.integers(0, 1000)))
    matrix = source.random((size, size)) * (source.random((size, size)) < 0.6)
    matrix += np.diag(matrix.sum(1) == 0)
    return matrix / matrix.sum(1, keepdims=True)


class TestWeights:
    @given(stochastic())
    def test_the_matrix_is_kept(self, matrix):
        size = len(matrix)
        for form in (matrix, matrix.tolist(), sparse.csc_array(matrix)):
            peers = graphs.weights(form)
            np.testing.assert_allclose(
                analysis.dense_matrix(peers), matrix, atol=1e-7, rtol=1e-6
            )
            assert peers.ids.dtype == np.int32 and peers.weight.dtype == np.float32
            assert peers.ids[:, 0].tolist() == list(range(size))
            is_padding = (peers.ids == np.arange(size)[:, None])[:, 1:]
            assert not peers.weight[:, 1:][is_padding].any()
            assert (peers.weight[:, 1:][~is_padding] != 0).all()
            links = topology.from_peers(peers)
            off_diagonal = (matrix != 0) & ~np.eye(size, dtype=bool)
            assert same(links, graphs.as_graph(off_diagonal))
        assert graphs.is_doubly_stochastic(peers) == np.allclose(
            matrix.sum(0), 1, atol=1e-5
        )
        column = graphs.weights(matrix.T, push_sum=True)
        assert analysis.is_column_stochastic(column)
        np.testing.assert_allclose(
            analysis.column_sums(column), analysis.dense_matrix(column).sum(0)
        )

    def test_own_weights_are_those_of_a_known_graph(self):
        for graph in (graphs.star(5), graphs.ring(6)):
            peers = graphs.metropolis_hastings(graph)
            mine = graphs.weights(analysis.dense_matrix(peers))
            np.testing.assert_array_equal(mine.ids, peers.ids)
            np.testing.assert_array_equal(mine.weight, peers.weight)
            assert graphs.is_doubly_stochastic(mine)
            assert same(topology.from_peers(mine), graph)
        assert not graphs.is_doubly_stochastic(graphs.uniform_receive(graphs.star(5)))
        both = graphs.weights([np.eye(3), HALVES])
        assert graphs.is_doubly_stochastic(both)
        tilted = [[0.5, 0.5, 0], [1, 0, 0], [0, 0, 1]]
        assert not graphs.is_doubly_stochastic(graphs.weights([np.eye(3), tilted]))

    def test_negative_weights_where_they_are_meant(self):
        matrix = [[1.5, -0.5], [-0.5, 1.5]]
        with pytest.raises(InputError, match="got -0.5 in row 0, column 1: pass allow"):
            graphs.weights(matrix)
        peers = graphs.weights(matrix, allow_negative=True)
        assert peers.weight.tolist() == [[1.5, -0.5], [1.5, -0.5]]
        assert not graphs.is_doubly_stochastic(peers)
        assert graphs.as_graph(peers) is peers

    @pytest.mark.parametrize(
        "matrix, message",
        [
            ([[0.5, 0.5], [0.5, 0.4]], "got 0.9 in row 1: divide"),
            ([np.eye(2), [[1, 0], [0.5, 0.4]]], "got 0.9 in row 1 of matrix 1"),
            ([[1 + 2e-6, 0], [0, 1]], "in row 0"),
            ([[1, 0], [0, 0]], "got 0 in row 1"),
            ([[np.nan, 1], [0, 1]], "finite weights, got nan in row 0, column 0"),
            ([[1, 0], [np.inf, 1]], "got inf in row 1"),
            (np.ones((2, 3)) / 3, r"shape \(2, 3\)"),
            (np.ones(3), r"shape \(3,\)"),
            (np.zeros((0, 0)), r"shape \(0, 0\)"),
            ([], "square matrix"),
            (np.zeros((0, 3, 3)), "one matrix or more"),
            ([np.eye(2), np.eye(3)], r"matrices of \[2, 3\] agents"),
            ([[1, 0], [1]], "rows of one length"),
            ([["a"]], "Need numbers"),
            (nx.path_graph(3), "square matrix"),
            (1j * np.eye(2), "Need numbers"),
        ],
    )
    def test_what_is_no_mixing_matrix_is_refused(self, matrix, message):
        with pytest.raises(InputError, match=message):
            graphs.weights(matrix)

    def test_a_small_error_is_rounding(self):
        assert graphs.weights([[1 + 5e-7, 0], [0, 1]]).weight.shape == (2, 2)

    def test_columns_for_push_sum(self):
        matrix = [[0.5, 1], [0.5, 0]]
        with pytest.raises(InputError, match="push_sum=True"):
            graphs.weights(matrix)
        peers = graphs.weights(matrix, push_sum=True)
        assert analysis.dense_matrix(peers).tolist() == matrix
        with pytest.raises(InputError, match="got 0.9 in column 1"):
            graphs.weights([[0.5, 0.9], [0.5, 0]], push_sum=True)

    def test_report(self):
        found = graphs.report(graphs.weights(HALVES))
        assert found["doubly_stochastic"] and not found["directed"]
        assert found["mean_degree"] == pytest.approx(4 / 3)
        gap = graphs.spectral_gap(graphs.weights(HALVES))
        assert found["spectral_gap"] == gap == pytest.approx(0.5, abs=1e-6)
        assert graphs.spectral_gap(graphs.ring(6)) == pytest.approx(
            graphs.spectral_gap(graphs.metropolis_hastings(graphs.ring(6)))
        )

    def test_depth(self):
        assert [own_matrices.depth(x) for x in (1, [], [1], [[], [1]], np.eye(2))] == [
            0, 1, 1, 2, 2,
        ]  # fmt: skip


class TestSeeds:
    def test_numbers_and_generators(self):
        cluster = np.repeat([0, 1], 6)
        for draw in (
            lambda seed: graphs.random_regular(16, 6, seed=seed),
            lambda seed: graphs.random_regular(16, 11, seed=seed),
            lambda seed: graphs.directed_regular(16, 3, seed=seed),
            lambda seed: graphs.erdos_renyi(16, 0.3, seed=seed),
            lambda seed: graphs.small_world(16, 4, 0.5, seed=seed),
            lambda seed: graphs.oracle(cluster, degree=3, seed=seed),
            lambda seed: graphs.clustered(cluster, degree=3, seed=seed),
        ):
            source = rng(5)
            assert same(draw(5), draw(source))
            assert same(draw(np.int64(5)), draw(rng(5)))
            assert not same(draw(5), draw(source))  # it has advanced
            assert not same(draw(5), draw(6))
            with pytest.raises(InputError, match="whole number of 0 or more"):
                draw(None)

    @pytest.mark.parametrize("seed", [None, -1, 0.5, True, "0"])
    def test_other_seeds_are_refused(self, seed):
        with pytest.raises(InputError, match=f"got {seed!r}"):
            topology.generator(seed)

    def test_the_seed_must_be_given(self):
        with pytest.raises(TypeError, match="seed"):
            graphs.random_regular(16, 6)

    @pytest.mark.parametrize("seed", range(3))
    def test_draws_stay_what_they_were(self, seed):
        """Step by step as graphs of published runs were drawn."""
        number = int(rng(seed).integers(2**31))
        for found, expected in (
            (
                graphs.random_regular(16, 6, seed=seed),
                nx.random_regular_graph(6, 16, seed=number),
            ),
            (
                graphs.random_regular(16, 11, seed=seed),
                nx.complement(nx.random_regular_graph(4, 16, seed=number)),
            ),
            (
                graphs.erdos_renyi(16, 0.3, seed=seed, directed=True),
                nx.gnp_random_graph(16, 0.3, seed=number, directed=True),
            ),
            (
                graphs.small_world(16, 4, 0.1, seed=seed),
                nx.watts_strogatz_graph(16, 4, 0.1, seed=number),
            ),
        ):
            assert same(found, topology.from_graph(expected))
        source, used = rng(seed), [np.arange(9)]
        while len(used) < 3:
            one = source.permutation(9)
            if all((one != other).all() for other in used):
                used.append(one)
        sender, receiver = np.tile(np.arange(9), 2), np.concatenate(used[1:])
        assert same(
            graphs.directed_regular(9, 2, seed=seed),
            topology.from_edges(9, sender, receiver),
        )


def per_communication(graph, communications, size, source=None):
    return schedule.graphs_of_run(
        source or rng(), graph, schedule.COMMUNICATION, size, np.array(communications)
    )


class TestSchedule:
    @given(st.integers(1, 6), st.lists(st.integers(0, 9), min_size=1, max_size=6))
    def test_communication_s_uses_graph_s_modulo_g(self, num_graphs, communications):
        sequence = topology.stack([graphs.ring(3)] * num_graphs)
        found, in_turn = per_communication(sequence, communications, 3)
        assert found is sequence
        width = min(num_graphs, max(1, *communications, 1))
        assert in_turn.shape == (len(communications), width)
        assert in_turn.dtype == np.int32
        used = [
            in_turn[r, c % width]
            for r, number in enumerate(communications)
            for c in range(number)
        ]
        assert used == [s % num_graphs for s in range(len(used))]

    def test_random_graphs_are_drawn_up_to_a_number(self, monkeypatch):
        def draw(source):
            return graphs.directed_regular(6, 2, seed=source)

        found, in_turn = per_communication(draw, [2, 3], 6)
        assert same(found, schedule.varying(draw, 5, seed=0))
        assert in_turn.tolist() == [[0, 1, 2], [2, 3, 4]]
        monkeypatch.setattr(schedule, "MAX_DRAWN", 4)
        found, in_turn = per_communication(draw, [2, 3], 6)
        assert same(found, schedule.varying(draw, 4, seed=0))
        assert in_turn.tolist() == [[0, 1, 2], [2, 3, 0]]
        assert schedule.MAX_DRAWN == 4

    def test_rounds_have_one_graph_otherwise(self):
        sequence = graphs.one_peer_exponential(8)
        for every in (1, 2, 5):
            found, in_turn = schedule.graphs_of_run(
                rng(), sequence, every, 8, np.full(7, 30)
            )
            _, of_round = schedule.graphs_of_rounds(rng(), sequence, every, 8, 7)
            assert found is sequence and in_turn[:, 0].tolist() == of_round.tolist()
            assert in_turn.shape == (7, 1)
        one, in_turn = schedule.graphs_of_run(
            rng(), graphs.ring(8), None, 8, np.full(3, 9)
        )
        assert one.mask.shape == (1, 8, 2) and in_turn.tolist() == [[0]] * 3

    def test_graphs_that_bring_their_weights(self):
        peers = graphs.weights([HALVES, np.eye(3)])
        schedule.check_rewiring(peers, 1)
        found, of_round = schedule.graphs_of_rounds(rng(), peers, 2, 3, 5)
        assert found is peers and of_round.tolist() == [0, 0, 1, 1, 0]
        found, in_turn = per_communication(peers, [3, 3], 3)
        assert found is peers and in_turn.tolist() == [[0, 1], [1, 0]]
        drawn, _ = per_communication(lambda _: graphs.weights(HALVES), [4], 3)
        assert isinstance(drawn, Peers) and drawn.ids.shape == (4, 3, 3)
        one, _ = schedule.graphs_of_rounds(rng(), graphs.weights(HALVES), None, 3, 5)
        assert one.weight.shape == (1, 3, 3)

    def test_no_communication_at_all(self):
        found, in_turn = per_communication(lambda _: graphs.ring(4), [0, 0], 4)
        assert found.mask.shape == (1, 4, 2) and in_turn.tolist() == [[0], [0]]

    @pytest.mark.parametrize(
        "graph, every, message",
        [
            (graphs.ring(4), graphs.COMMUNICATION, "got .*COMMUNICATION and one graph"),
            (graphs.weights(HALVES), 1, "one graph"),
            (graphs.one_peer_exponential(4), None, "or graphs.COMMUNICATION"),
            (graphs.weights([HALVES]), None, "Need rewire_every for a sequence"),
            (graphs.one_peer_exponential(4), 0, "rewire_every=0 and graphs"),
        ],
    )
    def test_what_cannot_switch_is_refused(self, graph, every, message):
        with pytest.raises(InputError, match=message):
            schedule.check_rewiring(graph, every, per_communication=True)

    def test_methods_of_rounds_refuse_communications(self):
        for graph in (graphs.one_peer_exponential(4), lambda _: graphs.ring(4)):
            schedule.check_rewiring(graph, graphs.COMMUNICATION, per_communication=True)
            with pytest.raises(InputError, match="1 is a graph per round"):
                schedule.check_rewiring(graph, graphs.COMMUNICATION)

    def test_the_agents_must_be_those_of_the_data(self):
        with pytest.raises(InputError, match="as many agents as the data have, 5"):
            per_communication(graphs.one_peer_exponential(4), [3], 5)


def test_public_names():
    assert sorted(graphs.__all__) == graphs.__all__
    for name in graphs.__all__:
        assert getattr(graphs, name) is not None
    for name in set(graphs.__all__) - {"COMMUNICATION", "Topology", "as_topology"}:
        assert ">>>" in getattr(graphs, name).__doc__, f"{name} needs an example"


def test_importing_graphs_imports_neither_networkx_nor_scipy():
    """Nor does the use of a table of one's own."""
    script = (
        "import sys; before = set(sys.modules); from p2pjax.graphs import conversion; "
        "conversion.as_graph([(0, 1), (1, 2)]); "
        "assert 'networkx' not in sys.modules; "
        "assert 'scipy.optimize' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("weighted", [False, True])
def test_slots_that_are_added_are_not_used(weighted):
    graph = graphs.erdos_renyi(9, 0.4, seed=0)
    one = graphs.uniform_receive(graph) if weighted else graph
    width = one[0].shape[1] + 3
    wide = graphs.pad_width(one, width)
    assert wide[0].shape == wide[1].shape == (9, width)
    assert (wide[0][:, -3:] == np.arange(9)[:, None]).all()
    assert not wide[1][:, -3:].any()
    for before, after in zip(one, wide, strict=True):
        np.testing.assert_array_equal(np.asarray(before), after[:, :-3])
    with pytest.raises(InputError, match=f"at most {width - 1} neighbours, got one of"):
        graphs.pad_width(wide, width - 1)
