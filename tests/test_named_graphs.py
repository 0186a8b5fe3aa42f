"""Graphs of the literature: published numbers, exact products, promised properties."""

import json
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
from test_protocols import TOY, run, started, toy_world

import p2pjax as pj
from p2pjax import graphs
from p2pjax.graphs import analysis, base_graphs, consensus, matchings, topology
from p2pjax.types import InputError, Peers, Variables

VECTORS = json.loads((Path(__file__).parent / "vectors/graphs.json").read_text())
EDGES = VECTORS["edges"]


def rng(seed=0):
    return np.random.default_rng(seed)


def product_of(matrices):
    product = np.eye(matrices.shape[-1])
    for matrix in matrices:
        product = matrix @ product
    return product


def as_lists(sequence):
    """In the vectors' form: rows [i, j, weight]."""
    return [
        [[*pair, str(weight)] for pair, weight in sorted(pairs.items())]
        for pairs in sequence
    ]


def is_exact(num_agents, sequence):
    """Whether the product of a sequence of fractions is J, in fractions."""
    rows = [
        [Fraction(int(i == j)) for j in range(num_agents)] for i in range(num_agents)
    ]
    for pairs in sequence:
        before = [list(row) for row in rows]
        for (i, j), weight in pairs.items():
            for place in range(num_agents):
                change = weight * (before[j][place] - before[i][place])
                rows[i][place] += change
                rows[j][place] -= change
    return all(entry == Fraction(1, num_agents) for row in rows for entry in row)


class TestBaseGraphs:
    @pytest.mark.parametrize("name", list(VECTORS["base_graphs"])[1:])
    def test_published_matrices(self, name):
        num_agents, k = int(name[1]), int(name[-1])
        expected = VECTORS["base_graphs"][name]
        sequence = base_graphs.base_sequence(num_agents, k)
        assert as_lists(sequence) == expected["base"]
        num_messages = 2 * sum(map(len, sequence))
        assert num_messages == expected["messages_per_period"]
        if "simple" in expected:
            simple = base_graphs.base_sequence(num_agents, k, simple=True)
            assert as_lists(simple) == expected["simple"]
        found = analysis.dense_matrix(graphs.base_k(num_agents, k))
        for matrix, pairs in zip(found, sequence, strict=True):
            for (i, j), weight in pairs.items():
                assert matrix[i, j] == matrix[j, i] == np.float32(weight)
            assert np.count_nonzero(matrix - np.diag(matrix.diagonal())) == 2 * len(
                pairs
            )

    @pytest.mark.parametrize("k", [1, 2, 3])
    def test_published_lengths(self, k):
        expected = VECTORS["base_lengths_n_2_to_32"][f"k{k}"]
        for kind in ("simple", "base"):
            for num_agents in range(k + 1, 33):
                sequence = base_graphs.base_sequence(num_agents, k, kind == "simple")
                assert len(sequence) == expected[kind][num_agents - 2]

    @pytest.mark.parametrize("num_agents", [*range(2, 20), 23, 25, 30])
    def test_the_product_is_j_in_fractions(self, num_agents):
        for k in range(1, min(num_agents, 6)):
            for simple in (False, True):
                sequence = base_graphs.base_sequence(num_agents, k, simple)
                assert is_exact(num_agents, sequence)
                for pairs in sequence:
                    ends = np.bincount(np.ravel(list(pairs)), minlength=num_agents)
                    assert ends.max() <= k
                    assert all(0 < weight < 1 for weight in pairs.values())

    @pytest.mark.parametrize("num_agents", [242, 243, 244, 325, 485])
    def test_powers_are_whole_numbers(self, num_agents):
        """Floating logarithms give degree 3 from 244 agents on, and fail from 325."""
        graph = graphs.base_k(num_agents, 2)
        assert graph.ids.shape[2] <= 3
        assert graphs.steps_to_consensus(graph) == len(graph.ids)
        assert graphs.is_doubly_stochastic(graph)
        matrices = analysis.dense_matrix(graph)
        np.testing.assert_array_equal(matrices, matrices.swapaxes(1, 2))

    def test_25_agents(self):
        """As many steps as the experiments of the specification say."""
        found = [graphs.steps_to_consensus(graphs.base_k(25, k)) for k in (1, 2, 3, 4)]
        assert found == [9, 6, 5, 2]

    def test_shifted_windows_and_other_weights_are_not_exact(self):
        matrices = analysis.dense_matrix(graphs.base_k(5, 1))
        length = len(matrices)
        off = [
            np.abs(product_of(np.roll(matrices, -shift, axis=0)) - 1 / 5).max()
            for shift in range(length)
        ]
        assert off[0] < 1e-7 and max(off) > 0.01
        twice = np.concatenate([matrices] * 3)
        for first in range(length):
            window = twice[first : first + 2 * length - 1]
            np.testing.assert_allclose(product_of(window), 1 / 5, atol=1e-7)
        links = topology.from_peers(graphs.base_k(5, 1))
        plain = analysis.dense_matrix(jax.vmap(graphs.metropolis_hastings)(links))
        off = np.abs(product_of(plain) - 1 / 5).max()
        assert off == pytest.approx(0.3, abs=1e-6)
        assert graphs.contraction(links) < 1 == graphs.contraction(graphs.base_k(5, 1))

    def test_powers_of_two_are_hypercubes(self):
        links = topology.from_peers(graphs.base_k(16, 1))
        for one, other in zip(links, graphs.one_peer_hypercube(16), strict=True):
            np.testing.assert_array_equal(one, other)

    def test_double_precision_where_jax_has_it(self):
        with jax.enable_x64(True):
            found = graphs.base_k(7, 1)
            assert found.weight.dtype == np.float64
            product = product_of(analysis.dense_matrix(found))
        np.testing.assert_allclose(product, 1 / 7, rtol=0, atol=1e-15)


def at_rest(graph, start, size, **options):
    """D-PSGD that learns nothing, from these models [N] on; models [R, N], info."""
    method = pj.dpsgd(TOY, optax.sgd(0.0), graph, batch_size=1, **options)
    method = started(method, Variables({"x": jnp.asarray(start)}, {}))
    world = toy_world(np.zeros(len(start)), [size] * len(start))
    states, info = run(method, world, 6)
    return np.asarray(states.variables.params["x"]), info


class TestThroughMethods:
    START = np.array([3.0, -1.0, 4.0, 10.0, -6.0], np.float32)

    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_base_graphs_reach_the_exact_mean(self, size):
        """Also where a pass goes over several rounds of `size` exchanges."""
        found, info = at_rest(
            graphs.base_k(5, 1), self.START, size, rewire_every=graphs.COMMUNICATION
        )
        num_exchanges = size * np.arange(1, 7)
        is_agreed = np.abs(found - 2).max(1) < 1e-5
        np.testing.assert_array_equal(is_agreed, num_exchanges >= 5)
        pairs = [len(one) for one in base_graphs.base_sequence(5, 1)]
        sent = np.cumsum([2 * pairs[step % 5] for step in range(6 * size)])
        np.testing.assert_array_equal(
            np.cumsum(info.sent.sum(1)), sent[num_exchanges - 1]
        )

    def test_a_graph_per_epoch_is_not_exact(self):
        found, _ = at_rest(graphs.base_k(5, 1), self.START, 2, rewire_every=1)
        assert np.abs(found[4] - 2).max() > 0.1

    def test_scoring_models_before_they_are_averaged(self):
        found, _ = at_rest(
            graphs.base_k(5, 1),
            self.START,
            1,
            rewire_every=graphs.COMMUNICATION,
            score_before=True,
        )
        np.testing.assert_allclose(found[5], 2, atol=1e-5)  # pending after five

    @pytest.mark.parametrize("score_before", [False, True])
    def test_random_graphs_that_bring_their_weights(self, score_before):
        for draw in (
            graphs.matcha(EDGES, 0.6),
            graphs.matcha(EDGES, 0.6, weighted=False),
            lambda rng: graphs.equi_dyn(5, seed=rng),
            lambda rng: graphs.equi_dyn(5, seed=rng, directed=False),
        ):
            found, _ = at_rest(
                draw,
                self.START,
                9,
                rewire_every=graphs.COMMUNICATION,
                score_before=score_before,
                mixing_weights=graphs.metropolis_hastings,
            )
            np.testing.assert_allclose(found[-1], 2, atol=0.05)


def gap_of(graph):
    with jax.enable_x64(True):
        return graphs.spectral_gap(graph)


SIXTEEN = {
    "ring": graphs.ring(16),
    "path": graphs.chain(16),
    "star": graphs.star(16),
    "torus_4x4": graphs.torus(16, 4),
    "hypercube": graphs.hypercube(16),
    "two_cliques": graphs.dumbbell(16),
    "barbell_6_4": graphs.barbell(16, 4),
    "two_worlds_1": graphs.two_worlds(16, 1),
    "two_worlds_2": graphs.two_worlds(16, 2),
}


@pytest.mark.parametrize("name", list(VECTORS["spectral_gap_metropolis_16_agents"]))
def test_published_gaps(name):
    expected = VECTORS["spectral_gap_metropolis_16_agents"][name]
    graph = SIXTEEN[name]
    assert graph.mask.sum() == 2 * expected["edges"]
    with jax.enable_x64(True):
        assert graphs.spectral_gap(graph) == pytest.approx(expected["gap"], abs=1e-9)
        assert graphs.contraction(graph) == pytest.approx(expected["gap"], abs=1e-9)
        peers = graphs.metropolis_hastings(graph)
        lowest = analysis.smallest_eigenvalue(peers)
    assert lowest == pytest.approx(expected["lambda_min"], abs=1e-9)


def test_metropolis_weights_of_the_small_problem():
    found = analysis.dense_matrix(graphs.metropolis_hastings(EDGES))
    np.testing.assert_allclose(found, VECTORS["W_metropolis"], atol=1e-7)


class TestConsensus:
    def test_one_peer_exponential_is_exact_for_powers_of_two_only(self):
        for size in (2, 3, 6, 8, 12, 16):
            steps = graphs.steps_to_consensus(graphs.one_peer_exponential(size))
            is_power = size & (size - 1) == 0
            assert steps == (size.bit_length() - 1 if is_power else None)
        graph = jax.vmap(graphs.uniform_receive)(graphs.one_peer_exponential(25))
        product = product_of(analysis.dense_matrix(graph))
        off = np.linalg.norm(product - 1 / 25, 2)
        assert off == pytest.approx(0.192, abs=5e-4)
        assert graphs.contraction(graph) == pytest.approx(1 - off ** (1 / 5), abs=1e-6)

    def test_contraction_of_directed_and_changing_graphs(self):
        sequence = [graphs.directed_regular(9, 2, seed=one) for one in range(4)]
        peers = jax.vmap(graphs.uniform_receive)(topology.stack(sequence))
        product = product_of(analysis.dense_matrix(peers)) - 1 / 9
        size = np.linalg.norm(product, 2) ** (1 / 4)
        assert graphs.contraction(peers) == pytest.approx(1 - size, abs=1e-6)
        second = np.abs(np.linalg.eigvals(product)).max() ** (1 / 4)
        assert graphs.spectral_gap(peers) == pytest.approx(1 - second, abs=1e-6)
        assert graphs.contraction(peers) < graphs.spectral_gap(peers)

    def test_zero_eigenvalues_are_not_agreement(self):
        """A product that is nilpotent but for the mean: its gap is 1."""
        left = np.array([1.0, -1, 0, 0]) / 2
        right = np.array([0.0, 0, 1, -1]) / 2
        matrix = np.full((4, 4), 0.25) + np.outer(left, right)
        peers = graphs.weights(matrix)
        assert graphs.is_doubly_stochastic(peers)
        # Round-off makes square roots of what should be eigenvalues of 0.
        assert graphs.spectral_gap(peers) > 1 - 1e-3
        assert graphs.contraction(peers) == pytest.approx(0.5, abs=1e-6)
        assert graphs.steps_to_consensus(peers) is None

    def test_long_sequences_do_not_end_in_round_off(self):
        ring = graphs.ring(6)
        once = graphs.spectral_gap(ring)
        many = topology.stack([ring] * 500)
        assert graphs.spectral_gap(many) == pytest.approx(once, abs=1e-6)
        assert graphs.contraction(many) == pytest.approx(once, abs=1e-6)

    def test_push_sum_is_taken_as_it_is_corrected(self):
        peers = graphs.uniform_send(graphs.as_graph([(0, 1), (1, 2), (2, 3), (3, 1)]))
        assert not analysis.is_row_stochastic(peers)
        matrix = analysis.dense_matrix(peers)
        eigenvalues = np.sort(np.abs(np.linalg.eigvals(matrix)))
        assert graphs.spectral_gap(peers) == pytest.approx(
            1 - eigenvalues[-2], abs=1e-6
        )
        corrected = matrix / matrix.sum(1, keepdims=True)
        left = corrected - corrected.mean(0)
        size = np.linalg.norm(left, 2)
        assert graphs.contraction(peers) == pytest.approx(1 - size, abs=1e-6)
        twice = consensus.de_biased(np.stack([matrix, matrix]))
        square = matrix @ matrix
        np.testing.assert_allclose(
            twice[1] @ twice[0], square / square.sum(1, keepdims=True), atol=1e-12
        )

    def test_one_agent_agrees(self):
        assert graphs.contraction(graphs.ring(1)) == 1
        assert graphs.spectral_gap(graphs.complete(5)) == 1
        assert graphs.steps_to_consensus(graphs.complete(5)) == 1

    def test_report(self):
        found = graphs.report(graphs.base_k(5, 1))
        assert found["contraction"] == found["spectral_gap"] == 1
        assert found["steps_to_consensus"] == 5 and found["doubly_stochastic"]
        assert found["mean_degree"] == pytest.approx(20 / 25)
        assert "steps_to_consensus" not in graphs.report(graphs.ring(5))

    def test_random_shifts_shrink_the_squared_error_as_published(self):
        known = VECTORS["random_shift_expected_contraction"]
        for size, factor in zip(
            known["n"], known["largest_eigenvalue_of_E_WtW_minus_J"], strict=True
        ):
            mean = np.mean(
                [_shifted(size, v).T @ _shifted(size, v) for v in range(1, size)], 0
            )
            left = np.linalg.eigvalsh(mean - 1 / size)
            assert left[-1] == pytest.approx(factor, abs=1e-9)
            assert factor == pytest.approx((size - 2) / (2 * (size - 1)), abs=1e-9)
            ratio = graphs.squared_error_ratio(
                lambda draw, size=size: graphs.equi_dyn(size, seed=draw),
                num_draws=400,
                seed=0,
            )
            assert ratio == pytest.approx(factor, abs=0.04)
        for seed in range(20):
            found = analysis.dense_matrix(graphs.equi_dyn(7, seed=seed))
            assert any(np.allclose(found, _shifted(7, v)) for v in range(1, 7))


def _shifted(size, distance):
    return (np.eye(size) + np.roll(np.eye(size), distance, axis=0)) / 2


class TestMatchings:
    def test_published_matchings_and_alpha(self):
        known = VECTORS["matchings"]
        partner = graphs.edge_matchings(EDGES)
        found = {
            frozenset((i, int(j)) for i, j in enumerate(row) if i < j)
            for row in partner
        }
        assert found == {
            frozenset(tuple(edge) for edge in edges) for edges in known["matchings"]
        }
        alpha, rho = matchings.best_alpha(partner, np.full(3, known["p"]))
        assert alpha == pytest.approx(known["alpha"], abs=known["alpha_tolerance"])
        assert rho == pytest.approx(known["rho"], abs=1e-5)

    def test_alpha_is_best_by_all_draws(self):
        """The mean of W'W over all eight sets of matchings, written out."""
        partner, chance = graphs.edge_matchings(EDGES), np.array([0.3, 0.6, 0.9])
        laplacian = np.eye(5) - np.eye(5)[partner]

        def factor(alpha):
            mean = np.zeros((5, 5))
            for active in np.ndindex(2, 2, 2):
                odds = np.prod(np.where(active, chance, 1 - chance))
                matrix = np.eye(5) - alpha * np.tensordot(active, laplacian, 1)
                mean += odds * matrix.T @ matrix
            return np.linalg.eigvalsh(mean - 1 / 5)[-1]

        alpha, rho = matchings.best_alpha(partner, chance)
        assert rho == pytest.approx(factor(alpha), abs=1e-9)
        assert rho <= min(map(factor, np.linspace(0, 1, 201))) + 1e-9

    @pytest.mark.parametrize("seed", range(4))
    def test_all_links_once(self, seed):
        graph = graphs.erdos_renyi(12, 0.4, seed=seed)
        partner = graphs.edge_matchings(graph)
        assert (np.take_along_axis(partner, partner, 1) == np.arange(12)).all()
        links = [(i, j) for row in partner for i, j in enumerate(row) if i != j]
        assert len(set(links)) == len(links) == graph.mask.sum()

    def test_draws(self):
        draw, source = graphs.matcha(EDGES, [0.2, 1, 0.5], alpha=0.25), rng()
        found = [draw(source) for _ in range(400)]
        matrices = np.stack([analysis.dense_matrix(one) for one in found])
        np.testing.assert_array_equal(matrices, matrices.swapaxes(1, 2))
        np.testing.assert_allclose(matrices.sum(1), 1, atol=1e-6)
        laplacian = np.eye(5) - np.eye(5)[graphs.edge_matchings(EDGES)]
        mean = np.eye(5) - 0.25 * np.tensordot([0.2, 1, 0.5], laplacian, 1)
        np.testing.assert_allclose(matrices.mean(0), mean, atol=0.03)
        assert {one.ids.shape for one in found} == {(5, 4)}
        plain = graphs.matcha(EDGES, 0.5, weighted=False)
        assert {plain(source).mask.shape for _ in range(20)} == {(5, 3)}
        for _ in range(20):
            graphs.as_graph(plain(source))

    def test_all_matchings_are_the_graph(self):
        found = graphs.matcha(EDGES, 1, alpha=0.2)(rng())
        links = topology.from_peers(found)
        for one, other in zip(links, graphs.as_graph(EDGES), strict=True):
            np.testing.assert_array_equal(one, other)


class TestTrees:
    def test_published_tree(self):
        found = graphs.bfs_tree(EDGES, root=0)
        known = VECTORS["bfs_tree"]
        assert found.neighbor.tolist() == known["neighbor"]
        assert found.mask.astype(int).tolist() == known["mask"]

    @pytest.mark.parametrize("root", [0, 7, 15])
    def test_shortest_paths_and_lowest_parents(self, root):
        graph = graphs.small_world(16, 4, 0.3, seed=1, connected=True)
        tree = graphs.bfs_tree(graph, root)
        assert tree.mask.sum() == 2 * 15
        whole, spanning = (_networkx(one) for one in (graph, tree))
        far = nx.single_source_shortest_path_length(whole, root)
        assert far == nx.single_source_shortest_path_length(spanning, root)
        for agent in set(range(16)) - {root}:
            nearer = [one for one in whole[agent] if far[one] < far[agent]]
            parent = [one for one in spanning[agent] if far[one] < far[agent]]
            assert parent == [min(nearer)]

    def test_other_trees(self):
        for size in (1, 2, 7, 12):
            for tree in (graphs.chain(size), graphs.binary_tree(size)):
                assert tree.mask.sum() == 2 * (size - 1)
                assert analysis.is_strongly_connected(tree)
        assert graphs.binary_tree(7).mask.sum(1).tolist() == [2, 3, 3, 1, 1, 1, 1]
        assert nx.utils.graphs_equal(
            _networkx(graphs.chain(9)), nx.path_graph(9)
        ) and nx.is_isomorphic(
            _networkx(graphs.binary_tree(15)), nx.balanced_tree(2, 3)
        )
        weighted = graphs.metropolis_hastings(graphs.ring(5))
        for one, other in zip(
            graphs.bfs_tree(weighted), graphs.bfs_tree(graphs.ring(5)), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def _networkx(graph):
    found = nx.empty_graph(len(graph.mask))
    found.add_edges_from(zip(*topology.edges(graph), strict=True))
    return found


def test_hypercubes():
    for dimension in (1, 3, 4):
        size = 2**dimension
        graph = graphs.hypercube(size)
        number = {
            node: sum(bit << place for place, bit in enumerate(np.atleast_1d(node)))
            for node in nx.hypercube_graph(dimension)
        }
        expected = nx.relabel_nodes(nx.hypercube_graph(dimension), number)
        assert nx.utils.graphs_equal(_networkx(graph), expected)
        one_peer = graphs.one_peer_hypercube(size)
        assert one_peer.mask.shape == (dimension, size, 1)
        assert graphs.steps_to_consensus(one_peer) == dimension
        if dimension > 1:
            gap = gap_of(graph)
            assert gap == pytest.approx(2 / (dimension + 1), abs=1e-9)


def test_small_worlds_and_scale_free_graphs():
    apart = graphs.small_world(30, 2, 0.5, seed=2)
    joined = graphs.small_world(30, 2, 0.5, seed=2, connected=True)
    assert not analysis.is_strongly_connected(apart)
    assert analysis.is_strongly_connected(joined)
    for links in (1, 2, 5):
        graph = graphs.scale_free(20, links, seed=0)
        assert graph.mask.sum() == 2 * (20 * links - links**2)
        assert analysis.is_strongly_connected(graph)


def test_small_worlds_that_stay_apart_are_refused(monkeypatch):
    def fail(*args, **options):
        raise nx.NetworkXError("Maximum number of tries exceeded")

    monkeypatch.setattr(nx, "connected_watts_strogatz_graph", fail)
    with pytest.raises(InputError, match="none in 100 draws"):
        graphs.small_world(9, 2, 1, seed=0, connected=True)


class TestEquiTopo:
    @pytest.mark.parametrize("size", [2, 3, 8, 11])
    def test_pairs(self, size):
        for seed in range(10):
            peers = graphs.equi_dyn(size, seed=seed, directed=False)
            matrix = analysis.dense_matrix(peers)
            np.testing.assert_array_equal(matrix, matrix.T)
            assert set(matrix.diagonal()) <= {0.5, 1} and peers.ids.shape[1] == 2
            distances = np.unique(
                (peers.ids[:, 1] - peers.ids[:, 0])[peers.weight[:, 1] > 0] % size
            )
            assert len(distances) <= 2 and distances.sum() in {size, size / 2}

    def test_static(self):
        peers = graphs.equi_static(16, 4, seed=0)
        assert graphs.is_doubly_stochastic(peers)
        matrix = analysis.dense_matrix(peers)
        np.testing.assert_allclose(matrix.diagonal(), 1 / 16, atol=1e-7)
        for row in range(16):  # a circulant
            np.testing.assert_array_equal(np.roll(matrix[0], row), matrix[row])
        shares = np.round(matrix[0, 1:] / (15 / 16) * 4, 5)
        assert shares.sum() == 4 and set(shares) <= {0, 1, 2, 3, 4}


class TestGeometric:
    def test_near_agents_are_linked(self):
        graph = graphs.geometric(40, 0.2, seed=3)
        places = rng(3).uniform(size=(40, 2))
        moves = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
        nearest = np.min(
            [
                np.linalg.norm(places[:, None] - places + move, axis=-1)
                for move in moves
            ],
            axis=0,
        )
        expected = (nearest < 0.2) & ~np.eye(40, dtype=bool)
        found = np.zeros((40, 40), bool)
        sender, receiver = topology.edges(graph)
        found[receiver, sender] = True
        np.testing.assert_array_equal(found, expected)

    def test_joined_by_the_shortest_links(self):
        apart = graphs.geometric(30, 0.1, seed=0)
        joined = graphs.geometric(30, 0.1, seed=0, connected=True)
        parts = nx.number_connected_components(_networkx(apart))
        assert parts > 3 and nx.is_connected(_networkx(joined))
        assert joined.mask.sum() - apart.mask.sum() == 2 * (parts - 1)

    def test_moves(self):
        still = graphs.moving_geometric(20, 0.3, speed=0, num_graphs=4, seed=1)
        one = graphs.geometric(20, 0.3, seed=1)
        for graph in topology.unstack(still):
            for found, expected in zip(graph, one, strict=True):
                np.testing.assert_array_equal(found, expected)
        moving = graphs.moving_geometric(
            20, 0.3, speed=0.2, num_graphs=4, seed=1, connected=True
        )
        assert not topology.is_directed(moving)
        masks = [graph.mask.sum() for graph in topology.unstack(moving)]
        assert len(set(masks)) > 1
        assert all(
            analysis.is_strongly_connected(graph) for graph in topology.unstack(moving)
        )


EVERY = {
    "barbell": lambda seed: graphs.barbell(12, 2),
    "base_k": lambda seed: graphs.base_k(12, 1 + seed),
    "binary_tree": lambda seed: graphs.binary_tree(12),
    "chain": lambda seed: graphs.chain(12),
    "equi_dyn": lambda seed: graphs.equi_dyn(12, seed=seed),
    "equi_dyn_pairs": lambda seed: graphs.equi_dyn(12, seed=seed, directed=False),
    "equi_static": lambda seed: graphs.equi_static(12, 3, seed=seed),
    "exponential": lambda seed: graphs.exponential(12),
    "geometric": lambda seed: graphs.geometric(12, 0.3, seed=seed),
    "hypercube": lambda seed: graphs.hypercube(16),
    "matcha": lambda seed: graphs.matcha(graphs.torus(12, 3), 0.5)(rng(seed)),
    "moving_geometric": lambda seed: graphs.moving_geometric(
        12, 0.3, speed=0.1, num_graphs=3, seed=seed
    ),
    "one_peer_exponential": lambda seed: graphs.one_peer_exponential(12),
    "one_peer_hypercube": lambda seed: graphs.one_peer_hypercube(16),
    "scale_free": lambda seed: graphs.scale_free(12, 2, seed=seed),
    "small_world": lambda seed: graphs.small_world(12, 4, 0.3, seed=seed),
    "two_worlds": lambda seed: graphs.two_worlds(12, 2),
}
DIRECTED = {"equi_dyn", "equi_static", "exponential", "one_peer_exponential"}


@pytest.mark.parametrize("name", list(EVERY))
def test_promised_properties(name):
    """All keep the mean; symmetric but for those that are directed; as seeded."""
    for seed in range(3):
        graph = EVERY[name](seed)
        assert graphs.as_graph(graph) is graph
        for one, other in zip(graph, EVERY[name](seed), strict=True):
            np.testing.assert_array_equal(one, other)
        peers = analysis._weights_of(graph)
        matrix = analysis.dense_matrix(peers)
        np.testing.assert_allclose(matrix.sum(-1), 1, atol=1e-6)
        np.testing.assert_allclose(matrix.sum(-2), 1, atol=1e-6)
        if name not in DIRECTED:
            np.testing.assert_allclose(matrix, matrix.swapaxes(-1, -2), atol=1e-7)
        if isinstance(graph, Peers):
            np.testing.assert_array_equal(
                graph.ids[..., 0], np.broadcast_to(np.arange(12), graph.ids.shape[:-1])
            )
            own = np.arange(12)[:, None]  # a message of no weight is not sent
            assert (graph.weight[graph.ids != own] != 0).all()


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: graphs.base_k(5, 0), "1 <= k < 5"),
        (lambda: graphs.base_k(5, 5), "got k=5"),
        (lambda: graphs.base_k(1, 1), "two agents or more"),
        (lambda: graphs.hypercube(12), "power of two, 2 or more.*got 12: base_k"),
        (lambda: graphs.hypercube(1), "got 1"),
        (lambda: graphs.one_peer_hypercube(0), "got 0"),
        (lambda: graphs.chain(0), "one agent or more"),
        (lambda: graphs.binary_tree(-1), "one agent or more"),
        (
            lambda: graphs.bfs_tree([(0, 1), (2, 3)]),
            "agent 2 cannot be reached from agent 0",
        ),
        (
            lambda: graphs.bfs_tree(graphs.exponential(6)),
            "one in which an agent sends to",
        ),
        (lambda: graphs.bfs_tree(graphs.ring(4), 4), "root among 0 to 3, got 4"),
        (lambda: graphs.bfs_tree(graphs.base_k(5, 1)), "got a sequence"),
        (lambda: graphs.bfs_tree(lambda rng: graphs.ring(4)), "function that draws"),
        (lambda: graphs.equi_dyn(1, seed=0), "two agents or more for a shift"),
        (lambda: graphs.equi_dyn(5, seed=0, weight=1), "between 0 and 1, got 1"),
        (lambda: graphs.equi_static(5, 0, seed=0), "one shift or more"),
        (lambda: graphs.edge_matchings(graphs.exponential(6)), "go both ways"),
        (lambda: graphs.edge_matchings(graphs.one_peer_hypercube(4)), "a sequence"),
        (lambda: graphs.edge_matchings(graphs.as_graph([], 3)), "got none"),
        (lambda: graphs.matcha(EDGES, 0), "above 0 and up to 1"),
        (lambda: graphs.matcha(EDGES, [0.5, 0.5]), "of each of 3"),
        (lambda: graphs.matcha(EDGES, 0.5, alpha=-1), "alpha above 0"),
        (lambda: graphs.matcha(EDGES, 0.5, alpha=0.5, weighted=False), "belongs to"),
        (lambda: graphs.barbell(9, 2), "even number of 4 agents or more"),
        (lambda: graphs.barbell(8, -2), "path of -2"),
        (lambda: graphs.scale_free(5, 5, seed=0), "1 to 4 links"),
        (lambda: graphs.geometric(5, 0, seed=0), "radius above 0"),
        (lambda: graphs.geometric(0, 0.1, seed=0), "one agent or more"),
        (
            lambda: graphs.moving_geometric(5, 0.1, speed=-1, num_graphs=2, seed=0),
            "speed of 0 or more",
        ),
        (
            lambda: graphs.moving_geometric(5, 0.1, speed=1, num_graphs=0, seed=0),
            "one graph or more",
        ),
        (
            lambda: graphs.squared_error_ratio(
                graphs.matcha(EDGES), num_draws=0, seed=0
            ),
            "one draw or more",
        ),
        (lambda: graphs.contraction(graphs.matcha(EDGES)), "got a function"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(InputError, match=message):
        build()
