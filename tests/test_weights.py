"""Mixing matrices of a graph and their eigenvalues, against plain numpy."""

import jax
import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pjax.exchange import mixing
from p2pjax.graphs import analysis, clusters, generators, mixing_matrices, topology
from p2pjax.types import InputError, Peers

THIRD, HALF = 1 / 3, 1 / 2
PATH_PLUS = topology.from_graph(nx.Graph([(0, 1), (0, 2), (1, 3)]))
THREE = topology.from_graph(nx.DiGraph([(0, 1), (0, 2), (1, 2), (2, 0)]))


def drawn(seed, directed):
    """Of one size and, with padding, one width: one program serves them all."""
    rng = np.random.default_rng(seed)
    graph = generators.erdos_renyi(8, rng.random(), seed=rng, directed=directed)
    return topology.unstack(topology.stack([graph, generators.complete(8)]))[0]


def hears(graph):
    """Row = receiver; the padding of the table plays no part."""
    matrix = np.zeros((len(graph.mask),) * 2)
    sender, receiver = topology.edges(graph)
    matrix[receiver, sender] = 1
    return matrix


random_graphs = st.builds(drawn, st.integers(0, 10**6), st.just(True))
undirected_graphs = st.builds(drawn, st.integers(0, 10**6), st.just(False))


def test_path_plus():
    np.testing.assert_allclose(
        analysis.dense_matrix(mixing_matrices.metropolis_hastings(PATH_PLUS)),
        [
            [THIRD, THIRD, THIRD, 0],
            [THIRD, THIRD, 0, THIRD],
            [THIRD, 0, 2 * THIRD, 0],
            [0, THIRD, 0, 2 * THIRD],
        ],
        atol=1e-6,
    )
    receive = analysis.dense_matrix(mixing_matrices.uniform_receive(PATH_PLUS))
    np.testing.assert_allclose(
        receive,
        [
            [THIRD, THIRD, THIRD, 0],
            [THIRD, THIRD, 0, THIRD],
            [HALF, 0, HALF, 0],
            [0, HALF, 0, HALF],
        ],
        atol=1e-6,
    )
    np.testing.assert_allclose(receive.sum(0), [7 / 6, 7 / 6, 5 / 6, 5 / 6], atol=1e-6)


def test_uniform_send_of_three_agents():
    np.testing.assert_allclose(
        analysis.dense_matrix(mixing_matrices.uniform_send(THREE)),
        [[THIRD, 0, HALF], [THIRD, HALF, 0], [THIRD, HALF, HALF]],
        atol=1e-6,
    )


@given(random_graphs)
def test_uniform_weights_are_stochastic(graph):
    linked = hears(graph) + np.eye(len(graph.mask))
    receive = analysis.dense_matrix(mixing_matrices.uniform_receive(graph))
    send = analysis.dense_matrix(mixing_matrices.uniform_send(graph))
    np.testing.assert_allclose(receive.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(send.sum(0), 1, atol=1e-6)
    np.testing.assert_allclose(receive, linked / linked.sum(1)[:, None], atol=1e-6)
    np.testing.assert_allclose(send, linked / linked.sum(0), atol=1e-6)


@given(undirected_graphs)
def test_metropolis_hastings_is_symmetric_and_stochastic(graph):
    matrix = analysis.dense_matrix(mixing_matrices.metropolis_hastings(graph))
    degree = hears(graph).sum(1)
    expected = hears(graph) / (1 + np.maximum(degree[:, None], degree))
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-6)
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(matrix - np.diag(np.diag(matrix)), expected, atol=1e-6)


@given(random_graphs, st.integers(0, 100))
def test_size_weighted(graph, seed):
    num_agents = len(graph.mask)
    sizes = np.random.default_rng(seed).integers(0, 4, num_agents)
    matrix = analysis.dense_matrix(mixing_matrices.size_weighted(graph, sizes))
    np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-6)
    linked = hears(graph) + np.eye(num_agents)
    for n in range(num_agents):
        shares = linked[n] * sizes
        expected = shares / shares.sum() if shares.sum() else np.eye(num_agents)[n]
        np.testing.assert_allclose(matrix[n], expected, atol=1e-6)


@pytest.mark.parametrize("directed", [False, True])
def test_all_weights_of_a_regular_graph_are_the_same(directed):
    build = generators.directed_regular if directed else generators.random_regular
    graph = build(10, 3, seed=0)
    for peers in (
        mixing_matrices.uniform_receive(graph),
        mixing_matrices.uniform_send(graph),
        mixing_matrices.metropolis_hastings(graph),
        mixing_matrices.size_weighted(graph, np.full(10, 7)),
    ):
        assert peers.ids[:, 0].tolist() == list(range(10))
        np.testing.assert_allclose(peers.weight, 1 / 4, atol=1e-6)


def test_an_agent_without_neighbours_keeps_its_model():
    alone = topology.from_edges(2, np.array([], int), np.array([], int))
    for peers in (
        mixing_matrices.uniform_receive(alone),
        mixing_matrices.uniform_send(alone),
        mixing_matrices.metropolis_hastings(alone),
        mixing_matrices.size_weighted(alone, np.array([0, 3])),
    ):
        np.testing.assert_array_equal(analysis.dense_matrix(peers), np.eye(2))


def test_weights_are_traced_with_the_graph():
    """One program for all graphs of a width, and padding that leaks nothing."""
    sequence = topology.stack(
        [THREE, generators.ring(3), generators.ring(3, directed=True)]
    )
    traces = []

    def mixed(graph, values):
        traces.append(1)
        peers = mixing_matrices.uniform_send(graph)
        sizes = mixing_matrices.size_weighted(graph, values)
        return peers, sizes, mixing.by_peers(peers)(values)

    step = jax.jit(mixed)
    values = np.array([1, 2, 4], np.float32)
    for graph in topology.unstack(sequence):
        send, sized, result = step(graph, values)
        linked = hears(graph) + np.eye(3)
        np.testing.assert_allclose(result, (linked / linked.sum(0)) @ values, rtol=1e-6)
        expected = linked * values / (linked @ values)[:, None]
        np.testing.assert_allclose(analysis.dense_matrix(sized), expected, rtol=1e-6)
        np.testing.assert_allclose(
            analysis.dense_matrix(send), np.asarray(mixing.dense(send)), rtol=1e-6
        )
    assert len(traces) == 1


def test_lazy():
    ring = mixing_matrices.metropolis_hastings(generators.ring(4))
    np.testing.assert_allclose(
        analysis.dense_matrix(mixing_matrices.lazy(ring)),
        (analysis.dense_matrix(ring) + np.eye(4)) / 2,
        atol=1e-6,
    )
    assert analysis.smallest_eigenvalue(mixing_matrices.lazy(ring)) == pytest.approx(
        1 / 3
    )


def test_smallest_eigenvalue():
    """Rings of even size are the edge case of D2, random 3-regular graphs beyond it."""
    for num_agents in (4, 100):
        ring = mixing_matrices.metropolis_hastings(generators.ring(num_agents))
        assert analysis.smallest_eigenvalue(ring) == pytest.approx(-1 / 3, abs=1e-6)
    sparse = mixing_matrices.metropolis_hastings(
        generators.random_regular(100, 3, seed=0)
    )
    assert analysis.smallest_eigenvalue(sparse) == pytest.approx(-0.45, abs=0.03)
    assert analysis.smallest_eigenvalue(mixing_matrices.lazy(sparse)) > 0
    with pytest.raises(InputError, match="one symmetric matrix"):
        analysis.smallest_eigenvalue(mixing_matrices.uniform_receive(THREE))


def test_spectral_gap():
    ring = mixing_matrices.metropolis_hastings(generators.ring(10))
    second = (1 + 2 * np.cos(2 * np.pi / 10)) / 3
    assert analysis.spectral_gap(ring) == pytest.approx(1 - second, abs=1e-6)
    complete = mixing_matrices.uniform_receive(generators.complete(5))
    assert analysis.spectral_gap(complete) == pytest.approx(1, abs=1e-6)
    split = mixing_matrices.uniform_receive(clusters.oracle([0] * 4 + [1] * 4, seed=0))
    assert analysis.spectral_gap(split) == pytest.approx(0, abs=1e-6)
    # The negative end of the spectrum counts too: two agents that swap never agree.
    swap = Peers(np.array([[0, 1], [1, 0]]), np.array([[0.0, 1], [0, 1]]))
    assert analysis.spectral_gap(swap) == pytest.approx(0, abs=1e-6)
    only = mixing_matrices.uniform_receive(generators.ring(1))
    assert analysis.spectral_gap(only) == 1


def test_gap_predicts_how_fast_agents_agree():
    """Also over a sequence, per mixing."""
    rng = np.random.default_rng(0)
    for sequence in (
        topology.stack([generators.random_regular(12, 3, seed=rng)]),
        topology.stack([generators.random_regular(12, 3, seed=rng) for _ in range(3)]),
    ):
        peers = jax.vmap(mixing_matrices.metropolis_hastings)(sequence)
        one_pass = np.eye(12)
        for matrix in analysis.dense_matrix(peers):
            one_pass = matrix @ one_pass
        spread = np.linalg.matrix_power(one_pass - 1 / 12, 50)
        rate = np.linalg.norm(spread, 2) ** (1 / 50 / len(sequence.mask))
        assert analysis.spectral_gap(peers) == pytest.approx(1 - rate, abs=0.01)


def test_one_peer_exponential_agrees_in_one_pass():
    peers = jax.vmap(mixing_matrices.uniform_receive)(
        generators.one_peer_exponential(8)
    )
    assert analysis.spectral_gap(peers) > 0.99
    split = jax.vmap(mixing_matrices.uniform_receive)(
        topology.stack([clusters.oracle([0, 0, 1, 1], 1, seed=0)] * 2)
    )
    assert analysis.spectral_gap(split) == pytest.approx(0, abs=1e-6)


def test_warnings_where_theory_ends():
    one_way = topology.from_graph(nx.DiGraph([(0, 1), (1, 2)]))
    with pytest.warns(UserWarning, match="theory of D2 needs an undirected graph"):
        assert analysis.warn_if_directed(THREE, "D2")
    with pytest.warns(UserWarning, match="SGP needs a strongly connected graph"):
        assert analysis.warn_if_not_strongly_connected(one_way, "SGP")
    assert not analysis.warn_if_directed(PATH_PLUS, "D2")
    assert not analysis.warn_if_not_strongly_connected(THREE, "SGP")


def test_sequences_are_connected_together():
    forward = topology.from_graph(nx.DiGraph([(0, 1), (1, 2)]))
    backward = topology.receivers(forward)
    both = topology.stack([forward, backward])
    assert not analysis.is_strongly_connected(forward)
    assert analysis.is_strongly_connected(both)
    assert analysis.is_directed(both)  # in each graph, though not in their union
    assert not analysis.is_directed(topology.stack([generators.ring(3)] * 2))


def test_report():
    found = analysis.report(THREE)
    gap = found.pop("spectral_gap")
    assert found.pop("contraction") == pytest.approx(analysis.contraction(THREE))
    assert found == {
        "agents": 3,
        "mean_degree": pytest.approx(4 / 3),
        "smallest_in_degree": 1,
        "largest_in_degree": 2,
        "smallest_out_degree": 1,
        "largest_out_degree": 2,
        "directed": True,
        "strongly_connected": True,
    }
    assert gap == pytest.approx(
        analysis.spectral_gap(mixing_matrices.uniform_receive(THREE))
    )
    sequence = analysis.report(generators.one_peer_exponential(4))
    assert sequence["spectral_gap"] > 0.99 and sequence["strongly_connected"]
    star = analysis.report(generators.star(5))
    undirected = mixing_matrices.metropolis_hastings(generators.star(5))
    assert star["spectral_gap"] == pytest.approx(analysis.spectral_gap(undirected))


@pytest.mark.parametrize("is_wide", [False, True])
def test_weights_have_the_present_width(is_wide):
    """In double precision thirds are not those of single precision."""
    sizes = np.array([1, 2, 4, 4])
    with jax.enable_x64(is_wide):
        found = [
            weigh(generators.ring(4)).weight
            for weigh in (
                mixing_matrices.uniform_receive,
                mixing_matrices.uniform_send,
                mixing_matrices.metropolis_hastings,
            )
        ]
        found.append(mixing_matrices.size_weighted(generators.ring(4), sizes).weight)
    rows = np.array([np.float64(weight) for weight in found])
    assert {weight.dtype for weight in found} == {
        np.dtype("f8") if is_wide else np.dtype("f4")
    }
    exact = [[1 / 3] * 3] * 4
    by_size = [[1 / 7, 2 / 7, 4 / 7], [2 / 7, 1 / 7, 4 / 7], [0.4, 0.2, 0.4]]
    by_size.append([4 / 9, 1 / 9, 4 / 9])
    np.testing.assert_allclose(
        rows, [exact, exact, exact, by_size], atol=1e-15 if is_wide else 1e-7
    )
