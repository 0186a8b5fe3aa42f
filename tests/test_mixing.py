"""Mixing against numpy: leaf shapes, slots, blocks, matchings, weights."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from p2pjax import sharding
from p2pjax.exchange import mixing
from p2pjax.exchange.owner_classes import Block, MixPlan, OwnerClass, whole_model
from p2pjax.graphs import generators, mixing_matrices, topology
from p2pjax.partial import averaging
from p2pjax.types import InputError, Peers

SHAPES = [(), (1,), (7,), (1, 300), (300, 1), (1, 1), (33, 5), (5, 1, 67), (301,), (0,)]


def random_tree(rng, num_agents):
    return {
        str(i): rng.normal(size=(num_agents, *shape)).astype(np.float32)
        for i, shape in enumerate(SHAPES)
    }


def random_peers(rng, num_agents, num_slots):
    ids = rng.integers(0, num_agents, (num_agents, num_slots)).astype(np.int32)
    ids[:, 0] = np.arange(num_agents)
    return Peers(ids, rng.normal(size=ids.shape).astype(np.float32))


def numpy_mix(tree, peers):
    matrix = np.zeros((len(peers.ids),) * 2)
    for n, (ids, weights) in enumerate(zip(*peers, strict=True)):
        for k, w in zip(ids, weights, strict=True):
            matrix[n, k] += w
    return {name: np.tensordot(matrix, x, 1) for name, x in tree.items()}


@pytest.mark.parametrize("block_bytes", [8 << 20, 4000, 1])
@pytest.mark.parametrize("num_agents, num_slots", [(3, 1), (8, 4), (13, 9), (40, 2)])
def test_mix_equals_numpy(monkeypatch, block_bytes, num_agents, num_slots):
    """Size-1 axes, odd tails, many blocks, gathers and matmul; in place and jitted."""
    monkeypatch.setattr(mixing, "BLOCK_BYTES", block_bytes)
    rng = np.random.default_rng(num_agents * num_slots)
    tree, peers = random_tree(rng, num_agents), random_peers(rng, num_agents, num_slots)
    plan = whole_model(num_agents, jax.tree.map(lambda x: x[0], tree))
    mix = jax.jit(
        lambda tree, peers: (
            mixing.mix(tree, plan, lambda _: mixing.by_peers(peers)),
            mixing.mix(tree, plan, lambda _: mixing.by_matrix(mixing.dense(peers))),
        ),
    )
    for mixed in mix(tree, peers):
        for name, expected in numpy_mix(tree, peers).items():
            np.testing.assert_allclose(mixed[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block_bytes", [2 << 20, 4000])
def test_mix_in_place(monkeypatch, block_bytes):
    """Donated: every block overwrites what it was read from."""
    monkeypatch.setattr(mixing, "BLOCK_BYTES", block_bytes)
    rng = np.random.default_rng(0)
    tree, peers = random_tree(rng, 9), random_peers(rng, 9, 3)
    plan = whole_model(9, jax.tree.map(lambda x: x[0], tree))
    mix = jax.jit(
        lambda tree, peers: mixing.mix(tree, plan, lambda _: mixing.by_peers(peers)),
        donate_argnums=0,
    )
    mixed = mix(jax.tree.map(jnp.asarray, tree), peers)
    for name, expected in numpy_mix(tree, peers).items():
        np.testing.assert_allclose(mixed[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_mixing_needs_no_second_copy(num_devices):
    """Blocks only, on one device and where rows of others have to be gathered."""
    num_agents, width = 64, 100_000
    plan = whole_model(num_agents, {"w": np.zeros(width, np.float32)})
    with jax.set_mesh(sharding.agents_mesh(num_agents, num_devices)):
        held = sharding.place({"w": np.zeros((num_agents, width), np.float32)})
        ids = np.arange(num_agents)[:, None] + np.arange(3)
        weight = np.full((num_agents, 3), 1 / 3, np.float32)
        peers = sharding.place(Peers(ids.astype(np.int32) % num_agents, weight))
        mix = jax.jit(
            lambda held, peers: mixing.mix(
                held, plan, lambda _: mixing.by_peers(peers)
            ),
            donate_argnums=0,
        )
        used = mix.lower(held, peers).compile().memory_analysis()
    per_device = 4 * num_agents * width // num_devices
    assert used.alias_size_in_bytes == per_device
    assert used.temp_size_in_bytes < 2 * mixing.BLOCK_BYTES < per_device / 2


@pytest.mark.parametrize("shape", [(1, 300), (300, 1), (1, 1, 301), (7, 1)])
@pytest.mark.parametrize("columns", [7, 32, 100])
def test_in_place_blocks_survive_a_reshape(monkeypatch, shape, columns):
    """XLA:CPU miscompiles exactly this without the barrier (off by 12)."""
    monkeypatch.setattr(mixing, "BLOCK_BYTES", columns * 9 * 4)
    monkeypatch.setattr(mixing, "_even_length", min)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, *shape)).astype(np.float32)
    peers = random_peers(rng, 9, 3)
    plan = whole_model(9, [x[0]])

    def mix_and_flatten(x, peers):
        mixed = mixing.mix([x], plan, lambda _: mixing.by_peers(peers))[0]
        return mixed.reshape(9, -1)

    mixed = jax.jit(mix_and_flatten, donate_argnums=0)(jnp.asarray(x), peers)
    expected = numpy_mix({"x": x}, peers)["x"].reshape(9, -1)
    np.testing.assert_allclose(mixed, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_slots", [4, 8])  # by gathers, by a matrix
def test_what_diverged_reaches_those_who_weigh_it(num_slots):
    """Slots without weight point at the agent: 0 * NaN must not spread."""
    ids = np.tile(np.arange(16)[:, None], num_slots)
    ids[2, 1] = 5
    weight = np.zeros((16, num_slots), np.float32)
    weight[:, 0] = 1
    weight[2, :2] = 0.5
    peers = Peers(jnp.asarray(ids), jnp.asarray(weight))
    block = jnp.arange(32.0).reshape(16, 2).at[5, 0].set(jnp.nan)
    combine = mixing.fastest_combine(peers, np.zeros(16, int))
    assert ("dot_general" in str(jax.make_jaxpr(combine)(block))) == (num_slots == 8)
    found = np.asarray(jax.jit(combine)(block))
    expected = np.array(block)
    expected[2] = [np.nan, 0.5 * (5 + 11)]
    np.testing.assert_array_equal(found, expected)


def test_the_matmul_is_for_one_large_group_only():
    peers = mixing_matrices.metropolis(generators.complete(12), np.zeros(12, int))
    block = jnp.ones((12, 2)).at[0].set(jnp.inf)
    assert not np.isfinite(
        mixing.fastest_combine(peers, np.zeros(12, int))(block)
    ).any()
    owner = np.repeat([0, 1, -1], 4)
    peers = mixing_matrices.metropolis(generators.complete(12), owner)
    assert np.isfinite(mixing.fastest_combine(peers, owner)(block)[4:]).all()


@pytest.mark.parametrize("block_bytes", [8 << 20, 4000])
def test_blocks_of_a_class_leave_the_rest_alone(monkeypatch, block_bytes):
    monkeypatch.setattr(mixing, "BLOCK_BYTES", block_bytes)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 40, 9)).astype(np.float32)
    owner = np.asarray([0, 0, 1, 1, 1, -1])
    plan = MixPlan((OwnerClass(owner, (Block(0, (3, 2), (38, 7)),)),))
    mixed = np.asarray(
        jax.jit(lambda x: mixing.mix([x], plan, mixing.by_group_mean))(x)[0]
    )
    expected = x.copy()
    for members in ([0, 1], [2, 3, 4]):
        expected[members, 3:38, 2:7] = x[members, 3:38, 2:7].mean(0)
    np.testing.assert_allclose(mixed, expected, rtol=1e-5)
    outside = np.ones(x.shape, bool)
    outside[:5, 3:38, 2:7] = False
    assert (mixed[outside] == x[outside]).all()


def test_diverged_agents_stay_in_their_group():
    x = np.ones((5, 4), np.float32)
    x[0] = np.inf
    owner = np.asarray([0, 0, 1, 1, -1])
    plan = MixPlan((OwnerClass(owner, (Block(0, (0,), (4,)),)),))
    graph = generators.complete(5)
    for combine in (
        mixing.by_group_mean,
        lambda owner: mixing.by_peers(mixing_matrices.metropolis(graph, owner)),
    ):
        mixed = np.asarray(mixing.mix([x], plan, combine)[0])
        assert np.isfinite(mixed[2:]).all()
        assert not np.isfinite(mixed[:2]).any()


def test_expected_variance_factor_of_a_matching():
    """(N - 2) / (2 (N - 1)): 0.4667 at N = 16 (spec A.4)."""
    num_agents, draws = 16, 4000
    rng = np.random.default_rng(0)
    x = rng.normal(size=num_agents)
    partner = topology.random_matchings(num_agents, draws, seed=rng)
    assert (np.take_along_axis(partner, partner, 1) == np.arange(num_agents)).all()
    assert (partner != np.arange(num_agents)).all()
    after = (x + x[partner]) / 2
    factor = after.var(axis=1).mean() / x.var()
    assert factor == pytest.approx(14 / 30, abs=0.01)


def test_odd_matching_lets_one_agent_rest():
    partner = topology.random_matchings(7, 50, seed=0)
    assert ((partner == np.arange(7)).sum(1) == 1).all()


@pytest.mark.parametrize("weight", [None, np.asarray([1.0, 2, 3, 4, 5, 6])])
def test_gossip_keeps_the_weighted_mean_and_reaches_it(weight):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 3))
    owner = np.asarray([0, 0, 0, 0, 1, 1])
    plan = MixPlan((OwnerClass(owner, (Block(0, (0,), (3,)),)),))
    graph = topology.from_graph(nx.path_graph(6))
    w = np.ones(6) if weight is None else weight
    for realisation in (
        averaging.metropolis_gossip(6, graph, weight=weight),
        averaging.random_pairs(6, weight),
    ):
        inputs = realisation.plan(np.random.default_rng(1), 400)

        def one_round(x, inputs, realisation=realisation):
            mixed = mixing.mix(x, plan, lambda o: realisation.combine(inputs, o))
            return mixed, None

        with jax.enable_x64(True):
            mixed = np.asarray(jax.lax.scan(one_round, [jnp.asarray(x)], inputs)[0][0])
        for group in (owner == 0, owner == 1):
            mean = w[group] @ x[group] / w[group].sum()
            np.testing.assert_allclose(mixed[group], np.tile(mean, (group.sum(), 1)))


def test_gossip_contracts_at_the_spectral_rate():
    graph = generators.ring(8)
    matrix = np.asarray(
        mixing.dense(mixing_matrices.metropolis(graph, np.zeros(8, int)))
    )
    assert matrix == pytest.approx(matrix.T)
    assert matrix.sum(0) == pytest.approx(np.ones(8))
    second = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[-2]
    values, vectors = np.linalg.eigh(matrix)
    slowest = vectors[:, np.argsort(np.abs(values))[-2]]
    mixed = mixing.by_peers(mixing_matrices.metropolis(graph, np.zeros(8, int)))(
        jnp.asarray(slowest[:, None])
    )
    assert np.linalg.norm(mixed) == pytest.approx(second, rel=1e-5)


def test_traffic():
    """Spec A.5: bytes count what is shared; between peers a message carries all."""
    owner_classes = (
        OwnerClass(np.asarray([0, 0, 0, 0]), (Block(0, (0,), (10,)),)),
        OwnerClass(np.asarray([1, 1, -1, -1]), (Block(0, (10,), (15,)),)),
        OwnerClass(np.full(4, -1), (Block(0, (15,), (99,)),)),
    )
    plan = MixPlan(owner_classes)
    sent, payload = averaging.messages_and_payload(
        averaging.server(4), lambda owner: (), plan
    )
    assert sent.tolist() == [2, 2, 1, 1]  # one server, and so one message, per model
    assert payload.tolist() == [15, 15, 10, 10]
    path = topology.from_graph(nx.path_graph(4))
    sent, payload = averaging.messages_and_payload(
        averaging.metropolis_gossip(4, path), lambda owner: path, plan
    )
    assert sent.tolist() == [1, 2, 2, 1]
    assert payload.tolist() == [15, 25, 20, 10]
    partner = jnp.asarray([2, 1, 0, 3], jnp.int32)
    sent, payload = averaging.messages_and_payload(
        averaging.random_pairs(4), lambda owner: partner, plan
    )
    assert sent.tolist() == [1, 0, 1, 0]
    assert payload.tolist() == [10, 0, 10, 0]


def test_topology_tables():
    graph = topology.from_graph(nx.DiGraph([(0, 1), (2, 1), (1, 2)]))
    assert graph.neighbor.tolist() == [[0, 0], [0, 2], [1, 2]]
    assert graph.mask.tolist() == [[False, False], [True, True], [True, False]]
    both = topology.stack([generators.ring(4), generators.complete(4)])
    assert both.mask.shape == (2, 4, 3)
    for num_agents, degree in ((10, 3), (64, 61)):
        drawn = generators.random_regular(num_agents, degree, seed=0)
        assert (drawn.mask.sum(1) == degree).all()


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: topology.from_graph(nx.Graph([(1, 2)])), "nodes are 0 to 1"),
        (
            lambda: generators.random_regular(5, 3, seed=0),
            "even product",
        ),
        (
            lambda: averaging.server(3, np.asarray([1.0, 0, 1])),
            "positive weight for each of 3",
        ),
        (lambda: averaging.random_pairs(3, np.ones(2)), "each of 3 agents"),
        (
            lambda: averaging.metropolis_gossip(4, generators.ring(4), rewire_every=2),
            "a function that draws them",
        ),
        (
            lambda: averaging.metropolis_gossip(
                3, topology.from_graph(nx.DiGraph([(0, 1), (1, 2), (2, 0)]))
            ).plan(np.random.default_rng(0), 1),
            "an undirected graph",
        ),
        (
            lambda: averaging.metropolis_gossip(5, generators.ring(4)).plan(
                np.random.default_rng(0), 1
            ),
            "as the data have, 5, got one of 4",
        ),
        (lambda: averaging.server(1, np.asarray([np.inf])), "positive weight"),
        (lambda: topology.from_graph(nx.Graph()), "at least one node"),
    ],
)
def test_bad_graphs_and_weights_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
