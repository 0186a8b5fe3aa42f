"""Combination, FedCurv and their relatives: printed numbers, properties, plain loops."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowering import assert_lowers

from p2pjax import curvature, data, owners, tasks, topology, training
from p2pjax.algorithms import combination as rules
from p2pjax.algorithms.combination import Stable, combination
from p2pjax.algorithms.complete_training import Stop, for_epochs, until_converged
from p2pjax.algorithms.ditto import ditto
from p2pjax.algorithms.fedavg import fedavg
from p2pjax.algorithms.fedcurv import fedcurv, fedcurv_neighbors, penalty_of_others
from p2pjax.algorithms.fedper import fedper
from p2pjax.algorithms.fedprox import fedprox
from p2pjax.algorithms.local_only import local_only
from p2pjax.data import World
from p2pjax.mixing import by_factors, mix, sum_of_neighbors, sum_of_others
from p2pjax.models.mlp import MLP
from p2pjax.simulate import on_test_sets, simulate
from p2pjax.types import InputError, Ratio, Variables

close = partial(np.testing.assert_allclose, rtol=0, atol=1e-6)
# Compilation is all the time these tests take; the programs run for milliseconds.
jit = partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
    },
)


def quadratic_task(width=2):
    """Half the squared distance to the example c, each coordinate weighted by h."""

    def losses(variables, batch):
        distance = variables.params["w"][None] - batch["c"]
        return (batch["h"] * jnp.square(distance)).sum(1) / 2

    def mean_loss(variables, batch):
        valid = batch["valid"].astype(jnp.float32)
        return Ratio((losses(variables, batch) * valid).sum(), valid.sum())

    def loss_fn(variables, batch, key):
        del key
        total, weight = mean_loss(variables, batch)
        return total / jnp.maximum(weight, 1), variables.stats

    def evaluate_fn(variables, batch):
        loss = mean_loss(variables, batch)
        near = (losses(variables, batch) < 0.5) & batch["valid"]
        right = near.astype(jnp.float32).sum()
        return {"loss": loss, "accuracy": Ratio(right, loss.weight)}

    return tasks.Task(
        lambda key: Variables({"w": jax.random.normal(key, (width,))}, {}),
        loss_fn,
        evaluate_fn,
    )


TASK = quadratic_task()
LEARNER = training.gradient_descent(TASK, optax.sgd(0.1))
IDLE = training.gradient_descent(TASK, optax.sgd(0.0))


def world_of(targets, bends=None, valid=None):
    """One example per entry of `targets` [N][M][2], weighted by `bends` likewise."""

    def split(rows, h):
        return data.stack_agents(
            [
                {
                    "c": np.asarray(own, np.float32).reshape(-1, 2),
                    "h": np.asarray(weight, np.float32).reshape(-1, 2),
                }
                for own, weight in zip(rows, h, strict=True)
            ]
        )

    ones = [np.ones((len(own), 2)) for own in targets]
    train = split(targets, ones if bends is None else bends)
    held = train if valid is None else split(valid, [np.ones((len(o), 2)) for o in valid])
    return World(train, held, train, np.zeros(len(targets), np.int32))


def run(algorithm, world, num_rounds, *, seed=0, inputs=None, start=None):
    """States and infos of all rounds, leaves `[R, ...]`."""
    if inputs is None:
        inputs = algorithm.plan(np.random.default_rng(seed), world, num_rounds)

    @jit
    def rounds(key, inputs, world):
        def one(state, scanned):
            t, inputs = scanned
            key_round = jax.random.fold_in(key, t)
            state, info = algorithm.round(key_round, t, inputs, state, world)
            return state, (state, info)

        state = algorithm.init(key, world)
        if start is not None:
            state = start(state)
        numbers = jnp.arange(num_rounds, dtype=jnp.int32)
        return jax.lax.scan(one, state, (numbers, inputs))[1]

    return rounds(jax.random.key(seed), inputs, jax.tree.map(jnp.asarray, world))


def starting_at(w):
    """All agents, or each, with these parameters."""

    def start(state):
        old = state.variables.params["w"]
        w_now = jnp.broadcast_to(jnp.asarray(w, jnp.float32), old.shape)
        return state._replace(variables=Variables({"w": w_now}, {}))

    return start


class TestFactors:
    """Specification D.1."""

    @pytest.mark.parametrize(
        "sizes, share, added, exponential",
        [
            ((568, 496), (0.533835, 0.466165), (1.533835, 1.466165), (1.000534, 1.000466)),
            ((486, 325), (0.599260, 0.400740), (1.599260, 1.400740), (1.000599, 1.000401)),
            ((330, 481), (0.406905, 0.593095), (1.406905, 1.593095), (1.000407, 1.000593)),
        ],
    )
    def test_printed_table(self, sizes, share, added, exponential):
        r = jnp.asarray(sizes, jnp.float32) / sum(sizes)
        close(r, share)
        close(rules.size_weighted(r), share)
        close(rules.mean(r), [0.5, 0.5])
        close(rules.additive()(r), added)
        close(rules.additive()(r).sum(), 3)
        close(rules.exponential(1e-3)(r), exponential)
        close(rules.exponential(1e-3)(r).sum(), 2.001, atol=1e-5)

    def test_more_hosts_bring_every_factor_to_one(self):
        printed = {
            2: (1.648721, 3.297443),
            5: (1.221403, 6.107014),
            10: (1.105171, 11.051709),
            20: (1.051271, 21.025422),
            40: (1.025315, 41.012605),
            80: (1.012578, 81.006276),
        }
        for hosts, (alpha, total) in printed.items():
            found = rules.exponential(1.0)(jnp.full(hosts, 1 / hosts))
            close(found, np.full(hosts, alpha))
            close(found.sum(), total, atol=1e-4)
        for c in (1e-3, 0.1, 1.0, 3.0):  # figure 4
            large = rules.exponential(c)(jnp.full(1000, 1e-3))
            close(large, np.ones(1000), atol=c * 1.1e-3)

    @pytest.mark.parametrize(
        "factors, expected",
        [
            (rules.mean, [0.4, -0.25]),
            (rules.size_weighted, [0.3602959309, -0.3988902589]),
            (rules.additive(), [1.1602959309, -0.8988902589]),
            (rules.exponential(1e-3), [0.8003603800, -0.5003990297]),
        ],
    )
    def test_vector(self, factors, expected):
        world = world_of([np.zeros((300, 2)), np.zeros((200, 2))])
        held = [np.zeros((186, 2)), np.zeros((125, 2))]  # 486 and 325 in all
        world = world._replace(valid=world_of(held).train)
        algorithm = combination(TASK, for_epochs(IDLE, 1, batch_size=500), factors)
        start = starting_at([[0.2, -1.0], [0.6, 0.5]])
        states, info = run(algorithm, world, 1, start=start)
        close(states.variables.params["w"][0], [expected] * 2)
        assert info.sent.tolist() == info.received.tolist() == [[1, 1]]
        assert info.payload.tolist() == info.delivered.tolist() == [[2, 2]]
        assert info.epochs.tolist() == [[1, 1]]

    @given(st.integers(1, 6), st.integers(0, 100))
    def test_factors_need_not_sum_to_one(self, num_agents, seed):
        rng = np.random.default_rng(seed)
        alpha = rng.uniform(-1, 2, num_agents)
        params = {"a": rng.normal(size=(num_agents, 1, 3)), "b": rng.normal(size=num_agents)}
        shapes = jax.tree.map(lambda leaf: leaf[0], params)
        plan = owners.whole_model(num_agents, shapes)
        mixed = mix(
            jax.tree.map(jnp.float32, params),
            plan,
            lambda _: by_factors(jnp.asarray(alpha, jnp.float32)),
        )
        for name, leaf in params.items():
            total = np.tensordot(alpha, leaf, 1)
            close(mixed[name], np.broadcast_to(total, leaf.shape), atol=1e-5)


def relu_network(rng, widths, num_agents):
    """Random kernels of a network with biases of zero, leaves `[N, ...]`."""
    return {
        f"layer_{layer}": {
            "kernel": jnp.asarray(rng.normal(size=(num_agents, *shape)), jnp.float32),
            "bias": jnp.zeros((num_agents, shape[1])),
        }
        for layer, shape in enumerate(zip(widths[:-1], widths[1:], strict=True), 1)
    }


class TestScale:
    @given(st.integers(2, 5), st.integers(0, 50))
    def test_without_biases_a_sum_predicts_as_the_mean(self, num_hosts, seed):
        """D-T1: nothing but the next training can tell the rules apart."""
        rng = np.random.default_rng(seed)
        params = relu_network(rng, (4, 6, 5, 3), num_hosts)
        shapes = jax.tree.map(lambda leaf: leaf[0], params)
        plan = owners.whole_model(num_hosts, shapes)
        share = jnp.full(num_hosts, 1 / num_hosts)
        x = jnp.asarray(rng.normal(size=(64, 4)), jnp.float32)
        module = MLP((6, 5, 3), jax.nn.relu)

        def logits(factors):
            mixed = mix(params, plan, lambda _: by_factors(factors(share)))
            one = jax.tree.map(lambda leaf: leaf[0], mixed)
            return np.asarray(module.apply({"params": one}, x))

        of_mean = logits(rules.mean)
        for factors in (rules.additive(), rules.exponential(1e-3)):
            of_sum = logits(factors)
            scale = float(factors(share).sum()) ** 3  # of three layers
            np.testing.assert_allclose(of_sum, of_mean * scale, rtol=2e-4, atol=1e-4)
            ties = np.sort(of_mean, 1)
            is_clear = ties[:, -1] - ties[:, -2] > 1e-5
            same = of_sum.argmax(1) == of_mean.argmax(1)
            assert same[is_clear].all()

    def test_biases_break_the_equality(self):
        rng = np.random.default_rng(0)
        params = relu_network(rng, (4, 6, 3), 2)
        params["layer_2"]["bias"] = jnp.asarray(rng.normal(size=(2, 3)), jnp.float32)
        x = jnp.asarray(rng.normal(size=(200, 4)), jnp.float32)
        module = MLP((6, 3), jax.nn.relu)

        def predictions(scale):
            one = jax.tree.map(lambda leaf: leaf.sum(0) * scale, params)
            return np.asarray(module.apply({"params": one}, x)).argmax(1)

        assert (predictions(0.5) != predictions(1.0)).any()

    @pytest.mark.parametrize(
        "num_hosts, factors, factor",
        [
            (2, rules.additive(), 3.0),
            (2, rules.exponential(1e-3), 2.001),
            (80, rules.exponential(1.0), 81.006276),
        ],
    )
    def test_hosts_that_learn_nothing_scale_the_weights(self, num_hosts, factors, factor):
        """D-T2: 3^t, 2.001^t, 81^t, and overflow."""
        world = world_of([np.zeros((1, 2))] * num_hosts)
        algorithm = combination(TASK, for_epochs(IDLE, 1, batch_size=1), factors)
        states, _ = run(algorithm, world, 90, start=starting_at([1.0, -1.0]))
        first = np.asarray(states.variables.params["w"][:, 0, 0], np.float64)
        powers = factor ** np.arange(1, 91)
        finite = powers < 1e37
        np.testing.assert_allclose(first[finite], powers[finite], rtol=5e-3)
        overflow = math.log(np.finfo(np.float32).max, factor)
        assert np.isfinite(first[: int(overflow) - 1]).all()
        assert not np.isfinite(first[math.ceil(overflow) :]).any()

    def test_three_layers_overflow_near_round_27(self):
        """Logits of a network scale as the third power of its weights."""
        params = relu_network(np.random.default_rng(0), (4, 6, 5, 3), 1)
        module = MLP((6, 5, 3), jax.nn.relu)

        def largest(t):
            one = jax.tree.map(lambda leaf: leaf[0] * 3.0**t, params)
            return float(abs(module.apply({"params": one}, jnp.ones((1, 4)))).max())

        assert math.isfinite(largest(24))
        assert not math.isfinite(largest(28))
