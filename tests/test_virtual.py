"""VIRTUAL: printed numbers, positivity, schedules, one contract; several rounds as one.

The printed numbers are those of exact inference; here a gradient descent finds them.
"""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import assert_lowers

from p2pjax.algorithms._local_only import local_only
from p2pjax.algorithms._virtual import (
    ONCE,
    PAPER,
    RELEASE,
    _divergence,
    _joined,
    _two_parts,
    virtual,
)
from p2pjax.datasets import stacking
from p2pjax.engines.repetition import repeat_rounds
from p2pjax.engines.server import server_rounds
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.nn import gaussian
from p2pjax.nn.cavity import LARGEST_START, factor_of, narrower
from p2pjax.nn.gaussian import Gaussian, Natural
from p2pjax.nn.variational import Columns
from p2pjax.simulation._simulate import simulate
from p2pjax.tasks import bayesian
from p2pjax.tasks.task import Task
from p2pjax.training import free_energy
from p2pjax.training.agent_loop import IN_PLACE, VMAP
from p2pjax.training.learner import StepContext, gradient_descent
from p2pjax.training.local_updates import epochs
from p2pjax.types import FederatedData, InputError, Ratio, Variables

VECTORS = json.loads((Path(__file__).parent / "vectors/virtual.json").read_text())
MODES = {"once": ONCE, "paper": PAPER, "release": RELEASE}
close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3)
# Compilation is all the time these tests take; the programs run for milliseconds.
jit = partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
    },
)


def scalar_task(loss):
    """One shared and one private weight; `loss(mean, deviation, c)` of the shared."""

    def init_fn(key):
        del key
        mean = {"server": {"w": jnp.float32(0.1)}, "client": {"w": jnp.float32(0.5)}}
        stddev = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.1), mean)
        return Variables(Gaussian(mean, stddev), {})

    def loss_fn(variables, batch, key):
        del key
        q = variables.params
        losses = jax.vmap(
            partial(loss, q.mean["server"]["w"], q.stddev["server"]["w"])
        )(batch["c"])
        valid = batch["valid"].astype(jnp.float32)
        return (losses * valid).sum() / jnp.maximum(valid.sum(), 1), variables.stats

    def evaluate_fn(variables, batch):
        loss, _ = loss_fn(variables, batch, None)
        return {"accuracy": Ratio(loss, jnp.ones(()))}

    return Task(init_fn, loss_fn, evaluate_fn)


def conjugate(mean, stddev, c):
    """Expected negative log of the factor with precision c[0] and shift c[1]."""
    return c[0] * (mean**2 + stddev**2) / 2 - c[1] * mean


CONJUGATE = scalar_task(conjugate)
evaluate_scalar = on_test_sets(CONJUGATE)


def world_of(factors):
    split = stacking.stack_agents([{"c": np.asarray([f], np.float32)} for f in factors])
    return FederatedData(split, split, split, np.zeros(len(factors), np.int32))


def run(algorithm, world, num_rounds):
    """Factors `[R, N, 2]`, products `[R, 2]` and infos of all rounds."""
    inputs = algorithm.plan(np.random.default_rng(0), world, num_rounds)

    @jit
    def rounds(key, inputs, world):
        def one(state, scanned):
            t, inputs = scanned
            state, info = algorithm.round(
                jax.random.fold_in(key, t), t, inputs, state, world
            )
            return state, (state, info)

        numbers = jnp.arange(num_rounds, dtype=jnp.int32)
        return jax.lax.scan(one, algorithm.init(key, world), (numbers, inputs))[1]

    states, info = rounds(jax.random.key(0), inputs, jax.tree.map(jnp.asarray, world))
    product = gaussian.natural(states.server)
    stacked = [
        np.stack([q.precision["w"], q.shift["w"]], -1)
        for q in (states.factors, product)
    ]
    return stacked[0], stacked[1][:, 0], states, info


def scalar_virtual(task=CONJUGATE, num_epochs=3000, rate=0.2, **options):
    options = {"agent_loop": VMAP, **options}
    return virtual(
        task,
        optax.sgd(rate),
        batch_size=1,
        local_updates=epochs(num_epochs),
        **options,
    )


LIKELIHOODS = VECTORS["likelihoods"]


class TestVectors:
    @pytest.mark.parametrize("mode", MODES)
    def test_conjugate_factors(self, mode):
        algorithm = scalar_virtual(prior_mode=MODES[mode])
        factors, product, states, _ = run(algorithm, world_of(LIKELIHOODS), 4)
        expected = VECTORS["modes"][mode]
        close(product[:2], expected["s"])
        close(factors[1], expected["factors"])
        close(factors[0, 0], expected["factors"][0])
        close(product[3], expected["s"][1])  # further passes change nothing
        # The private weight has no data: its posterior is its prior.
        close(states.clients.mean["w"][-1], 0)
        close(states.clients.stddev["w"][-1], 1)

    def test_damping(self):
        algorithm = scalar_virtual(damping=0.5)
        factors, product, _, _ = run(algorithm, world_of(LIKELIHOODS), 12)
        expected = VECTORS["damped"]
        close(product[:2], expected["s"])
        close(factors[1], expected["factors"])
        # The error of a factor halves with each of its visits.
        error = np.asarray(LIKELIHOODS[0]) - factors[::2, 0]
        close(error, [np.divide(LIKELIHOODS[0], 2 ** (k + 1)) for k in range(6)])
        np.testing.assert_allclose(product[-1], expected["exact"], rtol=0.03)

    @pytest.mark.parametrize("mode", ["once", "paper"])
    def test_free_energy(self, mode):
        v = VECTORS["free_energy"]
        cavity = Natural(*({"w": jnp.float32(x)} for x in v["cavity"]))
        factor = Natural(*({"w": jnp.float32(x)} for x in v["factor"]))
        server = gaussian.moments(gaussian.product(cavity, factor))
        close(server.mean["w"], 0.35)
        close(server.stddev["w"] ** 2, 0.5)
        client = Gaussian(*({"w": jnp.float32(x)} for x in v["client"]))
        prior = gaussian.natural(gaussian.centered(1.0, server.mean))
        target = gaussian.product(cavity, prior) if mode == "paper" else cavity
        target = gaussian.moments(target)
        exactly = partial(np.testing.assert_allclose, atol=2e-6)
        exactly(gaussian.kl_divergence(server, target), v[mode]["server_divergence"])
        noise = jnp.asarray(v["noise"], jnp.float32)

        def loss_fn(variables, batch, key):
            del key
            q = variables.params
            weights = sum(
                q.mean[part]["w"] + q.stddev[part]["w"] * noise
                for part in ("server", "client")
            )
            logits = weights[:, None] * batch["x"][None]
            losses = optax.sigmoid_binary_cross_entropy(logits, batch["y"][None])
            return losses.mean(), variables.stats

        task = Task(lambda key: None, loss_fn, lambda *_: {})
        coordinates = _two_parts(cavity)
        learner = free_energy.free_energy_descent(
            bayesian.in_coordinates(task, coordinates),
            optax.sgd(0.0),
            lambda free: _divergence(coordinates.gaussian(free), target, 1.0),
        )
        x, y = np.asarray(v["data"], np.float32).T
        batch = {"x": jnp.asarray(x), "y": jnp.asarray(y), "valid": jnp.ones(2, bool)}
        q = _joined(server, client)
        exactly(2 * loss_fn(Variables(q, {}), batch, None)[0], v["loss"])
        variables = Variables(coordinates.free(q), {})
        _, _, loss = jax.jit(learner.step)(
            jax.random.key(0),
            variables,
            learner.init(variables),
            batch,
            StepContext(num_examples=jnp.int32(2)),
        )
        exactly(2 * loss, v[mode]["total"])
        back = factor_of(variables.params[0], cavity)
        exactly(back.precision["w"], v["factor"][0])
        exactly(back.shift["w"], v["factor"][1])

    def test_optimum_that_is_not_conjugate(self):
        nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        nodes = jnp.asarray(nodes, jnp.float32)
        weights = jnp.asarray(weights / weights.sum(), jnp.float32)

        def loss(mean, stddev, c):
            draws = jax.nn.log_sigmoid(c[0] * (mean + stddev * nodes))
            return -(draws * weights).sum()

        algorithm = scalar_virtual(scalar_task(loss), num_epochs=1000, rate=0.3)
        factors, product, states, info = run(algorithm, world_of([[2, 0]]), 2)
        expected = VECTORS["optimum"]
        exactly = partial(np.testing.assert_allclose, atol=1e-4)
        exactly(states.server.mean["w"][0, 0], expected["mean"])
        exactly(1 / product[0, 0], expected["variance"])
        exactly(factors[0, 0], expected["factor"])
        # In the second round all steps are at the optimum; the private weight adds 0.
        exactly(info.train_loss[1, 0], expected["total"])


def test_clients_at_once_take_a_part_of_every_change():
    likelihoods = np.asarray([[2.0, 2], [4, 12], [1, -3]])
    world = world_of(likelihoods)
    algorithm = scalar_virtual(synchronous=True)
    factors, product, _, info = run(algorithm, world, 3)
    expected = np.zeros((3, 2))
    for number in range(3):
        expected = expected * (2 / 3) + likelihoods / 3
        close(factors[number], expected)
        close(product[number], expected.sum(0) + np.array([1, 0]))
    assert (info.sent == 1).all()
    assert (info.payload == 2).all()


def test_clients_in_turn():
    world = world_of([[2, 2], [4, 12], [1, -3]])
    algorithm = scalar_virtual(num_epochs=3, agent_loop=IN_PLACE)
    factors, _, states, info = run(algorithm, world, 4)
    order = [0, 1, 2, 0]
    for number, client in enumerate(order):
        is_refined = np.arange(3) == client
        np.testing.assert_array_equal(info.sent[number], is_refined)
        np.testing.assert_array_equal(info.received[number], is_refined)
        np.testing.assert_array_equal(info.payload[number], 2 * is_refined)
        assert len(set(np.asarray(info.train_loss[number]).tolist())) == 1
        if number:
            for leaf in (factors, np.asarray(states.clients.mean["w"])[..., None]):
                changed = (leaf[number] != leaf[number - 1]).any(-1)
                np.testing.assert_array_equal(changed, is_refined)


def test_successive_posteriors_give_each_factor_away():
    """A server that keeps what it was sent can divide: nothing hides a factor."""
    algorithm = scalar_virtual(num_epochs=30)
    factors, product, _, _ = run(algorithm, world_of([[2, 2], [4, 12], [1, -3]]), 6)
    for number, client in ((1, 1), (2, 2), (3, 0), (4, 1), (5, 2)):
        change = factors[number, client] - factors[number - 1, client]
        assert abs(change).max() > 1e-3
        close(product[number] - product[number - 1], change)
    # Factors start at one, so the first change is the factor itself.
    close(product[1] - product[0], factors[1, 1])
    close(product[2] - product[1], factors[2, 2])


@jax.jit
def random_updates(key, prior_mode, spread):
    """The smallest and largest precision of anything in 1000 damped updates."""
    num_agents, num_weights = 5, 3
    one = jnp.ones(num_weights)
    prior = Natural(one, 0 * one)
    share = jnp.where(prior_mode.in_factors, 1 / (num_agents - 1), 0.0)
    start = jax.tree.map(lambda leaf: jnp.tile(leaf * share, (num_agents, 1)), prior)

    def update(factors, key):
        key_agent, key_mean, key_logit, key_damping = jax.random.split(key, 4)
        agent = jax.random.randint(key_agent, (), 0, num_agents)
        is_other = (jnp.arange(num_agents) != agent).astype(jnp.float32)
        in_product = prior_mode.in_product.astype(jnp.float32)
        cavity = jax.tree.map(
            lambda leaf, prior: is_other @ leaf + in_product * prior, factors, prior
        )
        free = Gaussian(
            spread * jax.random.normal(key_mean, (num_weights,)),
            spread * jax.random.normal(key_logit, (num_weights,)),
        )
        damping = jax.random.uniform(key_damping, (), minval=0.01)
        old = jax.tree.map(lambda leaf: leaf[agent], factors)
        new = gaussian.damped(old, factor_of(free, cavity), damping)
        factors = jax.tree.map(lambda leaf, row: leaf.at[agent].set(row), factors, new)
        posterior = gaussian.product(cavity, new)
        moments = gaussian.moments(posterior)
        narrow = narrower(cavity).gaussian(free)
        seen = jnp.concatenate(
            [new.precision, moments.stddev, narrow.stddev, posterior.precision]
        )
        finite = jnp.isfinite(moments.mean).all() & jnp.isfinite(seen).all()
        return factors, (seen.min(), finite)

    _, (lowest, finite) = jax.lax.scan(update, start, jax.random.split(key, 1000))
    return lowest.min(), finite.all()


@settings(max_examples=30)
@given(st.integers(0, 2**31 - 1), st.sampled_from(list(MODES)), st.floats(0.1, 20))
def test_variances_stay_positive(seed, mode, spread):
    lowest, finite = random_updates(
        jax.random.key(seed),
        jax.tree.map(jnp.asarray, MODES[mode]),
        jnp.float32(spread),
    )
    assert lowest > 0
    assert finite


@pytest.mark.parametrize("stddev", [1e-5, 0.05, 0.5, 0.9])
def test_narrower_coordinates(stddev):
    cavity = Natural({"w": jnp.float32(1.0)}, {"w": jnp.float32(0.7)})
    coordinates = narrower(cavity)
    q = Gaussian({"w": jnp.float32(0.2)}, {"w": jnp.float32(stddev)})
    free = coordinates.free(q)
    found = coordinates.gaussian(free).stddev["w"]
    np.testing.assert_allclose(found, stddev, rtol=1e-5)
    product = gaussian.moments(gaussian.product(cavity, factor_of(free, cavity)))
    np.testing.assert_allclose(product.stddev["w"], stddev, rtol=1e-5)
    np.testing.assert_allclose(product.mean["w"], 0.2, rtol=1e-5)
    # As wide as its cavity, or wider, a client starts a little narrower.
    wide = coordinates.free(Gaussian(q.mean, {"w": jnp.float32(3.0)}))
    found = coordinates.gaussian(wide).stddev["w"]
    np.testing.assert_allclose(found, LARGEST_START, rtol=1e-5)


def network_task():
    return bayesian.variational_classification(
        Columns((4, 3)), (5,), num_samples=2, dropout=0.2
    )


def network_world():
    rng = np.random.default_rng(0)

    def split(*sizes):
        return stacking.stack_agents(
            [
                {
                    "x": rng.normal(size=(n, 5)).astype(np.float32),
                    "y": rng.integers(0, 3, n).astype(np.int32),
                }
                for n in sizes
            ]
        )

    return FederatedData(
        split(3, 5, 4), split(0, 0, 0), split(4, 2, 3), np.zeros(3, np.int32)
    )


def network_virtual(**options):
    return virtual(
        network_task(),
        optax.sgd(0.05),
        batch_size=2,
        local_updates=epochs(2),
        **options,
    )


class TestNetworks:
    @pytest.mark.parametrize("synchronous", [False, True])
    def test_lowers_for_accelerators(self, synchronous):
        algorithm = network_virtual(synchronous=synchronous, agent_loop=VMAP)
        assert_lowers(algorithm, network_world())

    @pytest.mark.slow
    def test_agents_in_place_are_the_same_as_side_by_side(self):
        world = jax.tree.map(jnp.asarray, network_world())
        finals = []
        for agent_loop in (IN_PLACE, VMAP):
            algorithm = network_virtual(agent_loop=agent_loop)
            state = jit(algorithm.init)(jax.random.key(0), world)
            inputs = algorithm.plan(np.random.default_rng(0), world, 2)
            one_round = jit(algorithm.round)
            for t in range(2):
                key = jax.random.key(t)
                state, info = one_round(key, jnp.int32(t), inputs[t], state, world)
            finals.append(state)
        for one, other in zip(*map(jax.tree.leaves, finals), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert info.payload.max() == 2 * (5 * 4 + 4)
        for leaf in jax.tree.leaves((state.clients.stddev, state.server.stddev)):
            assert (leaf > 0).all()
        models = algorithm.models(state)
        assert {leaf.shape[0] for leaf in jax.tree.leaves(models)} == {3}
        shapes = jax.eval_shape(on_test_sets(network_task()), models, world)
        assert shapes["accuracy"].shape == (3,)


@pytest.mark.parametrize("synchronous", [False, True])
def test_traces_once(synchronous):
    algorithm = scalar_virtual(num_epochs=1, synchronous=synchronous)
    traces = []

    def counted(*args):
        traces.append(None)
        return algorithm.round(*args)

    counting = algorithm._replace(round=counted)
    for seed in range(2):
        for snapshot in simulate(
            jax.random.key(seed),
            counting,
            world_of(LIKELIHOODS),
            3,
            eval_every=1,
            evaluate=evaluate_scalar,
        ):
            assert snapshot.metrics["accuracy"].shape == (2,)
    assert len(traces) == 1


class TestSeveral:
    def test_is_the_same_as_one_by_one(self):
        task = bayesian.in_coordinates(CONJUGATE, gaussian.POINT)
        task = task._replace(
            loss=lambda variables, batch, key: (
                jnp.square(variables.params["server"]["w"] - batch["c"][0, 0]),
                variables.stats,
            )
        )
        learner = gradient_descent(task, optax.sgd(0.1))
        world = world_of([[2, 2], [4, 12]])
        options = {"batch_size": 1, "agent_loop": VMAP}
        for algorithm in (
            local_only(task, learner, **options),
            server_rounds(task, learner, num_clients=1, **options),
        ):
            ends = []
            for method, num_rounds in (
                (algorithm, 6),
                (repeat_rounds(algorithm, 3), 2),
            ):
                for now in simulate(
                    jax.random.key(0),
                    method,
                    world,
                    num_rounds,
                    eval_every=num_rounds,
                    evaluate=lambda models, world: {},
                ):
                    ends.append(
                        (
                            np.asarray(now.state.variables.params["server"]["w"]),
                            now.info,
                        )
                    )
            np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-6)
            one, grouped = ends[0][1], ends[1][1]
            np.testing.assert_array_equal(
                one.sent.reshape(2, 3, 2).sum(1), grouped.sent
            )
            np.testing.assert_allclose(
                one.train_loss.reshape(2, 3, 2).mean(1), grouped.train_loss, rtol=1e-6
            )

    def test_refuses_none(self):
        with pytest.raises(
            InputError, match="one round or more to make a round, got 0"
        ):
            repeat_rounds(scalar_virtual(), 0)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_epochs": 0}, "one local epoch or more, got 0"),
        ({"damping": 0.0}, "a damping above 0 and at most 1, got 0.0"),
        ({"damping": 1.5}, "a damping above 0 and at most 1, got 1.5"),
        ({"prior_stddev": 0.0}, "a positive prior_stddev, got 0.0"),
        ({"prior_stddev": float("nan")}, "a positive prior_stddev, got nan"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(InputError, match=message):
        scalar_virtual(**options)


def test_a_single_client_cannot_start_from_the_others():
    algorithm = scalar_virtual(prior_mode=RELEASE)
    with pytest.raises(InputError, match="two agents or more .* got 1: choose another"):
        algorithm.init(jax.random.key(0), world_of([[2, 2]]))
