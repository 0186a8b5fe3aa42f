"""Combination, FedCurv and relatives: printed numbers, properties, plain loops."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_cases import marked

from p2pjax.algorithms._combination import combination
from p2pjax.algorithms._ditto import ditto
from p2pjax.algorithms._fedcurv import fedcurv
from p2pjax.algorithms._fedcurv_neighbors import fedcurv_neighbors
from p2pjax.algorithms._fedper import fedper
from p2pjax.algorithms._fedprox import fedprox
from p2pjax.algorithms._local_only import local_only
from p2pjax.datasets import stacking
from p2pjax.engines.combining import GlobalStopping, combined_rounds
from p2pjax.engines.curvature_penalty import penalty_of_others
from p2pjax.engines.server import server_rounds
from p2pjax.evaluation import models
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.exchange import owner_classes
from p2pjax.exchange.factors import additive, exponential, mean, size_weighted
from p2pjax.exchange.mixing import by_factors, mix, sum_of_neighbors, sum_of_others
from p2pjax.graphs import generators
from p2pjax.nn.mlp import MLP
from p2pjax.simulation._simulate import simulate
from p2pjax.tasks._classification import classification
from p2pjax.tasks.losses import softmax_cross_entropy
from p2pjax.tasks.task import Task
from p2pjax.training import curvature
from p2pjax.training.agent_loop import IN_PLACE, VMAP
from p2pjax.training.early_stopping import LocalStopping, for_epochs, until_converged
from p2pjax.training.learner import StepContext, gradient_descent, proximal
from p2pjax.training.local_updates import epochs, steps
from p2pjax.types import FederatedData, InputError, Ratio, Variables

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

    return Task(
        lambda key: Variables({"w": jax.random.normal(key, (width,))}, {}),
        loss_fn,
        evaluate_fn,
    )


TASK = quadratic_task()
LEARNER = gradient_descent(TASK, optax.sgd(0.1))
IDLE = gradient_descent(TASK, optax.sgd(0.0))


def world_of(targets, bends=None, valid=None):
    """One example per entry of `targets` [N][M][2], weighted by `bends` likewise."""

    def split(rows, h):
        return stacking.stack_agents(
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
    held = (
        train if valid is None else split(valid, [np.ones((len(o), 2)) for o in valid])
    )
    return FederatedData(train, held, train, np.zeros(len(targets), np.int32))


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
        "sizes, share, added, raised",
        [
            (
                (568, 496),
                (0.533835, 0.466165),
                (1.533835, 1.466165),
                (1.000534, 1.000466),
            ),
            (
                (486, 325),
                (0.599260, 0.400740),
                (1.599260, 1.400740),
                (1.000599, 1.000401),
            ),
            (
                (330, 481),
                (0.406905, 0.593095),
                (1.406905, 1.593095),
                (1.000407, 1.000593),
            ),
        ],
    )
    def test_printed_table(self, sizes, share, added, raised):
        r = jnp.asarray(sizes, jnp.float32) / sum(sizes)
        close(r, share)
        close(size_weighted(r), share)
        close(mean(r), [0.5, 0.5])
        close(additive()(r), 1 + np.array(share))
        close(additive()(r).sum(), 3)
        close(exponential(1e-3)(r), raised)
        close(exponential(1e-3)(r).sum(), 2.001, atol=1e-5)

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
            found = exponential(1.0)(jnp.full(hosts, 1 / hosts))
            close(found, np.full(hosts, alpha))
            close(found.sum(), total, atol=1e-4)
        for c in (1e-3, 0.1, 1.0, 3.0):  # figure 4
            large = exponential(c)(jnp.full(1000, 1e-3))
            close(large, np.ones(1000), atol=c * 1.1e-3)

    @pytest.mark.parametrize(
        "factors, expected",
        [
            (mean, [0.4, -0.25]),
            (size_weighted, [0.3602959309, -0.3988902589]),
            (additive(), [1.1602959309, -0.8988902589]),
            (exponential(1e-3), [0.8003603800, -0.5003990297]),
        ],
    )
    def test_vector(self, factors, expected):
        world = world_of([np.zeros((300, 2)), np.zeros((200, 2))])
        held = [np.zeros((186, 2)), np.zeros((125, 2))]  # 486 and 325 in all
        world = world._replace(valid=world_of(held).train)
        algorithm = combined_rounds(TASK, for_epochs(IDLE, 1, batch_size=500), factors)
        start = starting_at([[0.2, -1.0], [0.6, 0.5]])
        states, info = run(algorithm, world, 1, start=start)
        close(states.variables.params["w"][0], [expected] * 2)
        assert info.sent.tolist() == info.received.tolist() == [[1, 1]]
        assert info.payload.tolist() == info.delivered.tolist() == [[2, 2]]
        assert info.epochs.tolist() == [[1, 1]]

    @settings(max_examples=6)
    @given(st.integers(1, 4), st.integers(0, 100))
    def test_factors_need_not_sum_to_one(self, num_agents, seed):
        rng = np.random.default_rng(seed)
        alpha = rng.uniform(-1, 2, num_agents)
        params = {
            "a": rng.normal(size=(num_agents, 1, 3)),
            "b": rng.normal(size=num_agents),
        }
        shapes = jax.tree.map(lambda leaf: leaf[0], params)
        plan = owner_classes.whole_model(num_agents, shapes)
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
        for layer, shape in enumerate(itertools.pairwise(widths), 1)
    }


class TestScale:
    @settings(max_examples=6)
    @given(st.integers(2, 3), st.integers(0, 50))
    def test_without_biases_a_sum_predicts_as_the_mean(self, num_hosts, seed):
        """D-T1: nothing but the next training can tell the rules apart."""
        rng = np.random.default_rng(seed)
        params = relu_network(rng, (4, 6, 5, 3), num_hosts)
        shapes = jax.tree.map(lambda leaf: leaf[0], params)
        plan = owner_classes.whole_model(num_hosts, shapes)
        share = jnp.full(num_hosts, 1 / num_hosts)
        x = jnp.asarray(rng.normal(size=(64, 4)), jnp.float32)
        module = MLP((6, 5, 3), jax.nn.relu)

        def logits(factors):
            mixed = mix(params, plan, lambda _: by_factors(factors(share)))
            one = jax.tree.map(lambda leaf: leaf[0], mixed)
            return np.asarray(module.apply({"params": one}, x))

        of_mean = logits(mean)
        for factors in (additive(), exponential(1e-3)):
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
            (2, additive(), 3.0),
            (2, exponential(1e-3), 2.001),
            (80, exponential(1.0), 81.006276),
        ],
        ids=["additive", "exponential", "many_hosts"],
    )
    def test_hosts_that_learn_nothing_scale_the_weights(
        self, num_hosts, factors, factor
    ):
        """D-T2: 3^t, 2.001^t, 81^t, and overflow."""
        world = world_of([np.zeros((1, 2))] * num_hosts)
        algorithm = combined_rounds(TASK, for_epochs(IDLE, 1, batch_size=1), factors)
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


def descended(w, targets, num_epochs, rate=0.1):
    """Plain full-batch descent: parameters after every pass."""
    path = []
    for _ in range(num_epochs):
        w = w - rate * (w - targets.mean(0))
        path.append(w)
    return np.array(path)


class TestCompleteTraining:
    """Hosts whose held-out optimum lies on the way stop there, each by itself."""

    targets = (np.array([[4.0, 0.0]]), np.array([[0.0, 8.0], [0.0, 8.0]]))
    held = (np.array([[2.0, 0.0]]), np.array([[0.0, 8.0]]))
    stop = LocalStopping(patience=4, min_gain=1e-4, max_epochs=30, first_accuracy=-1.0)

    def reference(self, agent, stop, min_accuracy=-1.0):
        """The rule, one pass at a time."""
        path = descended(np.zeros(2), self.targets[agent], stop.max_epochs)
        best, best_loss, accepted, stale = None, np.inf, False, 0
        for epoch, w in enumerate(path, start=1):
            loss = np.square(w - self.held[agent][0]).sum() / 2
            own = np.square(w - self.targets[agent]).sum(1) / 2
            accurate = (own < 0.5).mean() > min_accuracy
            if accurate and not accepted:
                is_better = True
            elif accepted and not accurate:
                is_better = False
            else:
                is_better = epoch == 1 or loss < best_loss - stop.min_gain
            if is_better:
                best, best_loss, stale = w, loss, 0
            else:
                stale += 1
            accepted = accepted or accurate
            if accepted and stale >= stop.patience:
                break
        return best, epoch

    def trained(self, stop, agent_loop=IN_PLACE, t=0, active=(True, True)):
        local = until_converged(
            TASK, LEARNER, stop, batch_size=4, agent_loop=agent_loop
        )
        world = world_of(self.targets, valid=self.held)
        start = Variables({"w": jnp.zeros((2, 2))}, {})
        variables, _, epochs = jit(local.train)(
            jax.random.key(0),
            jnp.int32(t),
            jnp.asarray(active),
            start,
            jax.tree.map(jnp.asarray, world),
        )
        return np.asarray(variables.params["w"]), epochs.tolist()

    @pytest.mark.parametrize("agent_loop", [IN_PLACE, VMAP])
    def test_every_host_stops_by_itself_and_keeps_its_best_pass(self, agent_loop):
        w, epochs = self.trained(self.stop, agent_loop)
        expected = [self.reference(agent, self.stop) for agent in range(2)]
        close(w, [best for best, _ in expected], atol=1e-5)
        assert epochs == [passes for _, passes in expected]
        assert epochs[0] < epochs[1] == 30  # one stops early, one never does
        assert abs(w[0, 0] - 2) < 0.3  # where its held-out loss is least

    def test_first_round_goes_on_until_training_is_accurate(self):
        stop = self.stop._replace(first_accuracy=0.9)
        first, epochs = self.trained(stop)
        expected = [self.reference(agent, stop, 0.9) for agent in range(2)]
        close(first, [best for best, _ in expected], atol=1e-5)
        assert epochs == [passes for _, passes in expected]
        later, epochs_later = self.trained(stop, t=1)
        close(later[0], self.reference(0, stop)[0], atol=1e-5)
        assert epochs_later[0] < epochs[0]

    def test_who_is_not_active_does_nothing(self):
        w, epochs = self.trained(self.stop, active=(False, True))
        assert epochs[0] == 0 and epochs[1] > 0
        assert (w[0] == 0).all() and (w[1] != 0).any()

    def test_a_held_out_loss_that_is_no_number_is_never_a_gain(self):
        blown = gradient_descent(TASK, optax.sgd(1e30))
        local = until_converged(TASK, blown, self.stop, batch_size=4)
        world = world_of(self.targets, valid=self.held)
        start = Variables({"w": jnp.ones((2, 2))}, {})
        _, _, epochs = jit(local.train)(
            jax.random.key(0), jnp.int32(1), jnp.ones(2, bool), start, world
        )
        assert epochs.tolist() == [5, 5]  # the first pass and the patience


class TestStableStop:
    """The coordinator stops where the hosts' held-out loss no longer falls."""

    def run(self, factors, num_rounds=12):
        world = world_of([[[1.0, 0.0]], [[1.0, 2.0]]])
        local = for_epochs(LEARNER, 2, batch_size=1)
        algorithm = combined_rounds(TASK, local, factors, stop=GlobalStopping(3, 1e-2))
        return run(algorithm, world, num_rounds, start=starting_at([4.0, 4.0]))

    def test_mean(self):
        states, info = self.run(mean, 40)
        w = np.asarray(states.variables.params["w"])
        sent = np.asarray(info.sent[:, 0])
        rounds = int(sent.sum())
        assert 5 < rounds < 40
        assert (sent[:rounds] == 1).all() and (sent[rounds:] == 0).all()
        assert (np.asarray(info.payload) == 2 * np.asarray(info.sent)).all()
        assert (np.asarray(info.epochs)[rounds:] == 0).all()
        assert (w[rounds - 1 :] == w[-1]).all()  # everybody ends with the same model
        # which is the best combination, three rounds before the stop
        assert (w[-1] == w[rounds - 4]).all()

    def test_a_sum_that_blows_up_is_stopped_at_its_best(self):
        states, info = self.run(additive())
        w = np.asarray(states.variables.params["w"])
        assert info.sent[:, 0].sum() == 4  # the first was the best
        assert (w[-1] == w[0]).all()
        assert abs(w[2]).max() > abs(w[0]).max()


def mixed_by_hand(w, h, strength):
    """Sums of everybody else, and the others' weighted squared distances at `at`."""
    u, v = h.sum(0) - h, (h * w).sum(0) - h * w

    def penalty(at, s):
        return strength * (u[s] * at**2 - 2 * v[s] * at).sum()

    def direct(at, s):
        others = [j for j in range(len(w)) if j != s]
        return strength * sum((h[j] * (at - w[j]) ** 2).sum() for j in others)

    return u, v, penalty, direct


W = np.array([[1.0, 0.0], [3.0, 2.0], [-1.0, 4.0]])
H = np.array([[1.0, 2.0], [0.5, 4.0], [2.0, 1.0]])


def plan_of(tree, local=()):
    shapes = jax.tree.map(lambda leaf: leaf[0], tree)
    return owner_classes.whole_model(
        len(jax.tree.leaves(tree)[0]), {"params": shapes}, local
    )


def penalty(strength, w=W, h=H, others=sum_of_others, local=()):
    sent, bends = ({"w": jnp.asarray(a, jnp.float32)} for a in (w, h))
    return penalty_of_others(strength, sent, bends, plan_of(sent, local), others)


class TestFedCurvPenalty:
    """Specification F.5."""

    def test_vectors(self):
        found = penalty(0.1)
        u = np.array([[2.5, 5], [3, 3], [1.5, 6]])
        v = np.array([[-0.5, 12], [-1, 4], [2.5, 8]])
        close(found.curvature["w"], 0.2 * u)
        close(found.pull["w"], 0.2 * v)
        at = np.array([1.0, 2.0])
        gradient = 0.2 * u * at - 0.2 * v
        close(gradient, [[0.6, -0.4], [0.8, 0.4], [-0.2, 0.8]])
        values = (0.1 * (u * at**2 - 2 * v * at)).sum(1)
        close(values, [-2.45, 0.10, -1.15])
        constants = [0.1 * (H[j] * W[j] ** 2).sum() for j in range(3)]
        full = values + sum(constants) - np.array(constants)
        close(full, [1.40, 2.00, 1.00])

    @given(st.integers(2, 6), st.integers(0, 1000))
    def test_totals_are_direct_sums(self, size, seed):
        """F-T3 and F-T4, in double precision."""
        rng = np.random.default_rng(seed)
        w, h = rng.normal(size=(2, size, 3))
        h, at = np.square(h), rng.normal(size=3)
        u, v, value, direct = mixed_by_hand(w, h, 0.3)
        zero = [direct(np.zeros(3), s) for s in range(size)]
        for s in range(size):
            close(value(at, s) + zero[s], direct(at, s), atol=1e-11)
            others = np.arange(size) != s
            close(u[s], h[others].sum(0), atol=1e-12)
            close(v[s], (h * w)[others].sum(0), atol=1e-12)

    def test_server_and_neighbours_agree_on_a_complete_graph(self):
        ring = generators.ring(3)  # of three: everybody's neighbours are all others
        neighbors = penalty(0.1, others=sum_of_neighbors(ring))
        jax.tree.map(close, neighbors, penalty(0.1))
        directed = generators.ring(3, directed=True)  # n hears n - 1 alone
        alone = penalty(0.5, others=sum_of_neighbors(directed))
        close(alone.curvature["w"], np.roll(H, 1, 0))
        close(alone.pull["w"], np.roll(H * W, 1, 0))

    def test_leaves_that_stay_are_not_penalised(self):
        found = penalty(0.1, local=("params/w",))
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(found))

    @pytest.mark.parametrize(
        "strength, expected",
        [
            (0.5, [[1 / 7, 12 / 7]] * 3),
            (0.1, [[0.6, 0.8], [1.181818, 1.913043], [-0.652174, 2.545455]]),
            (2.0, [[-0.090909, 2.181818], [-0.2, 1.5], [1, 1.44]]),
        ],
    )
    def test_quadratic_losses_are_minimised_exactly(self, strength, expected):
        """F-T2: one round of the algorithm from everybody's own minimum."""
        world = world_of(W[:, None], H[:, None])
        learner = gradient_descent(TASK, optax.sgd(0.02))
        algorithm = fedcurv(
            TASK,
            learner,
            curvature=lambda key, variables, examples, size: {"w": examples["h"][0]},
            penalty_weight=strength,
            batch_size=1,
            num_clients=None,
            local_updates=epochs(2000),
            report_trained=True,
        )

        def start(state):
            w, h = jnp.asarray(W, jnp.float32), jnp.asarray(H, jnp.float32)
            return state._replace(sent={"w": w}, curvature={"w": h})

        states, _ = run(algorithm, world, 1, start=start)
        first = jax.tree.map(lambda leaf: leaf[0], states)
        close(algorithm.models(first).reported.params["w"], expected, atol=1e-5)
        mean = np.mean(expected, axis=0)
        close(first.variables.params["w"], [mean] * 3, atol=1e-5)
        close(first.curvature["w"], H)


def network_task():
    return classification(MLP((3, 2)), (2,), softmax_cross_entropy)


def network_world(sizes=(5, 3, 7), seed=0):
    rng = np.random.default_rng(seed)
    agents = [
        {
            "x": rng.normal(size=(size, 2)).astype("f4"),
            "y": rng.integers(0, 2, size).astype("i4"),
        }
        for size in sizes
    ]
    train = stacking.stack_agents(agents)
    return FederatedData(train, train, train, np.zeros(len(sizes), np.int32))


@jit
def gradient_of_one(params, x, y):
    def loss_of(params):
        batch = {"x": x[None], "y": y[None], "valid": jnp.ones(1, bool)}
        return network_task().loss(Variables(params, {}), batch, None)[0]

    return jax.grad(loss_of)(params)


class TestCurvature:
    def reference(self, variables, examples, size):
        squares = [
            jax.tree.map(np.square, gradient_of_one(variables.params, x, y))
            for x, y in zip(examples["x"][:size], examples["y"][:size], strict=True)
        ]
        return jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *squares)

    @pytest.mark.parametrize("chunk", [2, 16])
    def test_fisher_is_the_mean_square_of_single_gradients(self, chunk):
        task, world = network_task(), network_world()
        variables = task.init(jax.random.key(1))
        examples = {k: leaf[0] for k, leaf in world.train.examples.items()}
        measure = jit(curvature.fisher(task, chunk))
        key = jax.random.key(0)
        found = measure(key, variables, examples, np.int32(5))
        jax.tree.map(close, found, self.reference(variables, examples, 5))
        padded = jax.tree.map(lambda leaf: leaf.copy(), examples)
        padded["x"][4:] = np.nan  # padding contributes nothing
        found = measure(key, variables, padded, np.int32(4))
        jax.tree.map(close, found, self.reference(variables, examples, 4))
        nothing = measure(key, variables, examples, np.int32(0))
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(nothing))

    def test_hessian_is_exact_and_never_negative(self):
        task, world = network_task(), network_world()
        variables = task.init(jax.random.key(1))
        examples = {k: leaf[2] for k, leaf in world.train.examples.items()}
        batch = examples | {"valid": np.ones(7, bool)}
        flat, unflatten = jax.flatten_util.ravel_pytree(variables.params)

        def loss_of(flat):
            params = unflatten(flat)
            return task.loss(variables._replace(params=params), batch, None)[0]

        diagonal = np.diag(jit(jax.hessian(loss_of))(flat))
        assert (diagonal < 0).any()  # or clipping would not be tested
        key = jax.random.key(0)
        found = jit(curvature.hessian(task, 4))(key, variables, examples, np.int32(7))
        found = jax.flatten_util.ravel_pytree(found)[0]
        close(found, np.maximum(diagonal, 0))


ROUNDS = 3


def served(build, *args, **more):
    """A method of a server on the small networks."""
    task = network_task()
    learner = gradient_descent(task, optax.sgd(0.3, momentum=0.5))
    options = {"batch_size": 2, "num_clients": None, "local_updates": epochs(2)}
    options |= more
    return build(task, learner, *args, **options)


def params_of(algorithm):
    """Parameters of the models after every round, `[R, N, ...]`, and infos."""
    states, info = run(algorithm, network_world((5, 5, 5)), ROUNDS)
    return jax.vmap(algorithm.models)(states).reported.params, info


def without_clients(build):
    """A method without a server, which chooses nobody."""

    def built(*args, num_clients, **options):
        del num_clients
        return build(*args, **options)

    return built


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def no_curvature(key, variables, examples, size):
    del key, examples, size
    return jax.tree.map(jnp.zeros_like, variables.params)


def test_non_finite_parameters_are_counted_by_agent():
    params = {"a": jnp.asarray([[jnp.nan, 1], [1, 1]]), "b": jnp.asarray([jnp.inf, 0])}
    assert models.non_finite(params).tolist() == [2, 0]


@pytest.fixture(scope="module")
def averaged():
    return params_of(served(server_rounds))


@pytest.fixture(scope="module")
def penalised():
    fisher = curvature.fisher(network_task())
    return params_of(served(fedcurv, curvature=fisher, penalty_weight=2.0))[0]


@pytest.fixture(scope="module")
def alone():
    return params_of(served(without_clients(local_only)))[0]


class TestRelatives:
    def test_without_strength_fedcurv_is_fedavg_to_the_bit(self, averaged):
        """F-T1, and the same by a curvature of zero."""
        plain, info = params_of(
            served(fedcurv, curvature=no_curvature, penalty_weight=0.0)
        )
        assert_equal(plain, averaged[0])
        assert_equal(info, averaged[1])
        flat, info = params_of(
            served(fedcurv, curvature=no_curvature, penalty_weight=1.0)
        )
        jax.tree.map(close, flat, averaged[0])
        assert (info.payload == 2 * averaged[1].payload).all()

    def test_first_round_has_no_penalty_and_later_ones_have(self, averaged, penalised):
        distance = jax.tree.map(lambda a, b: abs(a - b), penalised, averaged[0])
        kernel = distance["layer_1"]["kernel"]  # [R, N, ...]
        assert kernel[0].max() < 1e-6
        assert kernel[1].max() > 1e-4

    def test_absent_clients_keep_what_they_sent(self):
        """H-29."""
        fisher = curvature.fisher(network_task())
        algorithm = served(fedcurv, curvature=fisher, penalty_weight=1.0, num_clients=2)
        chosen = np.array([[True, True, False], [False, True, True]])
        states, info = run(algorithm, network_world(), 2, inputs=chosen)
        bends = states.curvature["layer_1"]["kernel"]
        assert not bends[0, 2].any() and bends[1, 2].any()  # u = v = 0 at first
        for leaf in (bends, states.sent["layer_1"]["kernel"]):
            assert (leaf[1, 0] == leaf[0, 0]).all()
            assert (leaf[1, 1] != leaf[0, 1]).any()
        assert (info.sent == chosen.astype("f4")).all()

    def test_bytes(self):
        """F.2: the printed numbers of 784=200=200=10."""
        task = classification(MLP((200, 200, 10)), (784,), softmax_cross_entropy)
        learner = gradient_descent(task, optax.sgd(0.1))
        rows = [{"x": np.zeros((1, 784), "f4"), "y": np.zeros(1, "i4")}] * 2
        train = stacking.stack_agents(rows)
        world = FederatedData(train, train, train, np.zeros(2, np.int32))

        def traffic(algorithm):
            def one_round():
                state = algorithm.init(jax.random.key(0), world)
                key, t = jax.random.key(1), jnp.int32(0)
                info = algorithm.round(key, t, jnp.ones(2, bool), state, world)[1]
                return info.payload, info.delivered

            up, down = jit(one_round)()
            return 4 * float(up[0]), 4 * float(down[0])

        options = {"batch_size": 1, "num_clients": None}
        assert traffic(server_rounds(task, learner, **options)) == (796840, 796840)
        measured = fedcurv(
            task, learner, curvature=no_curvature, penalty_weight=1.0, **options
        )
        assert traffic(measured) == (1593680, 2390520)

    def test_neighbours(self, penalised):
        task = network_task()
        algorithm = served(
            without_clients(fedcurv_neighbors),
            generators.ring(3),
            curvature=curvature.fisher(task),
            penalty_weight=2.0,
        )
        found, info = params_of(algorithm)
        size = 2 * 3 + 3 + 3 * 2 + 2
        assert info.sent.tolist() == info.received.tolist() == [[2, 2, 2]] * ROUNDS
        assert info.payload.tolist() == [[2 * 2 * size] * 3] * ROUNDS
        assert info.links.arrived.sum() == 6 * ROUNDS
        # Everybody hears everybody: with equal sizes that is the server's method.
        jax.tree.map(partial(close, atol=1e-5), found, penalised)

    def test_proximal_terms_hold_clients_back(self, averaged):
        free, _ = params_of(served(fedprox, penalty_weight=0.0))
        jax.tree.map(close, free, averaged[0])
        held, info = params_of(served(fedprox, penalty_weight=3.0))
        moved = [
            abs(np.diff(tree["layer_1"]["kernel"], axis=0)).mean()
            for tree in (held, free)
        ]
        assert moved[0] < 0.7 * moved[1]
        assert_equal(info.payload, averaged[1].payload)

    def test_proximal_gradient(self):
        anchor = {"w": jnp.asarray(W, jnp.float32)}
        extra = StepContext(penalty=proximal(0.5, anchor))
        one = jax.tree.map(lambda leaf: leaf[1], extra)
        batch = {
            "c": jnp.asarray([[1.0, 1.0]]),
            "h": jnp.ones((1, 2)),
            "valid": jnp.ones(1, bool),
        }
        w = jnp.asarray([5.0, 0.0])
        variables, _, loss = jax.jit(LEARNER.step)(
            jax.random.key(0),
            Variables({"w": w}, {}),
            LEARNER.init(Variables({"w": w}, {})),
            batch,
            one,
        )
        gradient = np.array([5.0 - 1, 0 - 1]) + 0.5 * (np.array([5.0, 0]) - W[1])
        close(variables.params["w"], np.array([5.0, 0]) - 0.1 * gradient)
        close(loss, (16 + 1) / 2)  # the task's own

    def test_ditto_without_strength_is_local_training(self, averaged, alone):
        algorithm = served(ditto, penalty_weight=0.0)
        states, info = run(algorithm, network_world((5, 5, 5)), ROUNDS)
        jax.tree.map(close, states.variables.params, alone)
        jax.tree.map(close, states.shared.variables.params, averaged[0])
        assert_equal(info.payload, averaged[1].payload)

    def test_ditto_draws_own_models_to_the_servers(self, alone):
        drawn, _ = params_of(served(ditto, penalty_weight=3.0))
        kernels = [tree["layer_1"]["kernel"][-1] for tree in (drawn, alone)]
        spread = [np.ptp(kernel, axis=0).max() for kernel in kernels]
        assert spread[0] < spread[1]

    def test_fedper_shares_the_trunk_only(self, alone):
        params, info = params_of(served(fedper, personal=("params/layer_2/.*",)))
        assert np.ptp(params["layer_1"]["kernel"], axis=1).max() < 1e-6
        assert np.ptp(params["layer_2"]["kernel"], axis=1).max() > 1e-3
        assert (info.payload == 9).all()
        everything = params_of(served(fedper, personal=("params/.*",)))[0]
        jax.tree.map(close, everything, alone)


METHODS = {
    "combination": lambda **options: combination_method(**options),
    "fedcurv": lambda **options: served(
        fedcurv,
        curvature=curvature.fisher(network_task(), 2),
        penalty_weight=0.5,
        **options,
    ),
}


def combination_method(agent_loop):
    task = network_task()
    learner = gradient_descent(task, optax.sgd(0.3))
    stop = LocalStopping(patience=2, max_epochs=4, first_accuracy=0.6)
    local = until_converged(task, learner, stop, batch_size=2, agent_loop=agent_loop)
    return combined_rounds(
        task, local, exponential(), stop=GlobalStopping(1), agent_loop=agent_loop
    )


class TestContract:
    @pytest.mark.parametrize("method", marked(METHODS, "combination"))
    def test_seeds_side_by_side_and_agents_in_place_give_the_same(self, method):
        world = network_world()
        keys = jax.random.split(jax.random.key(3), 2)
        results = []
        for agent_loop in (VMAP, IN_PLACE):
            algorithm = METHODS[method](agent_loop=agent_loop)
            inputs = algorithm.plan(np.random.default_rng(0), world, 2)

            def two_rounds(key, algorithm=algorithm, inputs=inputs):
                def one(state, scanned):
                    return algorithm.round(key, *scanned, state, world)

                numbers = jnp.arange(2, dtype=jnp.int32)
                state = algorithm.init(key, world)
                return jax.lax.scan(one, state, (numbers, inputs))

            if agent_loop == VMAP:
                results.append(jit(jax.vmap(two_rounds))(keys))
            else:
                alone = list(map(jit(two_rounds), keys))
                results.append(jax.tree.map(lambda *s: np.stack(s), *alone))
        for one, other in zip(*map(jax.tree.leaves, results), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("method", marked(METHODS, "fedcurv"))
    def test_traces_once(self, method):
        algorithm = METHODS[method](agent_loop=IN_PLACE)
        traces = []

        def counted(*args):
            traces.append(None)
            return algorithm.round(*args)

        counting = algorithm._replace(round=counted)
        evaluate = on_test_sets(network_task())
        for seed in range(2):
            snapshots = simulate(
                jax.random.key(seed),
                counting,
                network_world(),
                2,
                eval_every=1,
                evaluate=evaluate,
            )
            assert [s.metrics["loss"].shape for s in snapshots] == [(3,), (3,)]
        assert len(traces) == 1


FISHER = curvature.fisher(TASK)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: curvature.fisher(TASK, 0), "chunk of 1 or more, got 0"),
        (lambda: curvature.hessian(TASK, -1), "chunk of 1 or more, got -1"),
        (
            lambda: until_converged(
                TASK, LEARNER, LocalStopping(patience=0), batch_size=1
            ),
            "patience=0 and max_epochs=500",
        ),
        (lambda: for_epochs(LEARNER, 0, batch_size=1), "got num_epochs=0"),
        (
            lambda: combination(TASK, LEARNER, batch_size=1, local_updates=steps(3)),
            r"got 3 local steps: use epochs\(e\)",
        ),
        (
            lambda: combined_rounds(TASK, None, None, stop=GlobalStopping()),
            "patience=5 and no factors",
        ),
        (
            lambda: combined_rounds(TASK, None, mean, stop=GlobalStopping(0)),
            "patience=0 and given factors",
        ),
        (
            lambda: combined_rounds(
                TASK, until_converged(TASK, LEARNER, batch_size=1), mean
            ).plan(None, world_of([[[0.0, 0]]] * 2, valid=[[], [[0.0, 0]]]), 1),
            r"got none of agents \[0\]: hold some out",
        ),
        (
            lambda: served(fedcurv, curvature=FISHER, penalty_weight=-1.0),
            "penalty_weight of 0 or more, got -1.0",
        ),
        (
            lambda: served(
                fedcurv, curvature=FISHER, penalty_weight=1.0, num_clients=0
            ),
            "got num_clients=0",
        ),
        (
            lambda: fedcurv_neighbors(
                TASK,
                LEARNER,
                generators.ring(3),
                curvature=FISHER,
                penalty_weight=1.0,
                batch_size=1,
                rewire_every=2,
            ),
            "rewire_every=2 and one graph",
        ),
        (lambda: served(fedprox, penalty_weight=math.nan), "0 or more, got nan"),
        (lambda: served(ditto, penalty_weight=math.inf), "0 or more, got inf"),
        (
            lambda: served(fedper, personal=("params/layer_9/.*",)),
            "params/layer_2/kernel, got 'params/layer_9/.*', which matches none",
        ),
    ],
)
def test_refuses(build, message):
    with pytest.raises(InputError, match=message):
        build()
