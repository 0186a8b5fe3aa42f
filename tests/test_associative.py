"""The associative network, its rule and its vectors, against plain numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pjax.datasets.loaders import binary_vectors
from p2pjax.datasets.loaders.binary_vectors import Patterns
from p2pjax.engines.partial_rounds import partial_rounds
from p2pjax.evaluation.models import disagreement
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.exchange import owner_classes
from p2pjax.nn.associative import forward, wiring
from p2pjax.partial import averaging
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.partial.sharing import compile_scheme
from p2pjax.simulation._simulate import simulate
from p2pjax.tasks._associative import associative
from p2pjax.training import samplers
from p2pjax.training.agent_loop import IN_PLACE, VMAP
from p2pjax.training.associative import associative_rule
from p2pjax.training.learner import StepContext
from p2pjax.types import LOCAL, InputError, Variables

THRESHOLD = 0.5

# The worked example of the specification; rows are targets, columns sources.
TO_HIDDEN = np.array(
    [
        [0.6, 0.4, -0.2, 0, 0.1, -0.5],
        [-0.3, 0.2, 0.5, 0.1, 0, 0.4],
        [0.1, -0.6, 0.2, 0.3, 0.2, 0.1],
    ]
)
TO_VISIBLE = np.array(
    [
        [0.7, 0, 0.2],
        [0.3, 0.6, -0.1],
        [-0.4, 0.8, 0.1],
        [0.2, -0.2, 0.5],
        [0, 0.1, 0.4],
        [0.6, 0.2, -0.3],
    ]
)
X = np.array([1, 1, 0, 0, 1, 0], np.uint8)
PART_OF_X = np.array([1, 1, 0, 0, 0, 0], np.uint8)


def as_params(to_hidden, to_visible):
    return {
        "to_hidden": {"kernel": jnp.asarray(to_hidden.T, jnp.float32)},
        "to_visible": {"kernel": jnp.asarray(to_visible.T, jnp.float32)},
    }


def as_batch(x, y=None, valid=None):
    valid = np.ones(len(x), bool) if valid is None else valid
    batch = {"x": jnp.asarray(x), "valid": jnp.asarray(valid)}
    return batch if y is None else {**batch, "y": jnp.asarray(y)}


def learn(params, x, rate=0.1, valid=None, extra=StepContext()):
    learner = associative_rule(rate, THRESHOLD)
    variables = Variables(params, {})
    variables, opt_state, loss = jax.jit(learner.step)(
        jax.random.key(0), variables, learner.init(variables), as_batch(x, None, valid),
        extra,
    )  # fmt: skip
    assert opt_state == ()
    return variables.params, float(loss)


def reference_recall(to_hidden, to_visible, x):
    hidden = [sum(w for w, v in zip(row, x, strict=True) if v) for row in to_hidden]
    hidden = [total >= THRESHOLD for total in hidden]
    output = [
        sum(w for w, h in zip(row, hidden, strict=True) if h) >= THRESHOLD
        for row in to_visible
    ]
    return hidden, np.array(output)


def reference_learn(to_hidden, to_visible, vectors, rate):
    """Link by link, as the paper's pseudo-code."""
    wrong = []
    for x in vectors:
        hidden, output = reference_recall(to_hidden, to_visible, x)
        wrong.append((output != (x > 0)).sum())
        to_hidden, to_visible = to_hidden.copy(), to_visible.copy()
        for links, source, target in (
            (to_hidden, x, hidden),
            (to_visible, hidden, x),
        ):
            for i, j in np.ndindex(*links.shape):
                if source[j] and target[i]:
                    links[i, j] += rate * (1 - links[i, j]) / 2
                elif source[j]:
                    links[i, j] -= rate * (1 + links[i, j]) / 2
    return to_hidden, to_visible, np.mean(wrong)


def reference_success(expected, actual):
    both = np.logical_and(expected, actual).sum()
    return both >= np.logical_xor(expected, actual).sum()


def random_links(rng, num_visible, num_hidden):
    return (
        rng.uniform(-1, 1, (num_hidden, num_visible)),
        rng.uniform(-1, 1, (num_visible, num_hidden)),
    )


def assert_links_close(params, to_hidden, to_visible):
    close = {"rtol": 1e-5, "atol": 2e-6}
    np.testing.assert_allclose(params["to_hidden"]["kernel"].T, to_hidden, **close)
    np.testing.assert_allclose(params["to_visible"]["kernel"].T, to_visible, **close)


def test_worked_example_one_step():
    params, loss = learn(as_params(TO_HIDDEN, TO_VISIBLE), X[None])
    after = TO_VISIBLE.copy()
    after[:, 0] = [0.715, 0.335, -0.43, 0.14, 0.05, 0.52]
    to_hidden = np.array(
        [
            [0.62, 0.43, -0.2, 0, 0.145, -0.5],
            [-0.335, 0.14, 0.5, 0.1, -0.05, 0.4],
            [0.045, -0.62, 0.2, 0.3, 0.14, 0.1],
        ]
    )
    assert_links_close(params, to_hidden, after)
    assert loss == 3  # the first hidden cell alone recalls 0 and 5 instead of 0, 1, 4
    sums = PART_OF_X @ to_hidden.T
    np.testing.assert_allclose(sums, [1.05, -0.195, -0.575])  # the first one fires
    recalled = forward(params, PART_OF_X, THRESHOLD)
    np.testing.assert_array_equal(recalled, [1, 0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    ("num_steps", "recalled", "success", "wrong"),
    [
        (1, [1, 0, 0, 0, 0, 1], 0, 3),
        (8, [1, 1, 0, 0, 0, 0], 1, 1),
        (14, [1, 1, 0, 0, 1, 0], 1, 0),
    ],
)
def test_worked_example_many_steps(num_steps, recalled, success, wrong):
    params, _ = learn(as_params(TO_HIDDEN, TO_VISIBLE), np.tile(X, (num_steps, 1)))
    actual = forward(params, PART_OF_X[None], THRESHOLD)
    np.testing.assert_array_equal(actual, [recalled])
    task = associative(6, 3, THRESHOLD)
    sums = task.evaluate(Variables(params, {}), as_batch(PART_OF_X[None], X[None]))
    assert (float(sums["accuracy"].total), float(sums["loss"].total)) == (
        success,
        wrong,
    )
    if num_steps == 14:
        np.testing.assert_allclose(
            params["to_visible"]["kernel"][0],
            [0.853698, 0.658628, -0.707395, -0.41479, 0.512325, -0.21972],
            atol=1e-6,
        )


def test_a_cell_fires_at_the_threshold():
    to_hidden, to_visible = np.full((1, 2), 0.25), np.array([[0.5], [0.4999]])
    params = as_params(to_hidden, to_visible)
    recalled = forward(params, np.array([1, 1], np.uint8), 0.5)
    np.testing.assert_array_equal(recalled, [True, False])
    assert not forward(params, np.array([1, 0], np.uint8), 0.5).any()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, bool])
def test_a_batch_is_learned_vector_by_vector(dtype):
    rng = np.random.default_rng(0)
    links = random_links(rng, 9, 14)
    x = rng.integers(0, 2, (7, 9)).astype(dtype)
    params, loss = learn(as_params(*links), x, rate=0.3)
    *expected, wrong = reference_learn(*links, x, 0.3)
    assert_links_close(params, *expected)
    assert loss == pytest.approx(wrong)
    assert wrong > 0
    reversed_params, _ = learn(as_params(*links), x[::-1], rate=0.3)
    kernels = params["to_hidden"]["kernel"], reversed_params["to_hidden"]["kernel"]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3  # the order matters


def test_invalid_vectors_are_skipped_and_rates_multiply():
    rng = np.random.default_rng(1)
    params = as_params(*random_links(rng, 9, 14))
    x = rng.integers(0, 2, (5, 9)).astype(np.uint8)
    valid = np.array([True, False, True, True, False])
    expected = learn(params, x[valid])
    actual = learn(params, x, valid=valid)
    halved = learn(params, x[valid], rate=0.2, extra=StepContext(jnp.float32(0.5)))
    for other in (actual, halved):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), expected, other
        )
    unchanged, loss = learn(params, x, valid=np.zeros(5, bool))
    jax.tree.map(np.testing.assert_array_equal, unchanged, params)
    assert loss == 0


jit_learn = jax.jit(
    lambda params, x, rate: (
        associative_rule(2.0, THRESHOLD)
        .step(
            jax.random.key(0),
            Variables(params, {}),
            (),
            {"x": x, "valid": jnp.ones(x.shape[0], bool)},
            StepContext(rate),
        )[0]
        .params
    )
)


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.floats(0, 1, width=32),
    st.sampled_from(["inside", "corners"]),
)
def test_weights_stay_in_their_interval(seed, share_of_two, where):
    """Rates 0 .. 2, from anywhere in [-1, 1]; the rate goes in as the agent's own."""
    rng = np.random.default_rng(seed)
    links = random_links(rng, 5, 6)
    if where == "corners":
        links = tuple(np.sign(link) for link in links)
    x = rng.integers(0, 2, (20, 5)).astype(np.uint8)
    params = jit_learn(as_params(*links), x, jnp.float32(share_of_two))
    for leaf in jax.tree.leaves(params):
        assert np.abs(leaf).max() <= 1


def test_task_starts_uniform_and_counts_valid_examples_only():
    task = associative(20, 50, THRESHOLD)
    params, stats = task.init(jax.random.key(0))
    assert params["to_hidden"]["kernel"].shape == (20, 50)
    assert params["to_visible"]["kernel"].shape == (50, 20)
    assert stats == {}
    for leaf in jax.tree.leaves(params):
        quartiles = np.quantile(leaf, [0, 0.25, 0.5, 0.75, 1])
        np.testing.assert_allclose(quartiles, [-1, -0.5, 0, 0.5, 1], atol=0.1)
    first, second = (np.asarray(leaf).ravel() for leaf in jax.tree.leaves(params))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.2
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (8, 20)).astype(np.uint8)
    actual = np.asarray(forward(params, x, THRESHOLD))
    y = actual ^ (rng.random((8, 20)) < np.linspace(0, 0.6, 8)[:, None])
    valid = np.arange(8) % 3 != 1
    successes = [reference_success(*pair) for pair in zip(y, actual, strict=True)]
    assert 0 < sum(successes) < 8
    batch = as_batch(x, y.astype(np.uint8), valid)
    sums = task.evaluate(Variables(params, {}), batch)
    assert float(sums["accuracy"].total) == np.asarray(successes)[valid].sum()
    assert float(sums["loss"].total) == (y ^ actual)[valid].sum()
    assert float(sums["accuracy"].weight) == float(sums["loss"].weight) == valid.sum()
    loss, _ = task.loss(Variables(params, {}), batch, jax.random.key(0))
    assert float(loss) == pytest.approx((y ^ actual)[valid].sum(1).mean())


def test_what_task_and_rule_refuse():
    with pytest.raises(InputError, match="one hidden cell, got 5 and 0"):
        associative(5, 0)
    for rate in (-0.1, 2.1, float("nan")):
        with pytest.raises(InputError, match="rate from 0 to 2.*got"):
            associative_rule(rate)


def ones(bits):
    return set(np.flatnonzero(bits).tolist())


def test_vectors_of_the_specification():
    ordinary = binary_vectors.vector(0)
    assert ones(ordinary.expected) == {*range(8)}
    assert ones(ordinary.training) == {*range(1, 8), 25}
    assert ones(ordinary.test) == {1, 2, 3, 25}
    modified = binary_vectors.vector(1, modified=True)
    assert ones(modified.expected) == {*range(12, 16), *range(20, 24)}
    assert ones(modified.training) == ones(modified.expected) | {0, 25}
    late = binary_vectors.vector(1000)
    assert ones(late.expected) == {*range(12, 20)}
    assert ones(late.training) == {*range(12, 20), 33, 8}
    assert ones(late.test) == {8, 12, 13, 14, 15, 33}
    for bits in (*ordinary, *modified, *late):
        assert (bits.dtype, bits.shape, bits.max()) == (np.uint8, (50,), 1)


@pytest.mark.parametrize(
    ("overflow", "expected", "modified"),
    [
        ("drop", {48, 49}, {48, 49}),
        ("wrap", {48, 49, *range(14)}, {48, 49, *range(6), *range(14, 22)}),
    ],
)
def test_vectors_that_run_out_of_range(overflow, expected, modified):
    patterns = Patterns(block_size=8, num_flips=0, overflow=overflow)
    assert ones(binary_vectors.vector(2, patterns).expected) == expected
    assert ones(binary_vectors.vector(2, patterns, modified=True).expected) == modified
    inside = patterns._replace(num_bits=72, overflow="refuse")
    assert ones(binary_vectors.vector(1, inside).test) == {*range(24, 32)}
    assert ones(binary_vectors.vector(1, patterns).test) == {*range(24, 32)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: binary_vectors.vector(0, Patterns(block_size=8)),
            "= 72 coordinates .*got 50 bits: use blocks of at most 5",
        ),
        (lambda: binary_vectors.world(Patterns(block_size=6)), "= 54 coordinates"),
        (lambda: binary_vectors.vector(0, Patterns(num_flips=51)), "and 51 flips"),
        (lambda: binary_vectors.vector(0, Patterns(period=0)), "period 0"),
        (
            lambda: binary_vectors.vector(0, Patterns(overflow="lose")),
            "refuse, drop, wrap, got 'lose'",
        ),
        (lambda: binary_vectors.world(modified=3), "from 0 to 2, got 3"),
        (lambda: binary_vectors.world(num_modified=16), "16 modified of 15"),
        (lambda: binary_vectors.world(num_agents=0, num_modified=0), "0 modified of 0"),
        (lambda: binary_vectors.world(train=()), "got 0 and 100"),
    ],
)
def test_patterns_and_worlds_that_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_world_of_the_specification():
    world = binary_vectors.world()
    assert world.train.examples["x"].shape == (15, 9, 50)
    assert world.test.examples["x"].shape == (15, 100, 50)
    assert world.valid.examples["x"].shape == (15, 0, 50)
    np.testing.assert_array_equal(world.train.size, np.full(15, 9))
    np.testing.assert_array_equal(world.test.size, np.full(15, 100))
    np.testing.assert_array_equal(world.cluster, [1, 1] + [0] * 13)
    for agent in (0, 1, 2, 14):
        for k in range(9):
            one = binary_vectors.vector(k, modified=agent < 2 and k % 3 == 1)
            examples = world.train.examples
            np.testing.assert_array_equal(examples["x"][agent, k], one.training)
            np.testing.assert_array_equal(examples["y"][agent, k], one.expected)
        for k in range(100):
            modified = agent < 2 and (1000 + k) % 3 == 1
            one = binary_vectors.vector(1000 + k, modified=modified)
            examples = world.test.examples
            np.testing.assert_array_equal(examples["x"][agent, k], one.test)
            np.testing.assert_array_equal(examples["y"][agent, k], one.expected)
    other = binary_vectors.world(modified=2, num_modified=1)
    differs = other.train.examples["y"] != world.train.examples["y"]
    assert {*np.argwhere(differs.any(-1))[:, 0].tolist()} == {0, 1}


@pytest.mark.parametrize("num_shared", [0, 100, 300, 350, 400])
def test_the_hidden_cell_decides_who_owns_a_link(num_shared):
    """15 agents; all visible and some hidden cells are global."""
    task = associative(50, 400, THRESHOLD)
    everyone = tuple(range(15))
    models = (PartialModel((50, num_shared), everyone),) if num_shared else ()
    sharing = compile_scheme(Scheme(((50, 400),) * 15, models), wiring(), task)
    shapes = jax.eval_shape(task.init, jax.random.key(0)).params
    owner = owner_classes.owner_arrays(sharing.plan, shapes)
    is_shared = np.broadcast_to(np.arange(400) < num_shared, (15, 50, 400))
    np.testing.assert_array_equal(owner["to_hidden"]["kernel"] == 0, is_shared)
    np.testing.assert_array_equal(
        owner["to_visible"]["kernel"] == 0, is_shared.swapaxes(1, 2)
    )
    for leaf in jax.tree.leaves(owner):
        assert np.isin(leaf, [0, LOCAL]).all()
    size = sum(c.size for c in sharing.plan.classes if c.is_shared)
    assert size == 2 * 50 * num_shared


SMALL = Patterns(num_bits=20, block_size=2, period=3, num_flips=2)


def build(num_agents, num_hidden, scheme=None, **options):
    task = associative(20, num_hidden, THRESHOLD)
    if scheme is None:
        global_model = PartialModel((20, 5), tuple(range(num_agents)))
        scheme = Scheme(((20, num_hidden),) * num_agents, (global_model,))
    sharing = compile_scheme(scheme, wiring(), task)
    algorithm = partial_rounds(
        task,
        associative_rule(0.2, THRESHOLD),
        samplers.cyclic_window(3),
        sharing,
        averaging.server(num_agents),
        shared_init=False,
        **options,
    )
    return algorithm, task, sharing


def run_rounds(algorithm, state, world, num_rounds):
    world = jax.tree.map(jnp.asarray, world)
    step = jax.jit(algorithm.round)
    for t in range(num_rounds):
        state, info = step(jax.random.key(t), jnp.int32(t), (), state, world)
    return state, info


@pytest.mark.parametrize("agent_loop", [VMAP, IN_PLACE], ids=["vmap", "in_place"])
def test_engine_equals_a_plain_simulation_of_three_agents(agent_loop):
    """Four mini-batches, five of eight hidden cells shared; rates differ."""
    rates = np.array([1, 0.5, 2], np.float32)
    algorithm, task, _ = build(3, 8, update_scale=rates, agent_loop=agent_loop)
    world = binary_vectors.world(SMALL, num_agents=3, num_modified=1)
    state = jax.jit(algorithm.init)(jax.random.key(0), world)
    kernels = jax.tree.map(lambda leaf: np.asarray(leaf, float), state.variables.params)
    to_hidden = kernels["to_hidden"]["kernel"].swapaxes(1, 2)  # [N, H, n]
    to_visible = kernels["to_visible"]["kernel"].swapaxes(1, 2)  # [N, n, H]
    assert np.abs(to_hidden[0] - to_hidden[1]).max() > 0.1  # independent starts
    losses = np.zeros(3)
    for t in range(4):
        window = (3 * t + np.arange(3)) % 9
        for n in range(3):
            x = world.train.examples["x"][n, window]
            to_hidden[n], to_visible[n], losses[n] = reference_learn(
                to_hidden[n], to_visible[n], x, 0.2 * rates[n]
            )
        to_hidden[:, :5] = to_hidden[:, :5].mean(0)
        to_visible[:, :, :5] = to_visible[:, :, :5].mean(0)
    state, info = run_rounds(algorithm, state, world, 4)
    for n in range(3):
        params = jax.tree.map(lambda leaf: leaf[n], state.variables.params)  # noqa: B023
        assert_links_close(params, to_hidden[n], to_visible[n])
    np.testing.assert_allclose(info.train_loss, losses)
    np.testing.assert_array_equal(info.payload, np.full(3, 2 * 20 * 5))
    tested = on_test_sets(task)(
        algorithm.models(state), jax.tree.map(jnp.asarray, world)
    )
    for n in range(3):
        successes = [
            reference_success(y, reference_recall(to_hidden[n], to_visible[n], x)[1])
            for x, y in zip(
                world.test.examples["x"][n], world.test.examples["y"][n], strict=True
            )
        ]
        assert tested["accuracy"][n] == pytest.approx(np.mean(successes))


@pytest.mark.slow
def test_vmap_and_in_place_agree():
    world = binary_vectors.world(SMALL, num_agents=7, num_modified=2)
    states = []
    for agent_loop in (VMAP, IN_PLACE):
        algorithm, _, _ = build(7, 60, agent_loop=agent_loop)
        state = jax.jit(algorithm.init)(jax.random.key(1), world)
        states.append(run_rounds(algorithm, state, world, 6))
    for a, b in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_an_agent_may_have_fewer_hidden_cells():
    """It then learns as a network of its own size."""
    algorithm, _, _ = build(2, 9, Scheme(((20, 9), (20, 6))))
    world = binary_vectors.world(SMALL, num_agents=2, num_modified=1)
    state = jax.jit(algorithm.init)(jax.random.key(0), world)

    def links_of_second(state):  # in the layout of the reference
        params = state.variables.params
        return [
            np.asarray(params[name]["kernel"][1], float).T
            for name in ("to_hidden", "to_visible")
        ]

    to_hidden, to_visible = links_of_second(state)
    *expected, _ = reference_learn(
        to_hidden[:6], to_visible[:, :6], world.train.examples["x"][1], 0.2
    )
    to_hidden, to_visible = links_of_second(run_rounds(algorithm, state, world, 3)[0])
    np.testing.assert_allclose(to_hidden[:6], expected[0], atol=2e-6)
    np.testing.assert_allclose(to_visible[:, :6], expected[1], atol=2e-6)
    assert not to_hidden[6:].any()
    assert not to_visible[:, 6:].any()


def test_an_absent_cell_never_fires():
    """Its sum is 0, which reaches a threshold of 0."""
    params = as_params(np.zeros((2, 3)), np.zeros((3, 2)))
    x = np.ones((1, 3), np.uint8)
    mask = jnp.array([True, False])
    variables = Variables(params, {"cells": {"layer_1": {"mask": mask}}})
    step = associative_rule(1.0, 0.0).step
    after = step(jax.random.key(0), variables, (), as_batch(x), StepContext())[0].params
    np.testing.assert_array_equal(after["to_hidden"]["kernel"], [[0.5, 0]] * 3)
    np.testing.assert_array_equal(after["to_visible"]["kernel"], [[0.5] * 3, [0] * 3])


@pytest.mark.slow
def test_partial_averaging_beats_none_and_all_of_it():
    """The specification's setting after 20 mini-batches, one run: .47, .66, .61."""
    task = associative(50, 400, THRESHOLD)
    world = binary_vectors.world()
    accuracy = {}
    for num_shared in (0, 350, 400):
        shared = PartialModel((50, num_shared), tuple(range(15)))
        scheme = Scheme(((50, 400),) * 15, (shared,) if num_shared else ())
        sharing = compile_scheme(scheme, wiring(), task)
        algorithm = partial_rounds(
            task,
            associative_rule(0.1, THRESHOLD),
            samplers.cyclic_window(3),
            sharing,
            averaging.server(15),
            shared_init=False,
        )
        (snapshot,) = simulate(
            jax.random.key(0),
            algorithm,
            world,
            20,
            eval_every=20,
            evaluate=on_test_sets(task),
        )
        accuracy[num_shared] = snapshot.metrics["accuracy"].mean()
        params = snapshot.state.variables.params
        assert disagreement(params, sharing.plan).max() < 1e-6
    assert accuracy[0] == pytest.approx(0.46, abs=0.06)
    assert accuracy[350] == pytest.approx(0.66, abs=0.03)
    assert accuracy[400] == pytest.approx(0.62, abs=0.03)
    assert accuracy[350] > accuracy[400] > accuracy[0]
