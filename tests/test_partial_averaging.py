"""The batched engine against a plain loop, centralized SGD and itself."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from networks import (
    assert_networks_close,
    stacked,
    unstacked,
    without_padding,
)
from slow_cases import slow

from p2pjax.algorithms._partial_averaging import partial_averaging
from p2pjax.engines.partial_rounds import PartialAveragingState, partial_rounds
from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.exchange import owner_classes
from p2pjax.graphs import generators
from p2pjax.nn import mlp
from p2pjax.partial import averaging, drift, ownership, placement
from p2pjax.partial.levels import level
from p2pjax.partial.per_model import per_model
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.partial.sharing import compile_scheme
from p2pjax.simulation._simulate import simulate
from p2pjax.tasks import losses
from p2pjax.tasks._classification import classification
from p2pjax.training import samplers
from p2pjax.training.agent_loop import IN_PLACE, VMAP
from p2pjax.training.learner import gradient_descent, per_sample
from p2pjax.training.local_updates import epochs, steps
from p2pjax.types import FederatedData, InputError, Models, Split, Variables

# Four agents, a global and a semi-local model that depends on it, one narrower agent.
SCHEME = Scheme(
    networks=((6, 5, 4, 3), (6, 5, 4, 3), (6, 4, 3, 3), (6, 5, 4, 3)),
    models=(
        PartialModel((6, 2, 2, 3), (0, 1, 2, 3)),
        PartialModel((0, 2, 1, 0), (0, 1, 2)),
    ),
    depends=((1, 0),),
)


def build(
    scheme, *, one_by_one=True, optimizer=None, batch_size=5, real=None, **options
):
    """A partial averaging algorithm on MLPs of the scheme's widths."""
    widths = placement.widths(placement.align(placement.attach(scheme))[0])
    task = classification(mlp.MLP(widths[1:]), (widths[0],), losses.squared_error)
    learner = gradient_descent(task, optimizer or optax.sgd(0.5))
    if one_by_one:
        learner = per_sample(learner)
    sharing = compile_scheme(scheme, mlp.wiring(len(widths) - 1), task)
    num_agents = len(scheme.networks)
    algorithm = partial_rounds(
        task,
        learner,
        samplers.cyclic_window(batch_size),
        sharing,
        real or averaging.server(num_agents),
        **options,
    )
    return algorithm, sharing, task


def random_world(rng, num_agents, num_inputs, num_outputs, size=12, dtype=np.float32):
    sizes = np.full(num_agents, size, np.int32)

    def split():
        x = rng.normal(size=(num_agents, size, num_inputs)).astype(dtype)
        y = rng.integers(0, num_outputs, (num_agents, size)).astype(np.int32)
        return Split({"x": x, "y": y}, sizes)

    return FederatedData(split(), split(), split(), np.zeros(num_agents, np.int32))


def run_rounds(algorithm, state, world, num_rounds, inputs=None):
    world = jax.tree.map(jnp.asarray, world)
    step = jax.jit(algorithm.round)
    for t in range(num_rounds):
        now = () if inputs is None else jax.tree.map(lambda leaf: leaf[t], inputs)  # noqa: B023
        state, info = step(jax.random.key(t), jnp.int32(t), now, state, world)
    return state, info


@pytest.mark.parametrize("agent_loop", [VMAP, IN_PLACE, slow(3)])
def test_engine_equals_plain_loop_over_agents(agent_loop):
    """Three rounds, a semi-local model, a dependency, one narrower agent."""
    algorithm, sharing, _ = build(SCHEME, agent_loop=agent_loop)
    world = random_world(np.random.default_rng(0), 4, 6, 3)
    state = algorithm.init(jax.random.key(0), world)
    models = [
        [part[agent][part[agent] != -2] for part in placement.attach(SCHEME)]
        for agent in range(4)
    ]

    def own_networks(state):
        networks = unstacked(state.variables.params)
        return without_padding(networks, sharing.cells, sharing.order)

    expected = own_networks(state)
    examples = world.train.examples
    for t in range(3):
        for agent in range(4):
            window = (t * 5 + np.arange(5)) % 12
            expected[agent] = reference.train_per_sample(
                expected[agent],
                examples["x"][agent, window].astype(float),
                examples["y"][agent, window],
                0.5,
            )
        expected = reference.average(expected, models, [set(), {0}])
    state, info = run_rounds(algorithm, state, world, 3)
    assert_networks_close(own_networks(state), expected, rtol=1e-5, atol=1e-5)
    # What the narrower agent does not have never becomes anything.
    shapes = jax.tree.map(lambda p: p[0], state.variables.params)
    present = ownership.presence(sharing.cells, sharing.wiring, shapes)
    for leaf, has in zip(
        *map(jax.tree.leaves, (state.variables.params, present)), strict=True
    ):
        assert (np.asarray(leaf)[~np.broadcast_to(has, leaf.shape)] == 0).all()
    assert info.train_loss.shape == (4,)


def test_narrow_agents_predict_as_their_own_network():
    algorithm, sharing, task = build(SCHEME, shared_init=False)
    world = random_world(np.random.default_rng(1), 4, 6, 3)
    state = algorithm.init(jax.random.key(3), world)
    networks = without_padding(
        unstacked(state.variables.params), sharing.cells, sharing.order
    )
    metrics = on_test_sets(task)(
        Models(state.variables), jax.tree.map(jnp.asarray, world)
    )
    for agent, network in enumerate(networks):
        x, y = world.test.examples["x"][agent], world.test.examples["y"][agent]
        outputs = reference.forward(network, x)[-1]
        assert metrics["accuracy"][agent] == pytest.approx(
            (outputs.argmax(1) == y).mean()
        )
        assert metrics["loss"][agent] == pytest.approx(
            ((outputs - np.eye(3)[y]) ** 2).sum(1).mean() / 2, rel=1e-5
        )


def test_agents_without_a_part():
    """Agents 2 and 3 lack the second hidden part: their links skip it."""
    scheme = Scheme(
        networks=((6, 5, 4, 3),) * 2 + ((6, 5, 0, 3),) * 2,
        models=(PartialModel((6, 4, 0, 3), (0, 1, 2, 3)),),
    )
    algorithm, sharing, _ = build(scheme)
    assert placement.widths(sharing.cells) == (6, 5, 5, 3)
    world = random_world(np.random.default_rng(0), 4, 6, 3)
    state = algorithm.init(jax.random.key(0), world)

    def own_networks(state):
        params = jax.tree.map(np.asarray, state.variables.params)
        first, _, last = (params[f"layer_{i}"] for i in (1, 2, 3))
        deep = unstacked(jax.tree.map(lambda p: p[:2], params))
        deep = [
            [net[0], (net[1][0][:, :4], net[1][1][:4]), (net[2][0][:4], net[2][1])]
            for net in deep
        ]
        flat = [
            [(layer["kernel"][agent], layer["bias"][agent]) for layer in (first, last)]
            for agent in (2, 3)
        ]
        return deep, flat

    deep, flat = own_networks(state)
    for t in range(3):
        window = (t * 5 + np.arange(5)) % 12
        for group, agents in ((deep, (0, 1)), (flat, (2, 3))):
            for slot, agent in enumerate(agents):
                group[slot] = reference.train_per_sample(
                    group[slot],
                    world.train.examples["x"][agent, window].astype(float),
                    world.train.examples["y"][agent, window],
                    0.5,
                )
        # Common to all: input -> hidden and both biases. Only the flat ones have
        # weights from the first hidden part to the output, and share them.
        everyone = [*deep, *flat]
        kernel = np.mean([net[0][0][:, :4] for net in everyone], axis=0)
        bias = np.mean([net[0][1][:4] for net in everyone], axis=0)
        out_bias = np.mean([net[-1][1] for net in everyone], axis=0)
        out_kernel = np.mean([net[1][0][:4] for net in flat], axis=0)
        for net in everyone:
            net[0][0][:, :4], net[0][1][:4] = kernel, bias
            net[-1][1][:] = out_bias
        for net in flat:
            net[1][0][:4] = out_kernel
    state, _ = run_rounds(algorithm, state, world, 3)
    for actual, expected in zip(own_networks(state), (deep, flat), strict=True):
        assert_networks_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_a_lacking_part_passes_all_columns_on():
    """Agent 2's cells stand right of what others need of the part it lacks."""
    scheme = Scheme(
        networks=((3, 4, 3, 2), (3, 6, 3, 2), (3, 2, 0, 2)),
        models=(PartialModel((0, 4, 0, 0), (0, 1)), PartialModel((0, 2, 0, 0), (1, 2))),
    )
    algorithm, sharing, task = build(scheme)
    assert placement.widths(sharing.cells) == (3, 6, 6, 2)
    world = random_world(np.random.default_rng(0), 3, 3, 2)
    state = algorithm.init(jax.random.key(0), world)
    params = jax.tree.map(lambda p: np.asarray(p[2]), state.variables.params)
    own = [
        (params["layer_1"]["kernel"][:, 4:], params["layer_1"]["bias"][4:]),
        (params["layer_3"]["kernel"][4:], params["layer_3"]["bias"]),
    ]
    x, y = world.test.examples["x"][2], world.test.examples["y"][2]
    outputs = reference.forward(own, x)[-1]
    assert np.ptp(outputs, axis=0).min() > 0
    metrics = on_test_sets(task)(
        Models(state.variables), jax.tree.map(jnp.asarray, world)
    )
    assert metrics["loss"][2] == pytest.approx(
        ((outputs - np.eye(2)[y]) ** 2).sum(1).mean() / 2, rel=1e-5
    )


def test_own_column_orders_are_aligned():
    """Offsets that differ between agents give the same run as canonical ones."""
    network = (6, 5, 4, 3)
    plain = Scheme(
        (network,) * 3,
        (PartialModel((6, 2, 2, 3), (0, 1, 2)), PartialModel((0, 2, 1, 0), (0, 1))),
        ((1, 0),),
    )
    zero = (0, 0, 0, 0)
    shuffled = plain._replace(
        models=(
            plain.models[0]._replace(offsets=((0, 3, 2, 0), zero, (0, 1, 1, 0))),
            plain.models[1]._replace(offsets=(zero, (0, 2, 2, 0))),
        )
    )
    world = random_world(np.random.default_rng(0), 3, 6, 3)
    results = []
    for scheme in (plain, shuffled):
        algorithm, sharing, _ = build(scheme)
        state = algorithm.init(jax.random.key(0), world)
        results.append(run_rounds(algorithm, state, world, 3)[0])
    jax.tree.map(np.testing.assert_array_equal, *results)
    cells = placement.attach(shuffled)
    np.testing.assert_array_equal(
        np.take_along_axis(cells[1], sharing.order[1], 1), sharing.cells[1]
    )
    assert (sharing.order[1][0] != np.arange(5)).any()


def test_permuting_cells_commutes_with_everything():
    """A-T5: forward, training and mixing."""
    scheme = SCHEME._replace(networks=((6, 5, 4, 3),) * 4)
    algorithm, sharing, task = build(scheme)
    world = random_world(np.random.default_rng(0), 4, 6, 3)
    state = algorithm.init(jax.random.key(0), world)
    rng = np.random.default_rng(5)
    order = [np.tile(np.arange(part.shape[1]), (4, 1)) for part in sharing.cells]
    for part in (1, 2):  # one order for all agents keeps their cells aligned
        order[part] = np.tile(rng.permutation(order[part].shape[1]), (4, 1))
    order = tuple(order)

    def permuted(state):
        params = jax.tree.map(np.asarray, state.variables.params)
        params = ownership.permute_cells(params, order, sharing.wiring)
        return state._replace(variables=state.variables._replace(params=params))

    cells = tuple(
        np.take_along_axis(part, columns, 1)
        for part, columns in zip(sharing.cells, order, strict=True)
    )
    shapes = jax.tree.map(lambda p: p[0], state.variables.params)
    plan = ownership.mix_plan(scheme, cells, sharing.wiring, shapes)
    other = partial_rounds(
        task,
        per_sample(gradient_descent(task, optax.sgd(0.5))),
        samplers.cyclic_window(5),
        sharing._replace(cells=cells, plan=plan),
        averaging.server(4),
    )
    after = run_rounds(algorithm, state, world, 3)[0]
    after_other = run_rounds(other, permuted(state), world, 3)[0]
    for mine, theirs in zip(
        *map(jax.tree.leaves, (permuted(after), after_other)), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    evaluate = on_test_sets(task)
    world = jax.tree.map(jnp.asarray, world)
    np.testing.assert_allclose(
        evaluate(Models(after.variables), world)["loss"],
        evaluate(Models(after_other.variables), world)["loss"],
        rtol=1e-5,
    )


# --- Equivalence with centralized SGD (spec B) ---------------------------------------

CENTRAL = Scheme(
    networks=((3, 5, 4, 2),) * 4,
    models=(
        PartialModel((3, 2, 2, 2), (0, 1, 2, 3)),
        PartialModel((0, 2, 1, 0), (0, 1)),
    ),
    depends=((1, 0),),
)


def largest_difference(
    *,
    rate,
    average_every=1,
    momentum=0.0,
    rates=None,
    dtype=np.float64,
    num_steps=100,
    real=None,
):
    """Max distance between the agents and one central SGD on the union of models."""
    with jax.enable_x64(dtype == np.float64):
        algorithm, sharing, _ = build(
            CENTRAL,
            one_by_one=False,
            optimizer=optax.sgd(rate, momentum=momentum or None),
            batch_size=16,
            average_every=average_every,
            update_scale=None if rates is None else np.asarray(rates, dtype) / rate,
            real=real,
        )
        world = random_world(np.random.default_rng(0), 4, 3, 2, 48, dtype)
        state = algorithm.init(jax.random.key(1), world)
        variables = jax.tree.map(lambda x: np.asarray(x, dtype), state.variables)
        opt_state = jax.tree.map(lambda x: np.asarray(x, dtype), state.opt_state)
        state = PartialAveragingState(variables, opt_state)
        assert len(sharing.plan.classes) == 3

        start = unstacked(state.variables.params)
        shapes = jax.tree.map(lambda p: p[0], state.variables.params)
        owner = unstacked(owner_classes.owner_arrays(sharing.plan, shapes))
        coordinates, counts = coordinates_of(owner)
        central = np.zeros(len(counts))
        for agent in range(4):
            central[coordinates[agent]] = flat(start[agent])
        velocity = np.zeros_like(central)
        examples = world.train.examples
        for t in range(num_steps):
            window = (t * 16 + np.arange(16)) % 48
            total = np.zeros_like(central)
            for agent in range(4):
                own = unflat(central[coordinates[agent]], start[agent])
                step = reference.gradient(
                    own,
                    examples["x"][agent, window].astype(float),
                    examples["y"][agent, window],
                )
                np.add.at(total, coordinates[agent], flat(step))
            velocity = momentum * velocity + total
            central -= rate / counts * velocity
        inputs = algorithm.plan(np.random.default_rng(2), world, num_steps)
        state, _ = run_rounds(algorithm, state, world, num_steps, inputs)
        assert state.variables.params["layer_1"]["kernel"].dtype == dtype
    finals = unstacked(state.variables.params)
    return max(
        np.abs(flat(finals[agent]) - central[coordinates[agent]]).max()
        for agent in range(4)
    )


def coordinates_of(owner):
    """Index of each agent's parameters in the union of models; how many have it."""
    index: dict[tuple, int] = {}
    coordinates = []
    for agent, network in enumerate(owner):
        who = flat(network).astype(int)
        assert len(who) == 54
        keys = [(w, agent if w < 0 else None, d) for d, w in enumerate(who)]
        coordinates.append(np.asarray([index.setdefault(k, len(index)) for k in keys]))
    assert len(index) == 137
    counts = np.zeros(len(index))
    for own in coordinates:
        counts[own] += 1
    return coordinates, counts


def flat(network):
    return np.concatenate([np.concatenate([k.ravel(), b]) for k, b in network])


def unflat(values, like):
    network, at = [], 0
    for kernel, bias in like:
        k = values[at : at + kernel.size].reshape(kernel.shape)
        at += kernel.size
        network.append((k, values[at : at + bias.size]))
        at += bias.size
    return network


@pytest.mark.parametrize("rate", [*map(slow, (0.01, 0.1)), 1.0])
def test_equals_centralized_sgd(rate):
    assert largest_difference(rate=rate) <= 1e-12


def test_a_gossip_per_model_equals_centralized_sgd():
    """With cycles enough for four members; two of a model agree at once."""
    assert largest_difference(rate=1.0, num_steps=40, real=per_model(cycles=40)) < 1e-12


@pytest.mark.slow
def test_a_short_gossip_is_not_centralized_sgd():
    """The same two settings, and a negative control: members disagree."""
    for rate in (0.01, 0.1):
        assert largest_difference(rate=rate, real=per_model(cycles=40)) < 1e-12
    assert largest_difference(rate=0.1, real=per_model(cycles=1)) > 1e-6


def test_equals_centralized_sgd_in_single_precision():
    assert largest_difference(rate=0.1, dtype=np.float32) <= 1e-5


def test_equals_centralized_sgd_with_local_momentum():
    assert largest_difference(rate=0.1, momentum=0.9) <= 1e-12


@pytest.mark.slow
def test_rare_averaging_is_not_centralized_sgd():
    """Negative controls: the distance grows like rate**2 and with the period."""
    slow, middle, fast = (
        largest_difference(rate=rate, average_every=2) for rate in (0.01, 0.1, 1.0)
    )
    assert slow > 1e-9
    assert 10 < middle / slow < 300
    assert middle < fast
    assert largest_difference(rate=0.1, average_every=10) > middle


def test_unequal_rates_are_not_centralized_sgd():
    assert largest_difference(rate=0.1, rates=[0.05, 0.1, 0.15, 0.1]) > 1e-3


def test_identical_agents_follow_one_agents_path():
    """Same data and start, everything global: plain SGD with the undivided rate."""
    network = (3, 5, 4, 2)
    scheme = Scheme((network,) * 4, (PartialModel(network, (0, 1, 2, 3)),))
    algorithm, _, _ = build(scheme, one_by_one=False)
    world = random_world(np.random.default_rng(0), 1, 3, 2)
    world = jax.tree.map(lambda leaf: np.repeat(leaf, 4, axis=0), world)
    state = algorithm.init(jax.random.key(0), world)
    alone = unstacked(state.variables.params)[0]
    for t in range(20):
        window = (t * 5 + np.arange(5)) % 12
        step = reference.gradient(
            alone,
            world.train.examples["x"][0, window].astype(float),
            world.train.examples["y"][0, window],
        )
        alone = reference.descend(alone, step, 0.5)
    state, _ = run_rounds(algorithm, state, world, 20)
    assert_networks_close(
        unstacked(state.variables.params), [alone] * 4, rtol=1e-4, atol=1e-5
    )


# --- The round as a program ----------------------------------------------------------


def test_traces_once_while_graphs_and_keys_change():
    graphs = averaging.metropolis_gossip(
        4, lambda rng: generators.random_regular(4, 2, seed=rng), rewire_every=1
    )
    scheme = SCHEME._replace(networks=((6, 5, 4, 3),) * 4)
    algorithm, _, task = build(scheme, real=graphs)
    traces = []

    def counted(*args):
        traces.append(None)
        return algorithm.round(*args)

    world = random_world(np.random.default_rng(0), 4, 6, 3)
    counting = algorithm._replace(round=counted)
    evaluate = on_test_sets(task)
    for seed in range(2):
        snapshots = list(
            simulate(
                jax.random.key(seed),
                counting,
                world,
                50,
                eval_every=10,
                evaluate=evaluate,
            )
        )
    assert [s.num_rounds for s in snapshots] == [10, 20, 30, 40, 50]
    assert len(traces) == 1


@pytest.mark.slow
def test_evaluation_points_change_nothing():
    algorithm, _, task = build(SCHEME, real=averaging.random_pairs(4))
    world = random_world(np.random.default_rng(0), 4, 6, 3)
    finals = []
    for eval_every in (3, 7):
        *_, last = simulate(
            jax.random.key(0),
            algorithm,
            world,
            7,
            eval_every=eval_every,
            evaluate=on_test_sets(task),
        )
        finals.append(jax.tree.map(np.asarray, last.state))
    jax.tree.map(np.testing.assert_array_equal, *finals)


@pytest.mark.slow
def test_vmaps_over_seeds():
    algorithm, _, _ = build(SCHEME)
    world = jax.tree.map(jnp.asarray, random_world(np.random.default_rng(0), 4, 6, 3))
    keys = jax.random.split(jax.random.key(0), 3)

    def run(key):
        state = algorithm.init(key, world)
        return algorithm.round(key, jnp.int32(0), (), state, world)[0]

    together = jax.jit(jax.vmap(run))(keys)
    run = jax.jit(run)
    for seed in range(3):
        alone = run(keys[seed])
        jax.tree.map(
            lambda many, one, seed=seed: np.testing.assert_allclose(
                many[seed], one, rtol=1e-5, atol=1e-6
            ),
            together,
            alone,
        )


def test_average_every_counts_messages_only_when_it_averages():
    algorithm, _, _ = build(SCHEME, average_every=3)
    world = random_world(np.random.default_rng(0), 4, 6, 3)
    state = algorithm.init(jax.random.key(0), world)
    sent = []
    for num_rounds in (1, 2, 3):
        info = run_rounds(algorithm, state, world, num_rounds)[1]
        sent.append(info.sent.tolist())
        assert info.examples.tolist() == [5] * 4  # the mini-batch
    assert sent == [[0] * 4, [0] * 4, [2, 2, 2, 1]]  # a message for each model


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="average_every of 1 or more, got 0"):
        build(SCHEME, average_every=0)
    with pytest.raises(InputError, match="drift_threshold of 0 or more, got -1"):
        build(SCHEME, drift_threshold=-1)
    with pytest.raises(InputError, match="batch size of 1 or more, got 0"):
        build(SCHEME, batch_size=0)
    with pytest.raises(InputError, match=r"agent_loop of -1 \(auto\)"):
        build(SCHEME, agent_loop=-2)[0].round(
            jax.random.key(0),
            jnp.int32(0),
            (),
            PartialAveragingState(Variables({}, {}), ()),
            random_world(np.random.default_rng(0), 4, 6, 3),
        )
    with pytest.raises(InputError, match="averaging of the 4 agents .* got one of 5"):
        build(SCHEME, real=averaging.server(5))
    with pytest.raises(InputError, match="an update_scale for each of 4 agents"):
        build(SCHEME, update_scale=np.ones(3))
    algorithm, _, task = build(SCHEME)
    world = random_world(np.random.default_rng(0), 3, 6, 3)
    with pytest.raises(InputError, match="as many agents in the data as in the scheme"):
        algorithm.init(jax.random.key(0), world)
    for num_rounds, eval_every, message in (
        (0, 1, "at least one round, got 0"),
        (1, 0, "eval_every of 1 or more, got 0"),
    ):
        with pytest.raises(InputError, match=message):
            simulate(
                jax.random.key(0),
                algorithm,
                world,
                num_rounds,
                eval_every=eval_every,
                evaluate=on_test_sets(task),
            )


def test_what_is_made_inside_of_a_trace_is_not_kept():
    """The front door makes the method when it first sees how many agents there are."""
    world = random_world(np.random.default_rng(0), 4, 6, 3)
    task = classification(mlp.MLP((4, 3)), (6,), losses.squared_error)
    scale = np.array([0, 1, 1, 1], np.float32)
    method = partial_averaging(
        task, optax.sgd(0.5), level(0.0), batch_size=5, update_scale=scale
    )
    start = jax.jit(method.init)(jax.random.key(0), world)
    state, _ = run_rounds(method, start, world, 1)
    kernels = (s.variables.params["layer_1"]["kernel"] for s in (start, state))
    has_moved = np.not_equal(*map(np.asarray, kernels)).any((1, 2))
    np.testing.assert_array_equal(has_moved, scale > 0)


class TestLocalEpochs:
    def build(self, updates, **options):
        task = classification(mlp.MLP((4, 3)), (6,), losses.squared_error)
        learner = per_sample(gradient_descent(task, optax.sgd(0.5)))
        return partial_averaging(
            task, learner, level(0.5), batch_size=5, local_updates=updates, **options
        )

    @pytest.mark.parametrize("agent_loop", [VMAP, slow(IN_PLACE)])
    @pytest.mark.parametrize("options", [{}, {"score_before": True}])
    def test_they_are_steps_where_all_have_as_many_examples(self, agent_loop, options):
        """12 examples are 3 mini-batches of 5, so 2 epochs are 6 steps."""
        world = random_world(np.random.default_rng(0), 4, 6, 3)
        results, infos = [], []
        for updates, num_rounds in ((epochs(2), 2), (steps(6), 12)):
            method = self.build(updates, agent_loop=agent_loop, **options)
            state = method.init(jax.random.key(0), world)
            state, info = run_rounds(method, state, world, num_rounds)
            results.append(method.models(state))
            infos.append(info)
        leaves = list(zip(*map(jax.tree.leaves, results), strict=True))
        assert len(leaves) >= 8
        for one, other in leaves:
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
        of_epochs, of_steps = infos
        np.testing.assert_array_equal(of_epochs.sent, of_steps.sent)
        assert of_epochs.steps.tolist() == [6] * 4
        assert of_epochs.examples.tolist() == [30] * 4

    def test_agents_with_more_examples_take_more_mini_batches(self):
        """Against a plain loop: nothing is shared, so each network is its own."""
        sizes = np.array([12, 4, 5, 11], np.int32)
        world = random_world(np.random.default_rng(0), 4, 6, 3)
        world = world._replace(train=world.train._replace(size=sizes))
        task = classification(mlp.MLP((4, 3)), (6,), losses.squared_error)
        learner = per_sample(gradient_descent(task, optax.sgd(0.5)))
        method = partial_averaging(
            task, learner, level(0.0), batch_size=5, local_updates=epochs(1)
        )
        state = method.init(jax.random.key(0), world)
        expected = unstacked(state.variables.params)
        state, info = run_rounds(method, state, world, 2)
        num_steps = -(-sizes // 5)
        assert info.steps.tolist() == num_steps.tolist() == [3, 1, 1, 3]
        for agent, size in enumerate(sizes):
            for step in range(2 * num_steps[agent]):
                window = (step * 5 + np.arange(5)) % size
                expected[agent] = reference.train_per_sample(
                    expected[agent],
                    world.train.examples["x"][agent, window].astype(float),
                    world.train.examples["y"][agent, window],
                    0.5,
                )
        found = unstacked(state.variables.params)
        assert_networks_close(found, expected, rtol=1e-5, atol=1e-5)

    def test_a_round_says_what_it_is(self):
        is_epochs = self.build(epochs(2)).round_is
        assert is_epochs == "2 local epochs of each agent and one averaging"
        assert "one averaging after 3 local steps" in self.build(steps(3)).round_is


def test_stacked_is_inverted_by_unstacked():
    params = {"layer_1": {"kernel": np.ones((2, 3, 4)), "bias": np.zeros((2, 4))}}
    jax.tree.map(np.testing.assert_array_equal, stacked(unstacked(params)), params)


REALISATIONS = {
    "server": averaging.server(4),
    "gossip": averaging.metropolis_gossip(4, generators.ring(4)),
    "pairs": averaging.random_pairs(4),
}


@pytest.mark.parametrize(
    "realisation",
    [
        pytest.param("server", marks=pytest.mark.slow),
        "gossip",
        pytest.param("pairs", marks=pytest.mark.slow),
    ],
)
def test_dynamic_averaging_without_a_limit_is_averaging(realisation):
    """Everybody has drifted by more than zero after a mini-batch."""
    world = random_world(np.random.default_rng(0), 4, 6, 3)
    results = []
    for limit in (None, 0.0):
        algorithm, _, _ = build(
            SCHEME, real=REALISATIONS[realisation], drift_threshold=limit
        )
        inputs = algorithm.plan(np.random.default_rng(3), world, 4)
        state = algorithm.init(jax.random.key(0), world)
        state, info = run_rounds(algorithm, state, world, 4, inputs)
        results.append((state.variables, info))
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_dynamic_averaging_asks_model_by_model():
    """The drift of one model does not exchange another that stood still."""
    scheme = Scheme(
        ((6, 4, 3),) * 4,
        (PartialModel((6, 2, 3), (0, 1, 2, 3)), PartialModel((0, 2, 0), (0, 1))),
    )
    algorithm, sharing, _ = build(scheme)
    world = random_world(np.random.default_rng(0), 4, 6, 3)
    shapes = jax.eval_shape(algorithm.init, jax.random.key(0), world).variables
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes.params)
    small = next(c for c in sharing.plan.classes if 1 in c.owner)
    moved = jax.tree.leaves(params)
    for block in small.blocks:  # only what the second model owns, only in agent 0
        at = (0, *map(slice, block.start, block.stop))
        moved[block.leaf] = moved[block.leaf].at[at].set(1.0)
    moved = jax.tree.unflatten(jax.tree.structure(params), moved)
    asking = drift.requests(moved, params, sharing.plan, 0.5)
    for owner_class in sharing.plan.classes:
        expected = (owner_class.owner == 1) & (np.arange(4) == 0)
        assert asking(owner_class.owner).tolist() == expected.tolist()


def test_dynamic_averaging_exchanges_what_drifted():
    """The exact mean of a group when one member left its ball; plain numpy beside."""
    num_agents, limit = 4, 0.02
    scheme = Scheme(
        ((6, 4, 3),) * num_agents,
        (PartialModel((6, 2, 3), (0, 1)), PartialModel((6, 2, 3), (2, 3))),
    )
    algorithm, sharing, _ = build(scheme, drift_threshold=limit, average_every=2)
    alone, _, _ = build(Scheme(scheme.networks))
    world = random_world(np.random.default_rng(1), num_agents, 6, 3)
    # Agents 2 and 3 learn slowly, so that their group drifts later.
    world.train.examples["x"][2:] *= 0.1
    state = algorithm.init(jax.random.key(0), world)
    shapes = jax.tree.map(lambda p: p[0], state.variables.params)
    owned = jax.tree.map(
        lambda o: o >= 0, owner_classes.owner_arrays(sharing.plan, shapes)
    )
    reference_params = jax.tree.map(np.asarray, state.variables.params)
    variables = state.variables
    events = []
    for t in range(12):
        state, info = jax.jit(algorithm.round)(
            jax.random.key(t), jnp.int32(t), (), state, world
        )
        variables = run_round(alone, variables, world, t)
        params = jax.tree.map(np.array, variables.params)
        sent = np.zeros(num_agents)
        if t % 2 == 1:
            drifted = sum(
                (np.square(p - r) * has).reshape(num_agents, -1).sum(1)
                for p, r, has in zip(
                    *map(jax.tree.leaves, (params, reference_params, owned)),
                    strict=True,
                )
            )
            for pair in ([0, 1], [2, 3]):
                if (drifted[pair] > limit).any():
                    sent[pair] = 1

                    def exchange(p, r, has, pair=pair):
                        mean = p[pair].mean(0, keepdims=True)
                        p[pair] = np.where(has[pair], mean, p[pair])
                        r[pair] = np.where(has[pair], p[pair], r[pair])

                    reference_params = jax.tree.map(np.array, reference_params)
                    jax.tree.map(exchange, params, reference_params, owned)
        events.append(sent)
        variables = Variables(jax.tree.map(jnp.asarray, params), variables.stats)
        np.testing.assert_array_equal(info.sent, sent)
        size = 6 * 2 + 2 + 2 * 3 + 3
        np.testing.assert_array_equal(info.payload, sent * size)
        for one, other in zip(
            *map(jax.tree.leaves, (state.variables.params, params)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    exchanges = np.asarray(events).sum(0)
    assert 0 < exchanges[2] < exchanges[0] <= 6  # both cases happened


def with_thresholds(scheme, *limits):
    """The scheme, whose models have thresholds of their own."""
    models = (
        model._replace(drift_threshold=limit)
        for model, limit in zip(scheme.models, limits, strict=True)
    )
    return scheme._replace(models=tuple(models))


def rounds_of_drift(scheme, limit, **options):
    """All states' models, and messages of each round; counts by model or None."""
    algorithm, sharing, _ = build(scheme, drift_threshold=limit, **options)
    world = random_world(np.random.default_rng(1), 4, 6, 3)
    state = algorithm.init(jax.random.key(0), world)
    step, params, infos = jax.jit(algorithm.round), [], []
    for t in range(6):
        state, info = step(jax.random.key(t), jnp.int32(t), (), state, world)
        params.append(jax.tree.leaves(state.variables.params))
        infos.append(info)
    return sharing, params, infos


def test_one_threshold_is_the_same_threshold_of_each_model():
    """Given as a list, or in the scheme; then messages are counted by model."""
    limit = 0.05
    _, params, infos = rounds_of_drift(SCHEME, limit)
    sent = np.stack([info.sent for info in infos])
    assert 0 < sent.sum() < 6 * (4 + 3)  # some exchanges took place, not all
    for scheme, given in (
        (SCHEME, (limit, limit)),
        (with_thresholds(SCHEME, limit, limit), None),
        (with_thresholds(SCHEME, None, limit), limit),
    ):
        _, same, counted = rounds_of_drift(scheme, given)
        for one, other in zip(params, same, strict=True):
            jax.tree.map(np.testing.assert_array_equal, one, other)
        for info, own in zip(infos, counted, strict=True):
            assert info.models is None
            np.testing.assert_array_equal(info.sent, own.sent)
            np.testing.assert_array_equal(info.payload, own.payload)
            np.testing.assert_array_equal(own.models.messages.sum(1), info.sent)
            np.testing.assert_array_equal(own.models.payload.sum(1), info.payload)


@pytest.mark.parametrize(
    ("limits", "given"),
    [((None, None), (1e9, 0.0)), ((None, None), (0.0, 1e9)), ((1e9, None), None)],
)
def test_a_model_whose_threshold_is_huge_stands_still(limits, given):
    """It is never exchanged, the other one in every round."""
    still = 0 if 1e9 in (limits[0], (given or (0,))[0]) else 1
    sharing, params, infos = rounds_of_drift(with_thresholds(SCHEME, *limits), given)
    wanted = np.zeros((4, 2))
    wanted[:, 1 - still] = [1, 1, 1, 0] if still == 0 else 1
    for info in infos:
        np.testing.assert_array_equal(info.models.messages, wanted)
        np.testing.assert_array_equal(info.sent, wanted.sum(1))
        assert (info.models.payload[:, still] == 0).all()
    for owner, blocks in sharing.plan.classes:
        for model in (0, 1):
            members = np.flatnonzero(owner == model)
            for leaf, start, stop in blocks if len(members) > 1 else ():
                at = (members, *map(slice, start, stop))
                own = np.asarray(params[-1][leaf])[at].reshape(len(members), -1)
                alike = np.allclose(own, own[:1], atol=1e-6)
                assert alike == (model != still)


def test_thresholds_that_do_not_fit_are_refused():
    own = with_thresholds(SCHEME, 0.1, None)
    pair = Scheme(
        ((6, 4, 4, 3),) * 4,
        (
            PartialModel((6, 2, 2, 3), (0, 1, 2, 3)),
            PartialModel((0, 2, 2, 0), (0, 1, 2, 3)),
        ),
        cross_model=True,
    )
    for scheme, given, said in (
        (SCHEME, (0.1,), r"one for each of 2 models none of which has .* got \(0.1,\)"),
        (SCHEME, (0.1, -1.0), "drift_threshold of 0 or more, got"),
        (SCHEME, (0.1, float("nan")), "drift_threshold of 0 or more, got"),
        (own, (0.1, 0.2), r"none of which has its own, .* models with \(0.1, None\)"),
        (with_thresholds(SCHEME, 0.1, -1.0), None, "0 or more of model 1, got -1"),
        (pair, (0.1, 0.2), r"the same drift_threshold .*\(cross_model\)"),
    ):
        with pytest.raises(InputError, match=said):
            build(scheme, drift_threshold=given)
    build(pair, drift_threshold=(0.1, 0.1))
    alone = SCHEME._replace(models=(PartialModel((6, 2, 2, 3), (0,)),), depends=())
    with pytest.raises(InputError, match="a model with a drift_threshold of its own"):
        build(with_thresholds(alone, 0.1))


def run_round(algorithm, variables, world, t):
    """One round of plain local training."""
    state = algorithm.init(jax.random.key(0), world)._replace(variables=variables)
    step = jax.jit(algorithm.round)
    return step(jax.random.key(t), jnp.int32(t), (), state, world)[0].variables


def test_dynamic_gossip_uses_links_that_one_end_asked_for():
    ring = generators.ring(6)
    asking = jnp.asarray([True, False, False, False, False, False])
    used = averaging.metropolis_gossip(6, ring).restrict_to_requests(ring, asking)
    owner = np.zeros(6, int)
    linked = np.asarray(averaging.metropolis_gossip(6, ring).links(used, owner))
    np.testing.assert_array_equal(linked.sum(1), [2, 1, 0, 0, 0, 1])
    partner = jnp.asarray([1, 0, 3, 2, 5, 4], jnp.int32)
    pairs = averaging.random_pairs(6)
    asking = jnp.asarray([False, True, False, False, False, False])
    np.testing.assert_array_equal(
        pairs.restrict_to_requests(partner, asking), [1, 0, 2, 3, 4, 5]
    )
