"""The agent loop's forms agree; learners do what their names say."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_cases import slow

from p2pjax.evaluation import models, statistics
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.exchange.owner_classes import Block, MixPlan, OwnerClass
from p2pjax.nn import cnn, mlp
from p2pjax.tasks._classification import classification
from p2pjax.tasks.losses import (
    binary_cross_entropy,
    softmax_cross_entropy,
    squared_error,
)
from p2pjax.tasks.task import as_float, check_labels
from p2pjax.training import local_training, samplers
from p2pjax.training.agent_loop import (
    AUTO,
    CHUNK,
    IN_PLACE,
    VMAP,
    even_chunk,
    fastest_agent_loop,
    map_agents,
    resolve_agent_loop,
)
from p2pjax.training.learner import (
    StepContext,
    by_top_level,
    gradient_descent,
    per_sample,
)
from p2pjax.types import FederatedData, InputError, Models, Split

NUM_AGENTS = 7


def setup(rng, sizes=None):
    # An output layer of one input makes leaves with axes of size 1.
    task = classification(mlp.MLP((4, 1, 3)), (5,), softmax_cross_entropy)
    sizes = np.full(NUM_AGENTS, 9, np.int32) if sizes is None else sizes
    agents = Split(
        {
            "x": jnp.asarray(rng.normal(size=(NUM_AGENTS, 9, 5)), jnp.float32),
            "y": jnp.asarray(rng.integers(0, 3, (NUM_AGENTS, 9)), jnp.int32),
        },
        jnp.asarray(sizes),
    )
    keys = jax.random.split(jax.random.key(0), NUM_AGENTS)
    return task, agents, jax.vmap(task.init)(keys)


@cache
def trained(agent_loop, one_by_one):
    """By one form of the agent loop; many are compared with the same one."""
    task, agents, variables = setup(np.random.default_rng(0))
    learner = gradient_descent(task, optax.sgd(0.3, momentum=0.9))
    learner = per_sample(learner) if one_by_one else learner
    train = local_training.local_training(
        learner, samplers.cyclic_window(4), 3, agent_loop
    )
    state = jax.vmap(learner.init)(variables)
    return jax.jit(train)(jax.random.key(1), jnp.int32(0), variables, state, agents)


@pytest.mark.parametrize("agent_loop", [IN_PLACE, 3, *map(slow, (AUTO, 2, 7, 50))])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_all_forms_of_the_agent_loop_agree(agent_loop, one_by_one):
    results = [trained(form, one_by_one) for form in (VMAP, agent_loop)]
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@jax.numpy_dtype_promotion("standard")  # Adam mixes dtypes
def test_one_step_in_place_copies_nobody_elses_state():
    """XLA:CPU used to copy the moments of all agents once per agent."""
    task, agents, variables = setup(np.random.default_rng(0))
    learner = gradient_descent(task, optax.adam(0.01))
    train = local_training.local_training(learner, samplers.cyclic_window(4), 1, 1)
    opt_state = jax.vmap(learner.init)(variables)
    step = jax.jit(train, donate_argnums=(2, 3)).lower(
        jax.random.key(1), jnp.int32(0), variables, opt_state, agents
    )
    kernel = jax.tree.leaves(variables.params)[1].shape  # [N, 5, 4]
    shape = f"f32[{','.join(map(str, kernel))}]"
    copies = [
        line for line in step.compile().as_text().splitlines() if " copy(" in line
    ]
    assert len(kernel) == 3
    assert not [line for line in copies if shape in line]


@cache
def evaluated(agent_loop):
    sizes = np.asarray([9, 1, 2, 3, 4, 5, 6], np.int32)
    task, agents, variables = setup(np.random.default_rng(0), sizes)
    world = FederatedData(agents, agents, agents, np.zeros(NUM_AGENTS, np.int32))
    return jax.jit(on_test_sets(task, agent_loop))(Models(variables), world)


@pytest.mark.parametrize("agent_loop", [IN_PLACE, 3, *map(slow, (AUTO, 50))])
def test_all_forms_evaluate_alike(agent_loop):
    one, other = evaluated(VMAP), evaluated(agent_loop)
    assert set(one) == {"accuracy", "diverged", "loss"}
    for name, expected in one.items():
        np.testing.assert_allclose(other[name], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "module, shape, expected",
    [
        (mlp.MLP((32, 10)), (64,), CHUNK),
        (mlp.MLP((300, 100, 10)), (784,), IN_PLACE),
        (cnn.CNN((4,), (), 10), (28, 28), IN_PLACE),
    ],
)
def test_the_fastest_form_is_chosen(module, shape, expected, monkeypatch):
    task = classification(module, shape, softmax_cross_entropy)
    assert fastest_agent_loop(task) == expected
    assert fastest_agent_loop(task, "cuda") == VMAP
    # What is mapped says the same.
    agents = jax.eval_shape(
        jax.vmap(task.init), jax.random.split(jax.random.key(0), NUM_AGENTS)
    )
    assert resolve_agent_loop(AUTO, ((), agents)) == expected
    assert resolve_agent_loop(3, ((), agents)) == 3
    monkeypatch.setattr(jax, "default_backend", lambda: "cuda")
    assert resolve_agent_loop(AUTO, ((), agents)) == VMAP


def test_padding_never_contributes():
    rng = np.random.default_rng(0)
    sizes = np.asarray([9, 1, 2, 3, 4, 5, 6], np.int32)
    task, agents, variables = setup(rng, sizes)
    padding = np.arange(9) >= sizes[:, None]
    poisoned = agents._replace(
        examples={
            "x": jnp.where(padding[..., None], jnp.nan, agents.examples["x"]),
            "y": agents.examples["y"],
        }
    )
    learner = gradient_descent(task, optax.sgd(0.3))
    for sampler in (samplers.cyclic_window(4), samplers.with_replacement(4)):
        train = local_training.local_training(learner, sampler, 5, IN_PLACE)
        new, _, losses = train(
            jax.random.key(0),
            jnp.int32(0),
            variables,
            jax.vmap(learner.init)(variables),
            poisoned,
        )
        assert np.isfinite(losses).all()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new))


def test_rates_scale_the_updates_of_their_agent():
    task, agents, variables = setup(np.random.default_rng(0))
    learner = gradient_descent(task, optax.sgd(0.1))
    rate = jnp.asarray([0.0, 1, 2, 3, 1, 1, 1])
    train = local_training.local_training(learner, samplers.cyclic_window(4), 1, VMAP)
    start = jax.random.key(0), jnp.int32(0), variables
    opt_state = jax.vmap(learner.init)(variables)
    plain = train(*start, opt_state, agents)[0].params
    scaled = train(*start, opt_state, agents, StepContext(rate))[0].params
    for old, one, other in zip(
        *map(jax.tree.leaves, (variables.params, plain, scaled)), strict=True
    ):
        factor = rate.reshape((-1,) + (1,) * (old.ndim - 1))
        np.testing.assert_allclose(other - old, factor * (one - old), atol=1e-6)
    assert (
        jax.tree.leaves(scaled)[0][0] == jax.tree.leaves(variables.params)[0][0]
    ).all()


def test_per_sample_takes_one_step_per_example():
    task, agents, variables = setup(np.random.default_rng(0))
    learner = gradient_descent(task, optax.sgd(0.1))
    one = jax.tree.map(lambda leaf: leaf[0], variables)
    examples = {name: leaf[0] for name, leaf in agents.examples.items()}
    everything = jnp.ones(3, bool)
    batch = samplers.take_batch(examples, samplers.Draw(jnp.arange(3), everything))
    state = learner.init(one)
    together, _, loss = jax.jit(per_sample(learner).step)(
        jax.random.key(0), one, state, batch, StepContext()
    )
    step, losses = jax.jit(learner.step), []
    for i in range(3):
        draw = samplers.Draw(jnp.asarray([i]), everything[:1])
        single = samplers.take_batch(examples, draw)
        one, state, single_loss = step(
            jax.random.key(0), one, state, single, StepContext()
        )
        losses.append(single_loss)
    assert loss == pytest.approx(np.mean(losses))
    for a, b in zip(*map(jax.tree.leaves, (together, one)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("num_agents", "copies"), [(16, 1), (26, 1), (40, 1), (7, 1), (23, 2)]
)
def test_training_is_in_a_program_once_where_agents_divide(num_agents, copies):
    """Chunks are of equal size where a size near the wanted one divides the agents."""

    def square(carry, x):
        return carry, jnp.sin(x)

    agents = jnp.arange(float(num_agents))
    lowered = jax.jit(map_agents(square, 10)).lower((), agents).as_text()
    assert lowered.count("stablehlo.sine") == copies
    outputs = map_agents(square, 10)((), agents)[1]
    np.testing.assert_allclose(outputs, np.sin(agents), atol=1e-6)


@given(wanted=st.integers(2, 40), num_agents=st.integers(1, 200))
def test_chunks_are_near_what_is_wanted(wanted, num_agents):
    chunk = even_chunk(wanted, num_agents)
    assert 1 <= chunk <= num_agents
    if num_agents > wanted:
        assert wanted / 2 <= chunk <= 1.5 * wanted
        near = range(-(-wanted // 2), wanted * 3 // 2 + 1)
        if any(num_agents % size == 0 for size in near if size > 1):
            assert num_agents % chunk == 0


def test_a_loop_without_carry_maps_inputs():
    outputs = map_agents(lambda carry, x: (carry, x * 2), 2)((), jnp.arange(5))[1]
    assert outputs.tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(InputError, match=r"agent_loop of -1 \(auto\)"):
        map_agents(lambda carry, x: (carry, x), -2)


@pytest.mark.parametrize(
    "loss, expected",
    [
        (squared_error, lambda p, t: ((p - t) ** 2).sum(-1) / 2),
        (
            binary_cross_entropy,
            lambda p, t: -(t * np.log(p) + (1 - t) * np.log(1 - p)).sum(-1),
        ),
    ],
)
def test_losses_of_sigmoid_outputs(loss, expected):
    logits = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    labels = np.asarray([0, 2, 1, 1])
    outputs = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(
        loss(jnp.asarray(logits), jnp.asarray(labels)),
        expected(outputs, np.eye(3)[labels]),
        rtol=1e-5,
    )


def test_softmax_cross_entropy():
    logits = jnp.asarray([[1.0, 2.0, 3.0]])
    expected = np.log(np.exp([1, 2, 3]).sum()) - 2
    assert softmax_cross_entropy(logits, jnp.asarray([1]))[0] == pytest.approx(expected)


def test_images_are_scaled_and_labels_checked():
    assert as_float(jnp.asarray([0, 255], jnp.uint8)).tolist() == [0, 1]
    assert as_float(jnp.asarray([7.0])).tolist() == [7]
    check_labels(np.asarray([0, 9]), 10)
    with pytest.raises(InputError, match="labels from 0 to 9, .* got 0 to 10"):
        check_labels(np.asarray([0, 10]), 10)


def test_summary_over_runs():
    values = np.asarray([0.1, 0.2, 0.3, 0.4, 0.5])
    summary = statistics.over_runs(values)
    assert summary["median"] == pytest.approx(0.3)
    assert summary["p40"] == pytest.approx(0.26)
    assert summary["p60"] == pytest.approx(0.34)
    assert summary["std"] == pytest.approx(values.std(ddof=1))
    assert summary["runs"] == 5
    assert statistics.over_runs(values[:1])["std"] == 0


def test_norm_and_disagreement():
    params = {"a": jnp.asarray([[3.0, 4], [0, 0], [1, 0]]), "b": jnp.zeros((3, 1))}
    assert models.parameter_norm(params).tolist() == [5, 0, 1]
    plan = MixPlan(
        (
            OwnerClass(np.asarray([0, 0, -1]), (Block(0, (0,), (2,)),)),
            OwnerClass(np.full(3, -1), (Block(1, (0,), (1,)),)),
        )
    )
    assert models.disagreement(params, plan).tolist() == [2, 0]


def test_shuffled_epochs_use_every_example_once_per_pass():
    """Also where agents have different sizes and the last batch is short."""
    sampler = samplers.shuffled_epochs(4, 11)
    for size in (1, 4, 7, 11):
        num_steps = int(samplers.steps_per_epoch(size, 4))
        assert num_steps == -(-size // 4)
        orders = []
        for epoch in range(2):
            draws = [
                sampler(jax.random.key(9), jnp.int32(epoch * num_steps + s), size)
                for s in range(num_steps)
            ]
            # A short batch is filled with the agent's own examples, in the same order.
            whole = np.concatenate([d.indices for d in draws])
            np.testing.assert_array_equal(whole, np.resize(whole[:size], len(whole)))
            used = np.concatenate([d.indices[d.valid] for d in draws])
            assert sorted(used.tolist()) == list(range(size))
            orders.append(used.tolist())
        assert size < 4 or orders[0] != orders[1]


@pytest.mark.parametrize("agent_loop", [VMAP, IN_PLACE])
def test_every_agent_takes_the_steps_its_own_data_asks_for(agent_loop):
    sizes = np.asarray([9, 3, 5, 4, 1, 2, 8], np.int32)
    task, agents, variables = setup(np.random.default_rng(0), sizes)
    learner = gradient_descent(task, optax.sgd(0.1))
    sampler = samplers.shuffled_epochs(2, 9)

    def epoch(carry, inputs):
        key, examples, size = inputs
        num_steps = 2 * samplers.steps_per_epoch(size, 2)  # from the middle of a pass
        return local_training.take_steps(
            learner,
            sampler,
            key,
            examples,
            size,
            StepContext(),
            carry,
            0 * size + 1,
            num_steps,
        )

    keys = jax.random.split(jax.random.key(0), 7)
    state = jax.vmap(learner.init)(variables)
    (found, _), _ = map_agents(epoch, agent_loop)(
        (variables, state), (keys, agents.examples, agents.size)
    )
    take_step = jax.jit(learner.step)
    for agent in (0, 3):
        one = jax.tree.map(lambda leaf: leaf[agent], variables)  # noqa: B023
        state = learner.init(one)
        examples = {name: leaf[agent] for name, leaf in agents.examples.items()}
        size = int(agents.size[agent])
        for step in range(1, 1 + 2 * -(-size // 2)):
            draw = sampler(keys[0], jnp.int32(step), size)
            batch = samplers.take_batch(examples, draw)
            one, state, _ = take_step(keys[0], one, state, batch, StepContext())
        for a, b in zip(*map(jax.tree.leaves, (found, one)), strict=True):
            np.testing.assert_allclose(a[agent], b, rtol=1e-5, atol=1e-6)


def test_an_order_is_drawn_once_per_pass():
    task, agents, variables = setup(np.random.default_rng(0))
    learner = gradient_descent(task, optax.sgd(0.1))
    sampler, drawn = samplers.shuffled_epochs(1, 3), []

    def order(step, size, order_seed):
        jax.debug.callback(lambda step: drawn.append(int(step)), step)
        return sampler.order(step, size, order_seed)

    def passes(carry, inputs):
        return local_training.take_steps(
            learner,
            sampler._replace(order=order),
            jax.random.key(0),
            inputs,
            jnp.int32(3),
            StepContext(),
            carry,
            jnp.int32(1),
            8,
        )

    state = variables, jax.vmap(learner.init)(variables)
    jax.jit(map_agents(passes, IN_PLACE))(state, agents.examples)
    jax.effects_barrier()
    num_agents = agents.size.shape[0]
    assert sorted(drawn) == sorted([1, 3, 6] * num_agents)


@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_frozen_parts_keep_values_and_optimizer_state():
    task, agents, variables = setup(np.random.default_rng(0))
    learner = gradient_descent(task, optax.adam(0.1), by_top_level)
    plain = gradient_descent(task, optax.adam(0.1))
    one = jax.tree.map(lambda leaf: leaf[0], variables)
    examples = {name: leaf[0] for name, leaf in agents.examples.items()}
    batch = samplers.take_batch(
        examples, samplers.Draw(jnp.arange(3), jnp.ones(3, bool))
    )
    step, plain_step = jax.jit(learner.step), jax.jit(plain.step)
    state, plain_state = jax.jit(learner.init)(one), jax.jit(plain.init)(one)
    free, same, key = one, one, jax.random.key(0)
    for _ in range(2):  # groups change nothing by themselves
        free, state, _ = step(key, free, state, batch, StepContext())
        same, plain_state, _ = plain_step(key, same, plain_state, batch, StepContext())
    for a, b in zip(*map(jax.tree.leaves, (free, same)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    frozen = StepContext(
        frozen={"layer_1": jnp.asarray(True), "layer_2": jnp.asarray(False)}
    )
    held, held_state, _ = step(key, free, state, batch, frozen)
    for before, after, name in (
        (free.params, held.params, "values"),
        (state, held_state, "optimizer"),
    ):
        for a, b in zip(
            *map(jax.tree.leaves, (before["layer_1"], after["layer_1"])), strict=True
        ):
            np.testing.assert_array_equal(a, b, err_msg=name)
    assert (free.params["layer_2"]["bias"] != held.params["layer_2"]["bias"]).any()
    unknown = StepContext(frozen={"rest": jnp.asarray(True)})
    with pytest.raises(InputError, match="among layer_1, layer_2, layer_3, got rest"):
        learner.step(key, free, state, batch, unknown)  # else it would train on
    with pytest.raises(InputError, match="Need a learner with groups"):
        plain.step(key, same, plain_state, batch, unknown)
