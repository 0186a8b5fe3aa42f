"""Normal weights: their algebra, the networks drawn from them, how one agent learns."""

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
from scipy import integrate, stats

from p2pjax.algorithms._central import central
from p2pjax.algorithms._local_only import local_only
from p2pjax.datasets import stacking
from p2pjax.nn import gaussian, variational
from p2pjax.nn.gaussian import Gaussian, Natural
from p2pjax.tasks import bayesian
from p2pjax.tasks.task import Task
from p2pjax.training import free_energy, local_training, samplers
from p2pjax.types import FederatedData, InputError, Variables

VECTORS = json.loads((Path(__file__).parent / "vectors/virtual.json").read_text())
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
# Compilation is all the time these tests take; the programs run for milliseconds.
jit = partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
    },
)
moderate = st.floats(0.125, 8)


def scalar(mean, stddev):
    return Gaussian({"w": jnp.float32(mean)}, {"w": jnp.float32(stddev)})


class TestGaussian:
    def test_printed_numbers(self):
        printed = VECTORS["scalars"]
        found = gaussian.kl_divergence(scalar(0.5, 0.5), scalar(0, 1))
        close(found, printed["divergence"])
        softplus = gaussian.SOFTPLUS.gaussian(scalar(0, -3)).stddev["w"]
        close(softplus, printed["softplus"])
        close(gaussian.inverse_softplus(jnp.float32(1)), printed["inverse_softplus"])
        assert abs(bayesian.INITIAL_STDDEV - printed["softplus"]) < 1e-6

    @settings(max_examples=15)
    @given(st.floats(-3, 3), moderate, st.floats(-3, 3), moderate)
    def test_divergence_is_the_integral(self, mean, stddev, mean_p, deviation_p):
        q, p = stats.norm(mean, stddev), stats.norm(mean_p, deviation_p)
        expected, _ = integrate.quad(
            lambda x: q.pdf(x) * (q.logpdf(x) - p.logpdf(x)),
            mean - 12 * stddev,
            mean + 12 * stddev,
        )
        found = gaussian.kl_divergence(
            scalar(mean, stddev), scalar(mean_p, deviation_p)
        )
        close(found, expected, rtol=1e-4, atol=1e-4)

    def test_divergence_adds_over_leaves_and_is_zero_at_the_same(self):
        q = Gaussian(
            {"a": jnp.ones((2, 3)), "b": {"c": jnp.zeros(4)}},
            {"a": jnp.full((2, 3), 0.5), "b": {"c": jnp.full(4, 2.0)}},
        )
        prior = gaussian.centered(1.0, q.mean)
        one, two = (
            gaussian.kl_divergence(scalar(mean, dev), scalar(0, 1))
            for mean, dev in ((1, 0.5), (0, 2))
        )
        close(gaussian.kl_divergence(q, prior), 6 * one + 4 * two)
        close(gaussian.kl_divergence(q, q), 0)

    @settings(max_examples=15)
    @given(moderate, st.floats(-3, 3), moderate, st.floats(-3, 3), st.floats(0.01, 1))
    def test_products_quotients_and_powers(self, dev, mean, dev_2, mean_2, damping):
        a, b = (
            gaussian.natural(scalar(mean, dev)),
            gaussian.natural(scalar(mean_2, dev_2)),
        )
        product = gaussian.product(a, b)
        close(product.precision["w"], dev**-2 + dev_2**-2, rtol=1e-4)
        # The mean of a product is the precision-weighted mean.
        weights = np.array([dev**-2, dev_2**-2])
        expected = weights @ [mean, mean_2] / weights.sum()
        close(gaussian.moments(product).mean["w"], expected, rtol=1e-4, atol=1e-4)
        back = gaussian.quotient(product, b)
        for one, other in zip(*map(jax.tree.leaves, (back, a)), strict=True):
            close(one, other, rtol=1e-3, atol=1e-3 * float(max(weights)))
        between = gaussian.damped(a, b, damping)
        expected = (1 - damping) * weights[0] + damping * weights[1]
        close(between.precision["w"], expected, rtol=1e-4)
        halved = gaussian.moments(gaussian.power(a, 4.0)).stddev["w"]
        close(halved, dev / 2, rtol=1e-4)

    @pytest.mark.parametrize("stddev", [1e-6, 0.05, 1, 30])
    def test_coordinates_return_what_they_were_given(self, stddev):
        q = scalar(-2, stddev)
        back = gaussian.SOFTPLUS.gaussian(gaussian.SOFTPLUS.free(q))
        close(back.mean["w"], -2)
        close(back.stddev["w"], stddev, rtol=1e-5, atol=0)
        assert gaussian.POINT.free(q) == q.mean
        assert gaussian.POINT.gaussian(q.mean) == Gaussian(q.mean, {})


class TestLayers:
    def test_equation_4(self):
        v = {
            name: jnp.asarray(x, jnp.float32) for name, x in VECTORS["lateral"].items()
        }
        params = {
            "kernel": v["W"].T,
            "lateral": v["U"].T,
            "gate": v["alpha"],
            "lateral_bias": v["b"],
            "bias": v["c"],
        }
        layer = variational.LateralDense(features=2)
        output = layer.apply({"params": params}, v["client"][None], v["server"][None])
        close(output[0], v["output"])

    def test_printed_flipout(self):
        v = {
            name: jnp.asarray(x, jnp.float32) for name, x in VECTORS["flipout"].items()
        }
        expected = v.pop("output")
        close(variational.flipped(**v), expected)

    def test_flipout_and_shared_draws_agree_in_mean_and_variance(self):
        rng = np.random.default_rng(0)
        x = jnp.asarray(rng.normal(size=(2, 3)), jnp.float32)
        mean = {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2)}
        stddev = {"kernel": rng.uniform(0.5, 2, (3, 2)), "bias": np.array([0.5, 2])}
        as_float = partial(jax.tree.map, lambda leaf: jnp.asarray(leaf, jnp.float32))
        q = Gaussian(as_float(mean), as_float(stddev))
        layer = variational.Dense(2)
        expected = np.asarray(x) @ mean["kernel"] + mean["bias"]
        variance = np.asarray(x) ** 2 @ stddev["kernel"] ** 2
        variance = variance + stddev["bias"] ** 2
        num_draws = 20_000
        keys = jax.random.split(jax.random.key(1), num_draws)
        for flipout in (False, True):
            draw = partial(variational.draw, flipout=flipout, dropout=0.0)
            draws = jit(jax.vmap(lambda k, d=draw: layer.apply(d(k, q, 2), x)))
            outputs = np.asarray(draws(keys))
            error = np.sqrt(variance / num_draws)
            assert (np.abs(outputs.mean(0) - expected) < 5 * error).all()
            relative = outputs.var(0) / variance - 1
            assert np.abs(relative).max() < 5 * np.sqrt(2 / num_draws)
            # Two examples share a matrix, or only its bias.
            between = np.prod(x, axis=0) @ stddev["kernel"] ** 2
            between = stddev["bias"] ** 2 + (0 if flipout else between)
            found = np.prod(outputs - outputs.mean(0), axis=1).mean(0)
            assert np.abs(found - between).max() < 5 * variance.max() / num_draws**0.5

    def test_dropout(self):
        x = jnp.ones((400, 50))
        layer = variational.Dense(features=2)
        params = jit(layer.init)(jax.random.key(0), x)["params"]
        draw = partial(variational.draw, jax.random.key(1), Gaussian(params, {}), 400)
        found = draw(flipout=True, dropout=0.3)
        assert set(found) == {"params", "kept"}  # no deviations, nothing perturbed
        kept = found["kept"]["kernel"]
        assert abs(float(kept.mean()) - 1) < 0.03
        assert abs(float((kept == 0).mean()) - 0.3) < 0.02
        close(layer.apply(found, x), (x * kept) @ params["kernel"])
        assert set(draw(flipout=True, dropout=0.0)) == {"params"}

    @pytest.mark.parametrize("same_depth", [False, True])
    def test_columns(self, same_depth):
        """Only the server's layers that a client reads exist, and it reads them."""
        module = variational.Columns((4, 3, 2), same_depth=same_depth)
        x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2, 3)), jnp.float32)
        params = jit(module.init)(jax.random.key(0), x)["params"]
        depth = 3 if same_depth else 2
        assert sorted(params["server"]) == [f"layer_{i + 1}" for i in range(depth)]
        assert sorted(params["client"]) == ["layer_1", "layer_2", "layer_3"]
        reads = params["client"]["layer_1"]["lateral"].shape[0]
        assert reads == (4 if same_depth else 6)
        output = jax.eval_shape(module.apply, {"params": params}, x)
        assert output.shape == (5, 2)

        def last(server):
            server = {**params["server"], f"layer_{depth}": server}
            return module.apply({"params": {**params, "server": server}}, x).sum()

        gradient = jit(jax.grad(last))(params["server"][f"layer_{depth}"])
        assert np.abs(gradient["kernel"]).max() > 0

    def test_columns_need_a_hidden_layer(self):
        with pytest.raises(InputError, match=r"hidden layer.* got layers \(2,\)"):
            variational.Columns((2,)).init(jax.random.key(0), jnp.ones((1, 3)))


def small_task():
    module = variational.VariationalMLP((4, 3))
    task = bayesian.variational_classification(module, (5,), num_samples=2, dropout=0.1)
    return Task(*map(jit, task[:3]))


BATCH = {
    "x": jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), jnp.float32),
    "y": jnp.asarray([0, 2, 1, 1], jnp.int32),
    "valid": jnp.asarray([True, True, True, False]),
}


class TestClassification:
    def test_loss_and_prediction_ignore_padding(self):
        task = small_task()
        variables = task.init(jax.random.key(0))
        close(variables.params.stddev["layer_1"]["kernel"], 0.048587)
        changed = {**BATCH, "y": BATCH["y"].at[3].set(0), "x": BATCH["x"].at[3].set(9)}
        loss, _ = task.loss(variables, BATCH, jax.random.key(1))
        close(task.loss(variables, changed, jax.random.key(1))[0], loss)
        sums = task.evaluate(variables, BATCH)
        for name, ratio in task.evaluate(variables, changed).items():
            close(ratio, sums[name], rtol=1e-4)
        assert sums["accuracy"].weight == 3

    def test_prediction_is_the_mean_softmax(self):
        module = variational.VariationalMLP((4, 3))
        task = bayesian.variational_classification(
            module, (5,), num_samples=1, num_test_samples=6
        )
        task = Task(*map(jit, task[:3]))
        q = task.init(jax.random.key(0)).params
        wide = Gaussian(q.mean, jax.tree.map(lambda d: d * 20, q.stddev))
        keys = jax.random.split(jax.random.key(0), 6)

        @jit
        def softmax(key):
            found = variational.draw(key, wide, 4, flipout=True, dropout=0.0)
            return jax.nn.softmax(module.apply(found, BATCH["x"]))

        outputs = [softmax(key) for key in keys]
        mean = np.mean(outputs, axis=0)
        found = task.evaluate(Variables(wide, {}), BATCH)
        expected = -np.log(mean[np.arange(3), np.asarray(BATCH["y"])[:3]]).sum()
        close(found["loss"].total, expected, rtol=1e-4)
        right = (mean.argmax(1) == np.asarray(BATCH["y"]))[:3].sum()
        assert float(found["accuracy"].total) == right

    def test_objectives(self):
        losses = jnp.asarray([[1.0, 0.2], [3.0, 0.2]])
        close(bayesian.expected(losses), [2, 0.2])
        by_hand = -np.log((np.exp(-1) + np.exp(-3)) / 2)
        close(bayesian.of_mean_probability(losses), [by_hand, 0.2])

    def test_a_point_is_an_ordinary_network(self):
        module = variational.VariationalMLP((4, 3))
        task = bayesian.in_coordinates(
            bayesian.variational_classification(module, (5,), num_samples=1),
            gaussian.POINT,
        )
        task = Task(*map(jit, task[:3]))
        variables = task.init(jax.random.key(0))
        logits = jit(module.apply)({"params": variables.params}, BATCH["x"])
        expected = optax.softmax_cross_entropy_with_integer_labels(logits, BATCH["y"])
        loss, _ = task.loss(variables, BATCH, jax.random.key(5))
        close(loss, expected[:3].mean())

    def test_refuses(self):
        with pytest.raises(InputError, match="one draw of the weights or more, got 0"):
            bayesian.variational_classification(
                variational.Dense(2), (2,), num_samples=0
            )
        with pytest.raises(InputError, match="dropout of 0 or more below 1, got 1.0"):
            bayesian.variational_classification(
                variational.Dense(2), (2,), num_samples=1, dropout=1.0
            )


def test_divergence_counts_per_example_of_whoever_learns():
    """A client's own examples when it is alone, everybody's in one model."""
    task = Task(
        lambda key: Variables({"w": jnp.ones(())}, {}),
        lambda variables, batch, key: (jnp.zeros(()), variables.stats),
        lambda variables, batch: {},
    )
    learner = free_energy.free_energy_descent(
        task, optax.sgd(1.0), lambda params: params["w"] ** 2 / 2
    )
    split = stacking.stack_agents([{"x": np.zeros(n, np.float32)} for n in (2, 4)])
    world = FederatedData(split, split, split, np.zeros(2, np.int32))

    def after_one_round(algorithm):
        state = algorithm.init(jax.random.key(0), world)
        state, info = algorithm.round(jax.random.key(1), jnp.int32(0), (), state, world)
        return state.variables.params["w"], info.train_loss

    weights, losses = after_one_round(local_only(task, learner, batch_size=4))
    close(weights, [1 - 1 / 2, 1 - 1 / 4])
    close(losses, [1 / 4, 1 / 8])
    weights, losses = after_one_round(central(task, learner, batch_size=6))
    close(weights, [1 - 1 / 6])
    close(losses, [1 / 12] * 2)


def test_learns_a_posterior():
    """One parameter with a conjugate likelihood: the exact posterior is found."""
    observed = np.asarray([1.0, 2.0, 4.0], np.float32)

    def loss_fn(variables, batch, key):
        del key
        q = variables.params
        errors = jnp.square(q.mean["w"] - batch["x"]) + q.stddev["w"] ** 2
        valid = batch["valid"].astype(jnp.float32)
        return (errors * valid).sum() / (2 * valid.sum()), variables.stats

    task = Task(lambda key: Variables(scalar(0.3, 0.05), {}), loss_fn, lambda *_: {})
    free_task = bayesian.in_coordinates(task, gaussian.SOFTPLUS)

    def divergence(free):
        posterior = gaussian.SOFTPLUS.gaussian(free)
        return gaussian.kl_divergence(posterior, gaussian.centered(1.0, posterior.mean))

    learner = free_energy.free_energy_descent(free_task, optax.sgd(0.5), divergence)
    train = jax.jit(
        local_training.local_training(learner, samplers.cyclic_window(3), 300, 1)
    )
    agents = stacking.stack_agents([{"x": observed}])
    variables = jax.tree.map(lambda leaf: leaf[None], free_task.init(jax.random.key(0)))
    state = jax.vmap(learner.init)(variables)
    found, _, _ = train(jax.random.key(0), jnp.int32(0), variables, state, agents)
    posterior = gaussian.natural(gaussian.SOFTPLUS.gaussian(found.params))
    exact = Natural({"w": [1.0 + 3]}, {"w": [observed.sum()]})
    close(posterior.precision["w"], exact.precision["w"], rtol=1e-3)
    close(posterior.shift["w"], exact.shift["w"], rtol=1e-3)
