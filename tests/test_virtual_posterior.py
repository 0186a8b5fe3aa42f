"""VIRTUAL's server against the posterior of all data together, found in other ways.

Linear regression has its posterior in closed form; that of logistic regression is
integrated on a grid, and its best product of normals found by quadrature.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize
from test_virtual import jit

from p2pjax.algorithms._virtual import ONCE, PAPER, RELEASE, virtual
from p2pjax.datasets import stacking
from p2pjax.evaluation import posteriors
from p2pjax.nn import gaussian
from p2pjax.nn.gaussian import Gaussian
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import VMAP
from p2pjax.training.free_energy import with_deviation_rate
from p2pjax.training.local_updates import steps
from p2pjax.types import FederatedData, InputError, Ratio, Variables

NUM_CLIENTS, NUM_EXAMPLES, NUM_WEIGHTS = 3, 8, 2
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(30)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def examples_of(seed):
    """Correlated inputs `[K, M, 2]`, and labels 0 and 1 of a logistic model."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(NUM_CLIENTS, NUM_EXAMPLES, NUM_WEIGHTS))
    x[..., 1] += 0.5 * x[..., 0]
    chance = 1 / (1 + np.exp(-x @ np.array([1.5, -1.0])))
    return x, (rng.random(chance.shape) < chance).astype(float)


def world_of(x, y):
    arrays = [
        {"x": own.astype(np.float32), "y": labels.astype(np.float32)}
        for own, labels in zip(x, y, strict=True)
    ]
    split = stacking.stack_agents(arrays)
    return FederatedData(split, split, split, np.zeros(len(x), np.int32))


def task_of(loss, start=0.3):
    """Shared weights, and a private one of which the data say nothing.

    `loss(mean [B], variance [B], y [B])` is of the predictor's normal distribution.
    """

    def init_fn(key):
        del key
        mean = {"server": jnp.zeros(NUM_WEIGHTS), "client": jnp.zeros(1)}
        stddev = jax.tree.map(lambda leaf: jnp.full_like(leaf, start), mean)
        return Variables(Gaussian(mean, stddev), {})

    def loss_fn(variables, batch, key):
        del key
        q = variables.params
        mean = batch["x"] @ q.mean["server"]
        variance = batch["x"] ** 2 @ q.stddev["server"] ** 2
        losses = loss(mean, variance, batch["y"])
        valid = batch["valid"].astype(losses.dtype)
        return (losses * valid).sum() / jnp.maximum(valid.sum(), 1), variables.stats

    def evaluate_fn(variables, batch):
        found, _ = loss_fn(variables, batch, None)
        return {"accuracy": Ratio(found, jnp.ones(()))}

    return Task(init_fn, loss_fn, evaluate_fn)


def squared(mean, variance, y):
    """Expected minus log-likelihood of noise of variance 1."""
    return ((y - mean) ** 2 + variance) / 2


def logistic(mean, variance, y):
    nodes = jnp.asarray(NODES, jnp.float32)
    logits = mean[:, None] + jnp.sqrt(variance)[:, None] * nodes[None]
    losses = optax.sigmoid_binary_cross_entropy(logits, y[:, None])
    return losses @ jnp.asarray(WEIGHTS, jnp.float32)


def sampled_logistic(mean, variance, y, key):
    noise = jax.random.normal(key, mean.shape)
    logits = mean + jnp.sqrt(variance) * noise
    return optax.sigmoid_binary_cross_entropy(logits, y)


def final_state(algorithm, world, num_rounds):
    inputs = algorithm.plan(np.random.default_rng(0), world, num_rounds)

    @jit
    def all_rounds(key, inputs, world):
        def one(state, scanned):
            t, now = scanned
            key_now = jax.random.fold_in(key, t)
            return algorithm.round(key_now, t, now, state, world)[0], ()

        numbers = jnp.arange(num_rounds, dtype=jnp.int32)
        return jax.lax.scan(one, algorithm.init(key, world), (numbers, inputs))[0]

    world = jax.tree.map(jnp.asarray, world)
    return all_rounds(jax.random.key(0), inputs, world)


def learned(task, world, *, passes, num_steps=300, optimizer=None, **options):
    """The server's mean and deviation after so many refinements of each client."""
    algorithm = virtual(
        task,
        optimizer or optax.sgd(0.3),
        batch_size=NUM_EXAMPLES,
        local_updates=steps(num_steps),
        agent_loop=VMAP,
        **options,
    )
    rounds = passes if options.get("synchronous") else passes * NUM_CLIENTS
    state = final_state(algorithm, world, rounds)
    return np.asarray(state.server.mean[0]), np.asarray(state.server.stddev[0]), state


def best_logistic(x, y):
    """The product of normals of least free energy, of all data together."""

    def free_energy(free):
        mean, stddev = free[:2], np.exp(free[2:])
        center, spread = x @ mean, np.sqrt(x**2 @ stddev**2)
        logits = center[:, None] + spread[:, None] * NODES
        losses = (np.logaddexp(0, logits) - y[:, None] * logits) @ WEIGHTS
        return losses.sum() + (stddev**2 + mean**2 - 1).sum() / 2 - free[2:].sum()

    found = optimize.minimize(free_energy, np.zeros(4), method="BFGS")
    return found.x[:2], np.exp(found.x[2:])


def integrated_logistic(x, y):
    """Mean and deviations of the exact posterior, on a grid."""
    axis = np.linspace(-5, 5, 401)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    logits = grid @ x.T
    log_p = (y * logits - np.logaddexp(0, logits)).sum(1) - (grid**2).sum(1) / 2
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean = weight @ grid
    return mean, np.sqrt(weight @ (grid - mean) ** 2)


def pooled(x, y):
    return x.reshape(-1, NUM_WEIGHTS), y.reshape(-1)


class TestLinearRegression:
    """With noise of variance 1 and a standard normal prior all is in closed form."""

    @pytest.fixture
    def data(self):
        rng = np.random.default_rng(1)
        x, _ = examples_of(1)
        return x, x @ np.array([1.0, -0.5]) + rng.normal(size=x.shape[:2])

    @pytest.mark.parametrize(
        "mode, counted",
        [(ONCE, 1), (PAPER, NUM_CLIENTS), (RELEASE, 0)],
        ids=["once", "paper", "release"],
    )
    def test_the_server_has_the_posterior_of_all_data(self, data, mode, counted):
        """The best product of normals: exact means, the diagonal of the precision.

        The prior is counted once, once per client, or not at all.
        """
        mean, stddev, _ = learned(
            task_of(squared), world_of(*data), passes=25, prior_mode=mode
        )
        x, y = pooled(*data)
        precision = x.T @ x + counted * np.eye(NUM_WEIGHTS)
        expected = np.linalg.solve(precision, x.T @ y)
        np.testing.assert_allclose(stddev, np.diag(precision) ** -0.5, rtol=0.01)
        np.testing.assert_allclose(mean, expected, atol=0.01)

    def test_the_order_of_clients_does_not_matter_in_the_end(self, data):
        mean, stddev, _ = learned(
            task_of(squared), world_of(*data), passes=25, shuffled=True
        )
        x, y = pooled(*data)
        precision = x.T @ x + np.eye(NUM_WEIGHTS)
        np.testing.assert_allclose(stddev, np.diag(precision) ** -0.5, rtol=0.01)
        expected = np.linalg.solve(precision, x.T @ y)
        np.testing.assert_allclose(mean, expected, atol=0.01)

    def test_a_tempered_divergence_counts_data_more_often(self, data):
        """Half the weight of both divergences: each client counts its data twice."""
        _, stddev, state = learned(
            task_of(squared), world_of(*data), passes=25, divergence_weight=0.5
        )
        x, _ = pooled(*data)
        precision = 2 * (x**2).sum(0) + 1
        np.testing.assert_allclose(stddev, precision**-0.5, rtol=0.01)
        own = 2 * (data[0] ** 2).sum(1)  # [K, 2]
        # The less a client says beside the others, the slower its factor comes.
        np.testing.assert_allclose(state.factors.precision, own, rtol=0.15)


class TestLogisticRegression:
    @pytest.fixture
    def data(self):
        return examples_of(2)

    def test_the_server_has_the_best_product_of_normals(self, data):
        mean, stddev, _ = learned(
            task_of(logistic), world_of(*data), passes=5, num_steps=2000
        )
        expected = best_logistic(*pooled(*data))
        np.testing.assert_allclose(mean, expected[0], atol=0.01)
        np.testing.assert_allclose(stddev, expected[1], rtol=0.02)
        # A product of normals is narrower than the posterior, whose weights hang
        # together, and has nearly its mean.
        exact = integrated_logistic(*pooled(*data))
        np.testing.assert_allclose(mean, exact[0], atol=0.1)
        assert (stddev < exact[1]).all()
        assert (stddev > 0.6 * exact[1]).all()
        # Each client alone is far from it.
        alone = [best_logistic(*own) for own in zip(*data, strict=True)]
        assert min(np.abs(own[1] - stddev).min() for own in alone) > 0.05

    def test_all_clients_at_once_come_to_the_same(self, data):
        mean, stddev, _ = learned(
            task_of(logistic),
            world_of(*data),
            passes=20,
            num_steps=1000,
            synchronous=True,
        )
        expected = best_logistic(*pooled(*data))
        np.testing.assert_allclose(mean, expected[0], atol=0.01)
        np.testing.assert_allclose(stddev, expected[1], rtol=0.02)

    def test_draws_of_weights_and_adam_come_near(self, data):
        """As networks learn: noise of draws in each step, Adam's steps of one size."""
        task = task_of(logistic)

        def loss_fn(variables, batch, key):
            drawn = task_of(partial(sampled_logistic, key=key))
            return drawn.loss(variables, batch, None)

        optimizer = with_deviation_rate(optax.adam(5e-3), 2.0)
        mean, stddev, _ = learned(
            task._replace(loss=loss_fn),
            world_of(*data),
            passes=6,
            num_steps=1500,
            optimizer=optimizer,
            largest_start=0.99,
        )
        expected = best_logistic(*pooled(*data))
        np.testing.assert_allclose(mean, expected[0], atol=0.15)
        np.testing.assert_allclose(stddev, expected[1], rtol=0.2)


class TestWithoutEvidence:
    """Clients whose data say nothing: the posterior is the prior, deviation 1."""

    WORLD = world_of(
        np.zeros((NUM_CLIENTS, NUM_EXAMPLES, NUM_WEIGHTS)), np.zeros((3, 8))
    )

    def precision(self, start, **options):
        options = {"num_steps": 20, "optimizer": optax.adam(1e-3), **options}
        _, stddev, state = learned(
            task_of(squared, start), self.WORLD, passes=1, **options
        )
        return stddev**-2.0, np.asarray(state.factors.precision)

    def test_a_narrow_start_is_claimed_by_the_first_client(self):
        """What few steps of Adam cannot unsay: 400 of precision, from no data."""
        total, factors = self.precision(0.05)
        assert (factors[0] > 300).all()
        assert (total > 300).all()

    @pytest.mark.parametrize("largest_start", [0.95, 0.999])
    def test_each_first_visit_claims_what_its_start_does(self, largest_start):
        """`1 / largest_start**2` per client, whatever its data: 1.36 or 1.006 of 1."""
        total, _ = self.precision(1.0, largest_start=largest_start)
        grown = largest_start ** (-2.0 * NUM_CLIENTS)
        np.testing.assert_allclose(total, grown, rtol=0.01)

    def test_deviations_with_a_rate_of_their_own_unsay_it(self):
        options = {"num_steps": 400, "optimizer": optax.adam(1e-3)}
        slow, _ = self.precision(0.05, **options)
        faster = with_deviation_rate(optax.adam(1e-3), 30.0)
        fast, _ = self.precision(0.05, **(options | {"optimizer": faster}))
        assert (slow > 100).all()
        assert (fast < 1.5).all()  # 1 is at infinity in these coordinates


def test_what_an_evaluation_tells():
    """Each value against NumPy, after one pass over clients who differ."""
    x, y = examples_of(3)
    algorithm = virtual(
        task_of(squared),
        optax.sgd(0.3),
        batch_size=NUM_EXAMPLES,
        local_updates=steps(50),
        prior_stddev=2.0,
        score_before=True,
        agent_loop=VMAP,
    )
    state = final_state(algorithm, world_of(x, y), NUM_CLIENTS)
    models = algorithm.models(state)
    found = jax.tree.map(np.asarray, models.observed)
    assert {value.shape for value in found.values()} == {(NUM_CLIENTS,)}
    stddev = np.asarray(state.server.stddev[0])
    np.testing.assert_allclose(found["server_stddev"], stddev.mean(), rtol=1e-5)
    low, high = np.quantile(stddev, [0.05, 0.95])
    np.testing.assert_allclose(found["server_stddev_low"], low, rtol=1e-5)
    np.testing.assert_allclose(found["server_stddev_high"], high, rtol=1e-5)
    precision = np.asarray(state.factors.precision)
    np.testing.assert_allclose(found["factor_precision"], precision.mean(1), rtol=1e-5)

    def divergence(mean, stddev, mean_p, stddev_p):
        ratio = (stddev**2 + (mean - mean_p) ** 2) / stddev_p**2
        return (ratio - 1 - 2 * np.log(stddev / stddev_p)).sum() / 2

    mean = np.asarray(state.server.mean[0])
    from_prior = divergence(mean, stddev, 0, 2.0)
    np.testing.assert_allclose(found["server_divergence"], from_prior, rtol=1e-4)
    for client in range(NUM_CLIENTS):
        others = np.arange(NUM_CLIENTS) != client
        total = precision[others].sum(0) + 0.25
        shift = np.asarray(state.factors.shift)[others].sum(0)
        expected = divergence(mean, stddev, shift / total, total**-0.5)
        np.testing.assert_allclose(
            found["cavity_divergence"][client], expected, rtol=1e-3
        )
    assert "gate" not in found
    # The last client's posterior is the product, that of the others was changed since.
    after, now = models.trained.params.mean["server"], models.averaged.params.mean
    np.testing.assert_allclose(after[-1], now["server"][-1], rtol=1e-5)
    assert (np.abs(after[0] - now["server"][0]) > 1e-3).any()


def test_gates_are_told():
    mean = {
        "server": {"w": jnp.zeros((2, 3))},
        "client": {"layer_1": {"gate": jnp.asarray([[1.0, -3], [0, 0.5]])}},
    }
    q = Gaussian(mean, gaussian.centered(0.1, mean).stddev)
    found = posteriors.of_columns(q, 1.0)
    np.testing.assert_allclose(found["gate"], [2, 0.25])


def test_an_order_of_its_own_in_each_pass():
    world = world_of(*examples_of(0))
    options = {"batch_size": 4, "agent_loop": VMAP}
    algorithm = virtual(task_of(squared), optax.sgd(0.1), shuffled=True, **options)
    turns = algorithm.plan(np.random.default_rng(0), world, 20)
    assert turns.shape == (20, NUM_CLIENTS)
    order = turns.argmax(1)
    passes = order[:18].reshape(6, NUM_CLIENTS)
    np.testing.assert_array_equal(np.sort(passes), np.tile(range(NUM_CLIENTS), (6, 1)))
    assert len({tuple(one) for one in passes.tolist()}) > 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"divergence_weight": 0.0}, "positive divergence_weight, got 0.0"),
        ({"largest_start": 1.0}, "largest_start between 0 and 1, got 1.0"),
        ({"largest_start": 0.0}, "largest_start between 0 and 1, got 0.0"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(InputError, match=message):
        virtual(task_of(squared), optax.sgd(0.1), batch_size=4, **options)


def test_refuses_a_rate_that_is_none():
    with pytest.raises(InputError, match="positive factor of deviations, got 0"):
        with_deviation_rate(optax.sgd(0.1), 0)
