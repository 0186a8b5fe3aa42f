"""Partial averaging of networks that others wrote, without a wiring."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import networks_of_others as others
import numpy as np
import optax
import pytest
from test_network_cells import OTHERS, floats

import p2pjax as pj
from p2pjax.exchange import mixing
from p2pjax.partial import sharing as partial_sharing
from p2pjax.partial.views import restored, viewed
from p2pjax.paths import leaves_with_paths
from p2pjax.tasks.task import Task, shapes_of

KEY = jax.random.key(0)
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


def bare_task(network, x):
    made = pj.tasks.network.as_network(network, x)
    return Task(made.init, None, None, network=made, example=x)


def random_like(rng, shapes, *agents):
    def draw(leaf):
        return (rng.normal(size=(*agents, *leaf.shape)) * 0.5).astype(leaf.dtype)

    return jax.tree.map(draw, shapes)


@pytest.mark.parametrize(
    "name", ["MNIST CNN", "transformer", "NNX LSTM", "concatenation", "fused heads"]
)
def test_a_level_averages_where_all_units_are_shared(name):
    """Of each leaf the columns of the first units, wherever these lie."""
    network, x, _ = OTHERS[name]
    found, task = pj.partial.cells_of(network, x), bare_task(network, x)
    scheme = pj.partial.level(0.5)(found.layout, 3)
    sharing = pj.partial.compile_scheme(scheme, found, task)
    shapes = shapes_of(task).params
    params = random_like(np.random.default_rng(1), shapes, 3)

    def mix(params):
        pieces = viewed(params, found.views, is_stacked=True)
        mixed = mixing.mix(pieces, sharing.plan, mixing.by_group_mean)
        return restored(mixed, shapes, found.views, is_stacked=True)

    mixed = quick_jit(mix)(params)
    is_local = {
        f"params/{path}": np.zeros(leaf.shape, bool)
        for path, leaf in leaves_with_paths(shapes)
    }
    for group in found.groups:
        if group.part is not None and 0 < group.part < len(found.layout) - 1:
            for place in group.places:
                if place.leaf in is_local:
                    own = place.columns[round(0.5 * group.size) :]
                    is_local[place.leaf].swapaxes(0, place.axis)[own.ravel()] = True
    counts = [0, 0]
    for (path, leaf), new in zip(
        leaves_with_paths(params), jax.tree.leaves(mixed), strict=True
    ):
        local = is_local[f"params/{path}"]
        expected = np.where(local, leaf, leaf.mean(0, keepdims=True))
        np.testing.assert_allclose(new, expected, atol=1e-6, err_msg=path)
        counts[0] += int(local.sum())
        counts[1] += int((~local).sum())
    assert min(counts) > 20


def random_data(shape, num_classes=3, size=8, num_agents=2, dtype=np.float32):
    rng = np.random.default_rng(2)
    if dtype == np.float32:
        x = rng.normal(size=(num_agents, size, *shape)).astype(dtype)
    else:
        x = rng.integers(0, 8, (num_agents, size, *shape)).astype(dtype)
    y = rng.integers(0, num_classes, (num_agents, size)).astype(np.int32)
    split = pj.Split({"x": x, "y": y}, np.full(num_agents, size, np.int32))
    return pj.FederatedData(split, split, split, np.zeros(num_agents, np.int32))


def after_rounds(method, data, params, num_rounds=2):
    """Parameters after a few rounds from these."""
    state = method.init(KEY, data)
    variables = state.variables._replace(params=jax.tree.map(jnp.asarray, params))
    state = state._replace(variables=variables)
    inputs = method.plan(np.random.default_rng(0), data, num_rounds)
    device = jax.tree.map(jnp.asarray, data)
    one_round = quick_jit(method.round)
    for t in range(num_rounds):
        now = jax.tree.map(lambda leaf, t=t: jnp.asarray(leaf)[t], inputs)
        state, info = one_round(
            jax.random.fold_in(KEY, t), jnp.int32(t), now, state, device
        )
    return jax.tree.map(np.asarray, state.variables.params), info


def own_mlp(units=6, activation=nn.sigmoid):
    return nn.Sequential([nn.Dense(units), activation, nn.Dense(3)])


def test_an_own_mlp_learns_what_the_packages_does():
    data = random_data((5,))
    params = random_like(
        np.random.default_rng(3),
        shapes_of(pj.classification(own_mlp(), data)).params,
        2,
    )
    theirs = {"layer_1": params["layers_0"], "layer_2": params["layers_2"]}
    runs = [
        after_rounds(
            pj.partial_averaging(
                pj.classification(network, data),
                optax.sgd(0.3, momentum=0.9),
                pj.partial.level(0.5),
                batch_size=4,
            ),
            data,
            start,
        )
        for network, start in ((own_mlp(), params), (pj.nn.MLP((6, 3)), theirs))
    ]
    (own, own_info), (known, info) = runs
    for layer, name in (("layers_0", "layer_1"), ("layers_2", "layer_2")):
        for leaf in ("kernel", "bias"):
            np.testing.assert_allclose(own[layer][leaf], known[name][leaf], atol=1e-6)
    np.testing.assert_array_equal(own_info.payload, info.payload)
    assert np.abs(own["layers_0"]["kernel"] - params["layers_0"]["kernel"]).max() > 0.01


FEWER = {  # how to make it, and the part whose units agents lack
    "dense": (own_mlp, 1, (5,), np.float32, ()),
    "conv": (
        lambda channels=5: others.MnistCNN((channels, 4), 6, nn.sigmoid),
        1,
        (8, 8, 1),
        np.float32,
        "slow",
    ),
    "lstm": (lambda units=6: others.LSTM(units), 1, (5, 4), np.float32, "slow"),
    "heads": (
        lambda heads=3: others.Transformer(heads=heads),
        1,
        (6,),
        np.int32,
        "slow",
    ),
    "units": (
        lambda units=10: others.Transformer(units=units),
        2,
        (6,),
        np.int32,
        "slow",
    ),
}


@pytest.mark.parametrize(
    ("make", "part", "shape", "dtype"),
    [
        pytest.param(*case[:4], id=name, marks=pytest.mark.slow if case[4] else ())
        for name, case in FEWER.items()
    ],
)
def test_an_agent_with_fewer_units_is_a_smaller_network(make, part, shape, dtype):
    """Its steps too, also where they depend on the norm of all gradients."""
    data = random_data(shape, dtype=dtype)
    task = pj.classification(make(), data)
    found = pj.partial.cells_of(task.network, task.example)
    size = found.layout[part] - 1
    less = (*found.layout[:part], size, *found.layout[part + 1 :])
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.01))

    def method(task, networks):
        return pj.partial_averaging(
            task,
            optimizer,
            pj.partial.Scheme(networks),
            batch_size=4,
            local_updates=pj.epochs(1),
        )

    (group,) = (group for group in found.groups if group.part == part)

    def absent(leaf):
        """Columns along axes of a leaf `[N, ...]` that belong to the last unit."""
        return [
            (place.axis + 1, place.columns[size:].ravel())
            for place in group.places
            if place.leaf == f"params/{leaf}"
        ]

    def cut(params):
        leaves = []
        for path, leaf in leaves_with_paths(params):
            for axis, columns in absent(path):
                leaf = np.delete(leaf, columns, axis)
            leaves.append(leaf)
        return jax.tree.unflatten(jax.tree.structure(params), leaves)

    def silenced(params):
        leaves = []
        for path, leaf in leaves_with_paths(params):
            for axis, columns in absent(path):
                leaf.swapaxes(1, axis)[1, columns] = 0
            leaves.append(leaf)
        return jax.tree.unflatten(jax.tree.structure(params), leaves)

    params = silenced(random_like(np.random.default_rng(4), shapes_of(task).params, 2))
    actual, _ = after_rounds(method(task, (found.layout, less)), data, params)
    small = pj.classification(make(size), data)
    expected, _ = after_rounds(method(small, (less, less)), data, cut(params))
    pairs = zip(leaves_with_paths(cut(actual)), jax.tree.leaves(expected), strict=True)
    for (path, new), old in pairs:
        if "key/bias" in path:  # softmax ignores it, so Adam follows rounding errors
            continue
        np.testing.assert_allclose(new[1], old[1], atol=1e-5, err_msg=path)
    kept = silenced(jax.tree.map(np.array, actual))
    jax.tree.map(np.testing.assert_array_equal, kept, actual)
    moved = zip(*map(jax.tree.leaves, (actual, params)), strict=True)
    assert max(np.abs(new - old)[1].max() for new, old in moved) > 1e-3


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (pj.nn.MLP((6, 5, 3)), (5,)),
        pytest.param(
            pj.nn.CNN((3,), (5,), 3, kernel_size=3), (8, 8, 2), marks=pytest.mark.slow
        ),
    ],
    ids=["mlp", "cnn"],
)
def test_masking_updates_equals_masks_inside_of_layers(network, shape):
    """To 1e-6: absent cells that are silenced, and those whose parameters stay 0."""
    data = random_data(shape)
    task = pj.classification(network, data)
    found = pj.partial.cells_of(task.network, task.example)
    less = (found.layout[0], found.layout[1] - 1, found.layout[2] - 2, 3)
    shared = (found.layout[0], 2, 2, 3)
    scheme = pj.partial.Scheme(
        (found.layout, less), (pj.partial.PartialModel(shared, (0, 1)),)
    )
    results = []
    for one in (task, task._replace(wiring=None)):
        method = pj.partial_averaging(
            one,
            optax.sgd(0.3, momentum=0.9),
            scheme,
            batch_size=4,
            local_updates=pj.epochs(1),
        )
        state = method.init(KEY, data)
        assert ("cells" in state.variables.stats) == (one is task)
        results.append(after_rounds(method, data, state.variables.params)[0])
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def compiled(network, x, networks):
    task = bare_task(network, x)
    found = pj.partial.cells_of(task.network, x)
    return pj.partial.compile_scheme(pj.partial.Scheme(networks), found, task)


class TestUnitsThatCannotBeAbsent:
    def test_a_mean_runs_over_them(self):
        network, x = others.Normalised(), floats(5)
        with pytest.raises(pj.InputError, match=r"Need all 6 units of part 1") as told:
            compiled(network, x, ((5, 6, 5, 3), (5, 4, 5, 3)))
        assert "reduce_sum" in str(told.value)
        sharing = compiled(network, x, ((5, 6, 5, 3), (5, 6, 4, 3)))
        assert sharing.masks_updates and not sharing.gives_masks

    def test_outputs(self):
        with pytest.raises(pj.InputError, match="Need all inputs and outputs"):
            compiled(own_mlp(), floats(5), ((5, 6, 3), (5, 6, 2)))

    def test_all_of_a_part(self):
        with pytest.raises(pj.InputError, match="got none of part 1 in agents"):
            compiled(own_mlp(), floats(5), ((5, 6, 3), (5, 0, 3)))

    def test_units_that_act_without_parameters(self):
        def apply(params, x):
            hidden = jax.nn.sigmoid(x @ params["first"])
            return hidden @ jax.nn.softplus(params["second"])  # 0 is not 0

        network = pj.Network(
            lambda key: {"first": jnp.ones((5, 6)), "second": jnp.ones((6, 3))}, apply
        )
        with pytest.raises(pj.InputError, match="have no say where"):
            compiled(network, floats(5), ((5, 6, 3), (5, 4, 3)))


def test_a_parameter_of_all_cells_is_shared_with_all_of_them():
    network, x = others.PReluMLP(), floats(5)
    task, found = bare_task(network, x), pj.partial.cells_of(network, x)
    assert found.wiring["PReLU_0/negative_slope"] == ()
    for share, size in ((1.0, 1), (0.5, 0), (0.0, 0)):
        scheme = pj.partial.level(share)(found.layout, 2)
        plan = pj.partial.compile_scheme(scheme, found, task).plan
        shared = [c for c in plan.classes if c.is_shared]
        slopes = [b for c in shared for b in c.blocks if b.start == ()]
        assert len(slopes) == size


def test_a_network_is_traced_once_and_not_at_construction(monkeypatch):
    calls = []
    found = pj.partial.cells_of

    def counted(*args):
        calls.append(args)
        return found(*args)

    monkeypatch.setattr(partial_sharing, "cells_of", counted)
    data = random_data((5,))
    task = pj.classification(own_mlp(), data)
    method = pj.partial_averaging(
        task, optax.sgd(0.1), pj.partial.level(0.8), batch_size=4
    )
    assert not calls
    state = method.init(KEY, data)
    inputs = method.plan(np.random.default_rng(0), data, 1)
    jax.eval_shape(
        method.round,
        KEY,
        jnp.int32(0),
        jax.tree.map(lambda leaf: leaf[0], inputs),
        state,
        data,
    )
    assert len(calls) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"drift_threshold": 0.1},
        {"score_before": True},
        {"channel": pj.channel.quantize(8)},
        {"channel": pj.channel.drop(0.3), "averaging": pj.partial.random_pairs},
        {"attack": pj.attacks.sign_flip(byzantine=(0,))},
    ],
    ids=lambda options: "-".join(options),
)
def test_leaves_in_pieces_go_through_every_exchange(options):
    """The state keeps the shapes that the network has."""
    data = random_data((6, 6, 2), num_agents=4)
    task = pj.classification(others.Skipping(), data)
    method = pj.partial_averaging(
        task, optax.sgd(0.1), pj.partial.level(0.5), batch_size=4, **options
    )
    state = jax.eval_shape(lambda: method.init(KEY, data))
    inputs = method.plan(np.random.default_rng(0), data, 1)
    now = jax.tree.map(lambda leaf: leaf[0], inputs)
    after, _ = jax.eval_shape(method.round, KEY, jnp.int32(0), now, state, data)

    def shapes(tree):
        return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)

    assert shapes(after) == shapes(state)
    reported = jax.eval_shape(method.models, state).reported
    kernel = reported.params["Conv_2"]["kernel"]
    assert kernel.shape == (4, 1, 1, 9, 6)


def test_tasks_without_a_network_need_a_wiring():
    bare = Task(lambda key: None, None, None)
    with pytest.raises(pj.InputError, match="Need to know the cells"):
        pj.partial_averaging(bare, optax.sgd(0.1), pj.partial.level(0.8), batch_size=4)


def test_tasks_of_texts_have_cells():
    encoder = pj.nn.Encoder(20, 8, num_heads=(2,), mlp_dim=(6,), head_dim=4)
    task = pj.masked_token(encoder, length=5, mask_id=1)
    found = pj.partial.cells_of(task.network, task.example)
    assert found.layout == (8, 2, 6, 20)
    task = pj.next_token(pj.nn.NextWord(20, 4, 5, 6), 7)
    assert pj.partial.cells_of(task.network, task.example).wiring == task.wiring
