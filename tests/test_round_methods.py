"""Methods of rounds: published iterates, plain loops in numpy, identities, refusals."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_protocols import run, started, world_of

import p2pjax as pj
from p2pjax.engines.stepwise import GossipInputs
from p2pjax.graphs import mixing_matrices
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import VMAP
from p2pjax.types import Peers, Ratio, Variables

VECTORS = json.loads((Path(__file__).parent / "vectors/round_methods.json").read_text())
PROBLEM = VECTORS["problem"]
A, B = np.array(PROBLEM["A"], float), np.array(PROBLEM["b"], float)
START = np.array(PROBLEM["x0"], float)
DISTINCT = np.array(PROBLEM["x0_distinct"], float)
GRAPH = pj.graphs.as_graph(PROBLEM["edges"], num_agents=5)
W = np.array(PROBLEM["W_metropolis"])
close = np.testing.assert_allclose


def quadratic():
    """Half the squared length of `A x - b`, with one A and b in each example."""

    def loss_fn(variables, batch, key):
        del key
        valid = batch["valid"].astype(batch["b"].dtype)
        gap = jnp.einsum("eij,j->ei", batch["A"], variables.params["x"]) - batch["b"]
        losses = jnp.square(gap).sum(1) / 2
        return (losses * valid).sum() / jnp.maximum(valid.sum(), 1), variables.stats

    def evaluate_fn(variables, batch):
        return {"loss": Ratio(loss_fn(variables, batch, None)[0], jnp.ones(()))}

    def init_fn(key):
        del key
        return Variables({"x": jnp.asarray(START[0])}, {})

    return Task(init_fn, loss_fn, evaluate_fn)


QUADRATIC = quadratic()
OPTIONS = {"batch_size": 1, "agent_loop": VMAP}


def gradients(x):
    return np.einsum("nji,nj->ni", A, np.einsum("nij,nj->ni", A, x) - B)


@pytest.fixture
def x64():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def iterates(make, num_rounds=10, start=None, inputs=None):
    """`[R, N, 3]` of a method made of (task, optimizer, graph), and infos."""
    method = make()
    if start is not None:
        method = started(method, Variables({"x": jnp.asarray(start)}, {}))
    world = world_of([{"A": a[None], "b": b[None]} for a, b in zip(A, B, strict=True)])
    states, info = run(method, world, num_rounds, inputs=inputs)
    return states, np.asarray(states.variables.params["x"]), info


def made(name, rate=0.02, graph=GRAPH, **options):
    def make():
        options_ = {**OPTIONS, "local_updates": pj.epochs(3), **options}
        return getattr(pj, name)(QUADRATIC, optax.sgd(rate), graph, **options_)

    return make


ON_GRAPHS = {
    "dfedavgm": made("dfedavgm"),
    "dfedsam": made("dfedsam", rho=0.1),
    "dfedsam_mgs_q4": made("dfedsam", rho=0.1, num_exchanges=4),
    "k_gt": made("k_gt", communication_step=0.8),
}


@pytest.mark.parametrize("name", ON_GRAPHS)
class TestVectors:
    def test_equal_starts(self, name, x64):
        expected = VECTORS["methods"][name]
        _, x, info = iterates(ON_GRAPHS[name])
        assert x.dtype == np.float64
        for number, wanted in expected["x"].items():
            close(x[int(number) - 1], wanted, rtol=0, atol=1e-9)
        messages = 12 * expected["exchanges_per_step"]
        assert info.sent.sum(1).tolist() == [messages] * 10
        sizes = 3 * messages * expected["models_per_message"]
        assert info.payload.sum(1).tolist() == [sizes] * 10

    @pytest.mark.slow
    def test_distinct_starts(self, name, x64):
        expected = VECTORS["methods"][name]
        _, x, _ = iterates(ON_GRAPHS[name], start=DISTINCT)
        for number, wanted in expected["x_from_distinct"].items():
            close(x[int(number) - 1], wanted, rtol=0, atol=1e-9)

    @pytest.mark.slow
    def test_limit(self, name, x64):
        """Tracking is exact; the others end at a bias that is known."""
        expected = VECTORS["methods"][name]
        _, x, _ = iterates(ON_GRAPHS[name], 2000)
        error = x[-1] - np.array(PROBLEM["x_star"])
        close(np.abs(error).max(), expected["limit_max_error"], rtol=0, atol=1e-8)
        mean = np.abs(error.mean(0)).max()
        close(mean, expected["limit_error_of_mean"], rtol=0, atol=1e-8)


def test_corrections_of_k_gt(x64):
    """They are the published ones, and sum to zero in every round."""
    states, _, _ = iterates(ON_GRAPHS["k_gt"])
    corrections = np.asarray(states.opt_state.correction["x"])
    wanted = VECTORS["methods"]["k_gt"]["memory_after_5"]["c"]
    close(corrections[4], wanted, rtol=0, atol=1e-9)
    close(corrections.sum(1), np.zeros((10, 3)), rtol=0, atol=1e-12)


def given_graphs(lists):
    """Inputs of rounds with these senders, `[R, N]` lists, as a method's plan has."""
    width = max(len(one) for of_round in lists for one in of_round)
    own = np.arange(5)
    ids = np.tile(own[:, None], (len(lists), 1, 1 + width))
    weight = np.zeros(ids.shape)
    for number, of_round in enumerate(lists):
        for agent, senders in enumerate(of_round):
            ids[number, agent, 1 : 1 + len(senders)] = senders
            weight[number, agent, : 1 + len(senders)] = 1 / (1 + len(senders))
    peers = Peers(jnp.asarray(ids, jnp.int32)[:, None], jnp.asarray(weight)[:, None])
    rounds = np.arange(len(lists), dtype=np.int32)
    return GossipInputs(rounds, np.ones_like(rounds), peers)


@pytest.mark.parametrize("variant", ["oracle", "local"])
def test_epidemic_vectors(variant, x64):
    expected = VECTORS["epidemic"]
    inputs = given_graphs(expected[f"{variant}_in_neighbours"])
    make = made(
        "epidemic",
        expected["eta"],
        None,
        num_peers=2,
        variant=variant,
        local_updates=pj.steps(1),
    )
    _, x, info = iterates(make, 3, inputs=inputs)
    close(x, expected[f"{variant}_x"], rtol=0, atol=1e-9)
    assert info.sent.sum(1).tolist() == [10, 10, 10]


def test_merge_vector(x64):
    """After 100 steps of D-PSGD the mean is far better than the agents."""
    expected = VECTORS["single_merge"]

    def make():
        method = pj.dpsgd(
            QUADRATIC,
            optax.sgd(0.05),
            GRAPH,
            mixing_weights=mixing_matrices.metropolis_hastings,
            **OPTIONS,
        )
        return pj.global_merge(method, QUADRATIC, rounds=(100,))

    _, x, info = iterates(make, 101)
    close(x[99], np.tile(expected["merged"], (5, 1)), rtol=0, atol=1e-9)
    assert x[98].std(0).min() > 0.01 and x[100].std(0).min() > 1e-4
    # A ring all-reduce: 8 messages of a fifth of a model, beside those of D-PSGD.
    assert (info.sent[99] - info.sent[98]).tolist() == [8] * 5
    close(info.payload[99] - info.payload[98], np.full(5, 8 / 5 * 3), rtol=1e-6)
    # The scores that are told before it takes place.
    method = make()
    models = Variables({"x": jnp.asarray(expected["x_dsgd_atc_100"])}, {})
    scores = method.evaluate(pj.Models(models), quadratic_world())
    best = mean_f(np.array(PROBLEM["x_star"]))
    gap = np.asarray(scores["merged_loss"]) - best
    close(gap, np.full(5, expected["f_gap_of_merged"]), rtol=0, atol=1e-9)
    gaps = np.asarray(scores["pooled_loss"]) - best
    close(gaps.max(), expected["largest_f_gap_of_an_agent"], rtol=0, atol=1e-9)
    close(gaps.mean(), expected["mean_f_gap_of_agents"], rtol=0, atol=1e-9)


def mean_f(x):
    return np.mean([np.square(a @ x - b).sum() / 2 for a, b in zip(A, B, strict=True)])


class TestIdentities:
    def test_without_momentum_dfedavgm_is_dpsgd(self, x64):
        weights = {"mixing_weights": mixing_matrices.metropolis_hastings}
        _, x, _ = iterates(made("dfedavgm", momentum=0.0), 4)
        _, wanted, _ = iterates(made("dpsgd", **weights), 4)
        close(x, wanted, rtol=0, atol=1e-14)

    def test_of_radius_zero_dfedsam_is_dpsgd(self, x64):
        weights = {"mixing_weights": mixing_matrices.metropolis_hastings}
        _, x, info = iterates(made("dfedsam", rho=0.0), 4)
        _, wanted, plain = iterates(made("dpsgd", **weights), 4)
        close(x, wanted, rtol=0, atol=1e-14)
        # Two gradients of each example, one step.
        close(info.examples, 2 * plain.examples)
        close(info.steps, plain.steps)

    def test_exchanges_are_powers_of_the_matrix(self, x64):
        """Without a step: four exchanges of one round are those of four rounds."""
        make = made("dfedsam", 0.0, num_exchanges=4, local_updates=pj.epochs(1))
        _, x, _ = iterates(make, 2, start=DISTINCT)
        close(x[0], np.linalg.matrix_power(W, 4) @ DISTINCT, rtol=0, atol=1e-12)
        close(x[1], np.linalg.matrix_power(W, 8) @ DISTINCT, rtol=0, atol=1e-12)

    def test_one_step_of_k_gt_is_gradient_tracking(self, x64):
        """With K = 1 and c = y - g: the semi-ATC form."""
        make = made("k_gt", 0.05, local_updates=pj.epochs(1))
        _, x, _ = iterates(make, 6)
        now, correction = START, np.zeros_like(START)
        for number in range(6):
            y = gradients(now) + correction  # the tracker, which W y replaces
            now, correction = W @ (now - 0.05 * y), correction - y + W @ y
            close(x[number], now, rtol=0, atol=1e-12)

    def test_k_gt_where_data_are_equal_is_local_sgd(self, x64):
        world = world_of([{"A": A[:1], "b": B[:1]}] * 5)
        states, _ = run(made("k_gt")(), world, 3)
        x = START[0]
        for number in range(3):
            for _ in range(3):
                x = x - 0.02 * A[0].T @ (A[0] @ x - B[0])
            found = states.variables.params["x"][number]
            close(found, np.tile(x, (5, 1)), rtol=0, atol=1e-12)
        close(states.opt_state.correction["x"], np.zeros((3, 5, 3)), atol=1e-14)

    def test_steps_and_epochs_are_the_same(self, x64):
        """Three examples of each agent: an exchange after three steps is per epoch."""
        world = quadratic_world(3)
        for name in ("dfedavgm", "k_gt"):
            by_epochs = made(name, local_updates=pj.epochs(1))()
            by_steps = made(name, local_updates=pj.steps(3))()
            one, other = (run(method, world, 3)[0] for method in (by_epochs, by_steps))
            close(one.variables.params["x"], other.variables.params["x"], atol=1e-12)

    @pytest.mark.parametrize("rate", [0.01, 0.05])
    def test_corrections_do_not_depend_on_the_rate_that_follows(self, rate, x64):
        """A schedule goes on over rounds, and corrections are in units of gradients."""
        schedule = optax.piecewise_constant_schedule(0.02, {6: rate / 0.02})
        options = {**OPTIONS, "local_updates": pj.epochs(3)}

        def make():
            return pj.k_gt(QUADRATIC, optax.sgd(schedule), GRAPH, **options)

        _, x, _ = iterates(make, 5)
        now, correction = START, np.zeros_like(START)
        for number in range(5):
            y, total = now, 0
            for _ in range(3):
                g = gradients(y) + correction
                y, total = y - (0.02 if number < 2 else rate) * g, total + g
            now, z = W @ y, total / 3
            correction = correction - z + W @ z
            close(x[number], now, rtol=0, atol=1e-12)


def quadratic_world(times=1):
    """With so many examples of each agent, all different."""
    scale = 1 + 0.1 * np.arange(times)
    return world_of(
        [
            {"A": scale[:, None, None] * a, "b": np.tile(b, (times, 1))}
            for a, b in zip(A, B, strict=True)
        ]
    )
