"""Neighbours of FedCurv, designs, balance, geometries: against formulas and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_federated import TASK, H, W, close, jit, run, world_of
from test_virtual import network_world

from experiments.engine import design
from p2pjax.algorithms._complete_training import complete_training
from p2pjax.algorithms._fedcurv import fedcurv
from p2pjax.algorithms._mean_regularized import mean_regularized
from p2pjax.datasets.loaders import points
from p2pjax.evaluation.classes import with_balance
from p2pjax.exchange import channel
from p2pjax.nn.mlp import MLP
from p2pjax.nn.variational import GATES, Columns, gates_between
from p2pjax.tasks import bayesian
from p2pjax.tasks._classification import classification
from p2pjax.training.agent_loop import VMAP
from p2pjax.training.learner import gradient_descent
from p2pjax.training.local_updates import epochs
from p2pjax.types import InputError

LEARNER = gradient_descent(TASK, optax.sgd(0.02))
EARLIER = np.array([[0.0, 1.0], [2.0, 2.0], [1.0, -1.0]])  # models sent before


def held(strength, **options):
    return fedcurv(
        TASK,
        LEARNER,
        curvature=lambda key, variables, examples, size: {"w": examples["h"][0]},
        penalty_weight=strength,
        own_curvature=True,
        batch_size=1,
        local_updates=epochs(1000),
        report_trained=True,
        agent_loop=VMAP,
        **options,
    )


class TestOwnCurvature:
    """Elastic weight consolidation: each client is held to its own last model."""

    def test_quadratic_losses_are_minimised_exactly(self):
        def start(state):
            w, h = jnp.asarray(EARLIER, jnp.float32), jnp.asarray(H, jnp.float32)
            return state._replace(sent={"w": w}, curvature={"w": h})

        algorithm = held(0.25)
        states, info = run(algorithm, world_of(W[:, None], H[:, None]), 1, start=start)
        first = jax.tree.map(lambda leaf: leaf[0], states)
        # H (w - W) + 2 * 0.25 * H (w - EARLIER) = 0
        expected = (W + 0.5 * EARLIER) / 1.5
        close(algorithm.models(first).reported.params["w"], expected, atol=1e-5)
        close(first.variables.params["w"], [expected.mean(0)] * 3, atol=1e-5)
        # Curvature stays where it was measured.
        assert (info.payload == 2).all() and (info.delivered == 2).all()
        assert "curvatures" not in algorithm.round_is

    def test_a_client_knows_its_own_model_though_its_message_is_lost(self):
        algorithm = held(0.25, channel=channel.drop(0.5))
        states, info = run(algorithm, world_of(W[:, None], H[:, None]), 8)
        trained = np.asarray(info.received) > 0  # [R, N] whom the server reached
        sent = np.asarray(states.sent["w"])
        known = np.asarray(states.curvature["w"]).any(-1)
        np.testing.assert_array_equal(known, np.maximum.accumulate(trained))
        assert 0 < trained.mean() < 1
        kept = (sent[1:] == sent[:-1]).all(-1)
        assert kept[~trained[1:]].all()


class TestMeanRegularized:
    def test_quadratic_losses_are_minimised_exactly(self):
        algorithm = mean_regularized(
            TASK,
            LEARNER,
            batch_size=1,
            penalty_weight=0.5,
            local_updates=epochs(1000),
            agent_loop=VMAP,
        )

        def start(state):
            variables, opt_state = state
            params = {"w": jnp.asarray(EARLIER, jnp.float32)}
            return variables._replace(params=params), opt_state

        states, info = run(algorithm, world_of(W[:, None], H[:, None]), 2, start=start)
        own = np.asarray(states[0].params["w"])  # [R, N, 2]
        expected = (H * W + 0.5 * EARLIER.mean(0)) / (H + 0.5)
        close(own[0], expected, atol=1e-4)
        close(own[1], (H * W + 0.5 * expected.mean(0)) / (H + 0.5), atol=1e-4)
        assert (info.payload == 2).all() and (info.delivered == 2).all()

    def test_refuses_a_negative_penalty(self):
        with pytest.raises(InputError, match="penalty_weight of 0 or more, got -1"):
            mean_regularized(
                TASK,
                LEARNER,
                batch_size=1,
                penalty_weight=-1.0,
                local_updates=epochs(1),
                agent_loop=VMAP,
            )


@pytest.mark.parametrize("shared_init", [True, False])
def test_hosts_start_from_one_model_or_from_their_own(shared_init):
    task = classification(MLP((3, 3)), (5,))
    algorithm = complete_training(
        task, optax.sgd(0.1), batch_size=2, shared_init=shared_init
    )
    state = jit(algorithm.init)(jax.random.key(0), network_world())
    kernel = np.asarray(state.variables.params["layer_1"]["kernel"])
    assert (kernel[0] == kernel[1]).all() == shared_init


@pytest.mark.parametrize("geometry", points.GEOMETRIES)
def test_geometries_are_equally_hard(geometry):
    """The nearest centre is the best guess: right for three quarters everywhere."""
    rng = np.random.default_rng(0)
    found = points.points(rng, np.full(4, 5000), geometry)
    centers = points.GEOMETRIES[geometry].centers
    guess = np.square(found.x[:, None] - centers[None]).sum(-1).argmin(1)
    assert np.mean(guess == found.y) == pytest.approx(0.7512, abs=0.01)
    world = points.world(np.random.default_rng(0), 8, 8, geometry)
    held_by = [sorted(set(own)) for own in world.train.examples["y"].tolist()]
    assert held_by == [sorted(own) for own in points.GEOMETRIES[geometry].held]
    assert set(np.concatenate(held_by)) == {0, 1, 2, 3}


def test_no_such_geometry():
    with pytest.raises(InputError, match="among square, .* line, got ring"):
        points.world(np.random.default_rng(0), 8, 8, "ring")


def test_balance_is_over_the_classes_that_an_agent_has():
    accuracy = np.array([[1.0, 0.5, np.nan], [0.2, 0.4, 0.9]], np.float32)
    found = with_balance(lambda models, data: {"class_accuracy": accuracy})(None, None)
    close(found["balanced_accuracy"], [0.75, 0.5])
    close(found["worst_class_accuracy"], [0.5, 0.2])


def test_combinations_of_a_design():
    factors = {"rate": (1, 2), "size": (3,), "order": ("a", "b")}
    found = design.combinations(factors)
    assert [setting for setting, _ in found] == [
        {"rate": rate, "order": order} for rate in (1, 2) for order in "ab"
    ]
    assert found[-1][1] == {"rate": 2, "size": 3, "order": "b"}
    one = design.combinations(factors, ["size"])
    assert one == [({}, {"rate": 1, "size": 3, "order": "a"})]


class TestStarts:
    def test_gates(self):
        def gate_of(columns):
            variables = columns.init(jax.random.key(0), jnp.zeros((1, 5)))
            return np.asarray(variables["params"]["client"]["layer_1"]["gate"])

        usual = gate_of(Columns((40, 3)))
        assert (usual >= 0).all() and (usual < GATES[1]).all()
        high = gate_of(Columns((40, 3), gates=(2.0, 3.0)))
        assert (high >= 2).all() and (high < 3).all()
        close(high - 2, 10 * usual, atol=1e-5)
        for gates in ((1.0, 0.0), (0.0, float("inf")), (float("nan"), 1.0)):
            with pytest.raises(InputError, match="gates between two finite numbers"):
                gates_between(gates)

    def test_deviations(self):
        made = bayesian.variational_classification(
            Columns((4, 3)), (5,), num_samples=1, initial_stddev=0.5
        )
        stddev = made.init(jax.random.key(0)).params.stddev
        assert all((leaf == 0.5).all() for leaf in jax.tree.leaves(stddev))
        for wrong in (0.0, float("inf"), float("nan")):
            with pytest.raises(InputError, match="a positive initial_stddev"):
                bayesian.variational_classification(
                    Columns((4, 3)), (5,), num_samples=1, initial_stddev=wrong
                )
