"""CHOCO-SGD: published traces, the exact method as a special case, bytes, refusals."""

import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from every_algorithm import Normalised
from test_federated import network_world
from test_protocols import close, run, started, world_of

import p2pjax as pj
from experiments.engine import rows
from p2pjax.algorithms._choco_sgd import safe_step
from p2pjax.exchange import encoding
from p2pjax.exchange.compression import half, qsgd, sign, top_k
from p2pjax.graphs import generators, mixing_matrices
from p2pjax.simulation import _used
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import VMAP
from p2pjax.types import InputError, Ratio, Variables

VECTORS = json.loads(
    (Path(__file__).parent / "vectors/adversity_compression.json").read_text()
)
RING = generators.ring(4)
WEIGHTS = mixing_matrices.metropolis_hastings


def plane_task():
    """Half the squared distance of a point in the plane to the agent's target."""

    def loss_fn(variables, batch, key):
        del key
        loss = jnp.square(variables.params["x"] - batch["c"][0]).sum() / 2
        return loss, variables.stats

    def evaluate_fn(variables, batch):
        return {"loss": Ratio(loss_fn(variables, batch, None)[0], jnp.ones(()))}

    return Task(lambda key: Variables({"x": jnp.ones(2)}, {}), loss_fn, evaluate_fn)


PLANE = plane_task()


def plane_world(targets):
    return world_of([{"c": np.float32([c])} for c in targets])


def choco(task=PLANE, rate=0.1, graph=RING, **options):
    options = {
        "batch_size": 1,
        "agent_loop": VMAP,
        "compression": top_k(0.5),
        "consensus_step": 0.4,
        **options,
    }
    return pj.choco_sgd(task, optax.sgd(rate), graph, **options)


class TestVectors:
    def test_choco_sgd(self):
        expected = VECTORS["choco_sgd"]
        method = choco(rate=expected["eta"], consensus_step=expected["gamma"])
        states, info = run(method, plane_world(expected["c"]), 400)
        x, copies = np.asarray(states.variables.params["x"]), states.protocol_state
        for number, wanted in enumerate(expected["rounds 1-3"]):
            close(x[number], wanted["x"])
            close(copies[0][number], wanted["x_hat"])
        close(x[-1], expected["round 400 x"], atol=1e-4)
        close(x[-1].mean(0), expected["mean of round 400"], atol=1e-4)
        assert x[-1].std(0).min() > 0.1  # agents disagree
        # One number of 32 bits and its position, to two neighbours.
        np.testing.assert_array_equal(info.bytes, np.full((400, 4), 2 * 5))
        np.testing.assert_array_equal(info.payload, np.full((400, 4), 2 * 2))
        assert _used.added(_used.nothing_used(), info).bytes == 400 * 4 * 2 * 5
        counted = rows.counted(rows.nothing(4), 400, jax.tree.map(np.asarray, info))
        assert 4 * counted.payload == 400 * 2 * 5  # parameters of 4 bytes

    def test_choco_gossip(self):
        expected = VECTORS["choco_gossip"]
        models = Variables({"x": jnp.asarray(expected["x0"], jnp.float32)}, {})
        method = started(choco(rate=0.0, consensus_step=expected["gamma"]), models)
        states, _ = run(method, plane_world(expected["x0"]), 200)
        x = np.asarray(states.variables.params["x"])
        close(x[:3], expected["rounds 1-3"])
        close(x[-1], expected["round 200"], atol=1e-4)
        close(x.mean(1), np.tile(expected["mean"], (200, 1)), atol=1e-4)

    def test_safe_step(self):
        expected = VECTORS["choco_gamma"]
        found = safe_step(WEIGHTS(RING), expected["delta"])
        assert found == pytest.approx(expected["gamma"], abs=1e-6)


def numpy_choco(targets, matrix, compress, rate, step, num_rounds):
    """Agent by agent, in float64."""
    x = np.ones_like(targets)
    copies = np.zeros_like(x)
    for _ in range(num_rounds):
        h = x - rate * (x - targets)
        for agent in range(len(x)):
            copies[agent] = copies[agent] + compress(h[agent] - copies[agent])
        for agent in range(len(x)):
            pull = np.zeros(x.shape[1])
            for other in range(len(x)):
                pull += matrix[agent, other] * (copies[other] - copies[agent])
            x[agent] = h[agent] + step * pull
    return x, copies


@pytest.mark.slow
def test_signs_on_an_irregular_graph():
    targets = np.random.default_rng(0).normal(size=(5, 2))
    graph = generators.star(5)
    method = choco(graph=graph, compression=pj.channel.sign(), rate=0.2)
    states, info = run(method, plane_world(targets), 12)
    matrix = np.asarray(pj.graphs.analysis.dense_matrix(WEIGHTS(graph)))

    def compress(values):
        return np.where(values < 0, -1, 1) * np.abs(values).mean()

    x, copies = numpy_choco(targets, matrix, compress, 0.2, 0.4, 12)
    close(states.variables.params["x"][-1], x)
    close(states.protocol_state[0][-1], copies)
    sent = [4, 1, 1, 1, 1]  # messages of 34 bits
    np.testing.assert_array_equal(info.bytes[-1], 5 * np.array(sent))


NORMALISED = pj.classification(Normalised(), (2,))
SIZES = (5, 3, 4, 2)


class TestNetworks:
    def run(self, method, num_rounds=3):
        return run(method, network_world(SIZES), num_rounds)

    def test_all_of_it_and_a_full_step_is_dpsgd(self):
        """Statistics too, which are sent as they are, and what stays."""
        options = {
            "batch_size": 2,
            "agent_loop": VMAP,
            "mixing_weights": WEIGHTS,
            "local_patterns": ("params/Dense_1/kernel",),
        }
        exact = pj.dpsgd(NORMALISED, optax.sgd(0.1), RING, **options)
        expected, info = self.run(exact)
        method = choco(
            NORMALISED, compression=top_k(1.0), consensus_step=1.0, **options
        )
        found, all_of_it = self.run(method)
        pairs = zip(
            jax.tree.leaves(found.variables),
            jax.tree.leaves(expected.variables),
            strict=True,
        )
        for one, other in pairs:
            close(one, other)
        np.testing.assert_array_equal(all_of_it.sent, info.sent)
        np.testing.assert_array_equal(all_of_it.payload, info.payload)
        # Leaves of 2, 3, 3 and 3 numbers and one of 6, without that which stays, and
        # two statistics of 3 numbers.
        bits = 2 * 33 + 3 * 3 * 34 + 6 * 35 + 6 * 32
        size = encoding.num_bytes(bits)
        np.testing.assert_array_equal(all_of_it.bytes, np.asarray(info.sent) * size)
        copies = jax.tree.leaves(found.protocol_state)
        sizes = sorted(leaf[0, 0].size for leaf in copies)
        assert sizes == [2, 3, 3, 3, 6]

    @pytest.mark.slow
    def test_scored_before_the_exchange_it_is_the_same(self):
        options = {"compression": qsgd(4), "batch_size": 2}
        plain = choco(NORMALISED, **options)
        pending = choco(NORMALISED, score_before=True, **options)
        expected, info = self.run(plain)
        states, same_info = self.run(pending)
        last = jax.tree.map(lambda leaf: leaf[-1], states)
        found = pending.models(last).averaged
        pairs = zip(
            jax.tree.leaves(found), jax.tree.leaves(expected.variables), strict=True
        )
        for one, other in pairs:
            close(one, other[-1])
        np.testing.assert_array_equal(info.bytes, same_info.bytes)


@pytest.mark.slow
def test_bytes_of_a_run_are_those_of_its_messages():
    data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
    task = pj.classification(pj.nn.MLP((4, 10)), data)
    used = {}
    for ratio in (0.1, 1.0):
        method = choco(task, compression=top_k(ratio), batch_size=256)
        *_, last = pj.simulate(jax.random.key(0), method, data, num_rounds=1)
        used[ratio] = last.used
    leaves = (64 * 4, 4, 4 * 10, 10)
    bits = [max(1, size // 10) * (32 + (size - 1).bit_length()) for size in leaves]
    assert used[0.1].bytes == used[0.1].messages * -(-sum(bits) // 8)
    all_bits = [size * (32 + (size - 1).bit_length()) for size in leaves]
    assert used[1.0].bytes == used[1.0].messages * -(-sum(all_bits) // 8)


class TestSteps:
    def test_a_safe_one_is_chosen_with_a_warning(self):
        method = choco(consensus_step=None)
        with pytest.warns(UserWarning, match="consensus_step 0.012, which is safe"):
            inputs = method.plan(np.random.default_rng(0), plane_world([[0, 0]] * 4), 2)
        close(inputs.graph.step, [VECTORS["choco_gamma"]["gamma"]] * 2)

    def test_of_the_worst_leaf(self):
        """Signs of a leaf of n numbers may be right about one of them."""
        method = choco(NORMALISED, compression=sign(), consensus_step=None)
        with pytest.warns(UserWarning, match="tune it"):
            inputs = method.plan(np.random.default_rng(0), network_world(SIZES), 1)
        close(inputs.graph.step, [safe_step(WEIGHTS(RING), 1 / 6)])

    def test_agents_agree_with_it(self):
        models = Variables({"x": jnp.asarray(VECTORS["choco_gossip"]["x0"])}, {})
        step = safe_step(WEIGHTS(RING), 0.5)
        method = started(choco(rate=0.0, consensus_step=step), models)
        states, _ = run(method, plane_world([[0, 0]] * 4), 1500)
        x = np.asarray(states.variables.params["x"])
        spread = np.square(x - x.mean(1, keepdims=True)).sum((1, 2))
        assert spread[-1] < 1e-3 * spread[0]

    def test_what_may_grow_is_said(self):
        many = pj.classification(pj.nn.MLP((10,)), (64,))
        with pytest.warns(UserWarning, match="may be more than there was.*biased=True"):
            choco(many, compression=pj.channel.qsgd(4))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            choco(many, compression=pj.channel.qsgd(4, biased=True))


class TestRefusals:
    @pytest.mark.parametrize(
        "options, message",
        [
            ({"channel": pj.channel.drop(0.1)}, "for CHOCO, got lost messages: rec"),
            ({"channel": pj.channel.delay(1.0)}, "for CHOCO, got late messages: rec"),
            ({"channel": pj.channel.stale()}, "for CHOCO, got late messages: rec"),
            ({"channel": pj.channel.sign()}, "as its compression, got one in the ch"),
            ({"channel": pj.channel.noise(1.0)}, "CHOCO-SGD cannot take noisy messag"),
            ({"rewire_every": 1}, "one graph that stays for CHOCO-SGD"),
            ({"consensus_step": 0.0}, "above 0 and up to 1, got 0"),
            ({"consensus_step": 1.5}, "above 0 and up to 1, got 1.5"),
            ({"compression": half(), "consensus_step": None}, "no safe one is known"),
            ({"compression": pj.channel.drop(0.1)}, "one format for the compression"),
            ({"compression": "sign"}, "one format for the compression.*got 'sign'"),
        ],
    )
    def test_at_construction(self, options, message):
        with pytest.raises(InputError, match=message):
            choco(**options)

    @pytest.mark.parametrize(
        "graph, options, message",
        [
            (
                generators.star(4),
                {"mixing_weights": mixing_matrices.uniform_receive},
                "symmetric mixing matrix for CHOCO-SGD",
            ),
            (generators.ring(4, directed=True), {}, "undirected"),
            (
                pj.graphs.weights(np.roll(np.eye(4), 1, 0)),
                {},
                "symmetric mixing matrix for CHOCO-SGD",
            ),
            (
                pj.graphs.as_graph([(0, 1), (2, 3)]),
                {"consensus_step": None},
                "without spectral gap: give consensus_step",
            ),
        ],
    )
    def test_when_a_run_starts(self, graph, options, message):
        method = choco(graph=graph, **options)
        with pytest.raises(InputError, match=message):
            method.plan(np.random.default_rng(0), plane_world([[0, 0]] * 4), 1)
