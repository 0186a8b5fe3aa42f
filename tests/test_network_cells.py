"""`cells_of`: the units of any network, found by tracing it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import networks_of_others as others
import numpy as np
import pytest

import p2pjax as pj
from p2pjax.nn import batch_norm_cnn, cnn, encoder, gru, lstm, mlp
from p2pjax.partial import symmetry
from p2pjax.partial.network_cells import moved
from p2pjax.partial.tracing.terms import (
    Cat,
    Prod,
    Var,
    columns_of,
    reshaped,
    resolved,
    unify,
)
from p2pjax.partial.views import restored, viewed
from p2pjax.tasks.task import Task


def floats(*shape):
    return jax.ShapeDtypeStruct((1, *shape), np.dtype(np.float32))


TOKENS = jax.ShapeDtypeStruct((1, 6), np.dtype(np.int32))


def token_model(num_segments):
    body = encoder.Encoder(11, 12, (3, 2), (10, 9), 4, num_segments=num_segments)
    return encoder.TokenModel(body, encoder.TokenHead(5))


PACKAGE = {
    "mlp": (mlp.MLP((9, 7, 4)), floats(4, 4, 3), mlp.wiring(3)),
    "mlp, one output": (mlp.MLP((9, 1)), floats(6), mlp.wiring(2)),
    "mlp, one unit": (mlp.MLP((1, 4)), floats(6), mlp.wiring(2)),
    **{
        f"cnn, {name}": (module, x, cnn.wiring(module))
        for name, module, x in [
            ("code", cnn.cifar_cnn_code(), floats(32, 32, 3)),
            ("table", cnn.cifar_cnn_table(), floats(32, 32, 3)),
            ("points", cnn.CNN((9, 10), (13,), 5, kernel_size=3), floats(16, 16, 8)),
            ("sine", cnn.CNN((4,), (13,), 5, activation=jnp.sin), floats(16, 16, 3)),
            ("one channel", cnn.CNN((6,), (20,), 10), floats(28, 28, 1)),
            ("no channels", cnn.CNN((6,), (20,), 10), floats(28, 28)),
            ("no dense layer", cnn.CNN((4,), (), 5), floats(16, 16, 3)),
        ]
    },
    **{
        f"batch norm cnn {dense}": (module, x, batch_norm_cnn.wiring(module))
        for dense in ((), (7,))
        for module, x in [
            (batch_norm_cnn.BatchNormCNN((8, 4), dense, 10), floats(8, 8, 1))
        ]
    },
    **{
        f"gru, batch norm {norm}, affine {affine}": (module, TOKENS, gru.wiring(module))
        for norm, affine in ((False, False), (True, False), (True, True))
        for module in [gru.NextWord(11, 6, 7, 8, norm, affine)]
    },
    "lstm": (
        lstm.SequenceClassifier(11, 6, 7, 4),
        TOKENS,
        lstm.wiring(lstm.SequenceClassifier(11, 6, 7, 4)),
    ),
    **{
        f"encoder, {segments} segments": (module, TOKENS, encoder.wiring(module))
        for segments in (0, 2)
        for module in [token_model(segments)]
    },
}


@pytest.mark.parametrize(("network", "x", "wiring"), PACKAGE.values(), ids=PACKAGE)
def test_networks_of_the_package_have_the_wiring_written_by_hand(network, x, wiring):
    found = pj.partial.cells_of(network, x)
    assert found.wiring == wiring
    assert not found.views
    assert len(found.layout) == 1 + max(
        p for axes in wiring.values() for p in axes if p
    )


OTHERS = {
    "MNIST CNN": (others.MnistCNN((4, 5), 7), floats(12, 12, 1), (1, 4, 5, 7, 10)),
    "ResNet": (others.ResNet(), floats(8, 8, 3), (3, 6, 7, 13, 12, 4)),
    "transformer": (others.Transformer(), TOKENS, (8, 3, 10, 5)),
    "LSTM": (others.LSTM(), floats(5, 4), (4, 6, 3)),
    "NNX MLP": (others.NnxMLP, floats(5), (5, 9, 7, 3)),
    "NNX LSTM": (others.NnxLSTM, floats(5, 4), (4, 6, 3)),
    "concatenation": (others.Skipping(), floats(6, 6, 2), (2, 4, 5, 6, 3)),
    "fused heads": (others.Fused(), floats(5, 4), (4, 8, 2, 5, 3)),
    "plain functions": (others.plain_mlp(), floats(5), (5, 6, 3)),
}
LARGER = {
    "MNIST CNN": (others.MnistCNN(), floats(28, 28, 1), (1, 32, 64, 256, 10)),
    "ResNet": (others.ResNet(32), floats(32, 32, 3), (3, 32, 33, 65, 64, 4)),
    "transformer": (others.Transformer(128, 8, 512), TOKENS, (128, 8, 512, 5)),
}
# A key bias adds the same to all scores of a query: softmax ignores it.
IGNORED = "key/bias"


def assert_permutable(network, x, layout):
    """Reordering a group leaves the outputs; reordering it in one leaf alone does not.

    Also the groups inside of others, such as the dimensions of heads.
    """
    found = pj.partial.cells_of(network, x)
    assert found.layout == layout
    made = pj.tasks.network.as_network(network, x)
    leaves, outputs = symmetry._tried(made, x)
    rng = np.random.default_rng(3)
    expected = np.asarray(outputs(leaves))
    largest = np.abs(expected).max()
    parts = set()
    for group in found.groups:
        if group.fixed_by or group.size < 2:
            continue
        parts.add(group.part)
        order = np.roll(rng.permutation(group.size), 1)
        actual = outputs(moved(leaves, group, order))
        np.testing.assert_allclose(actual, expected, atol=2e-5 * largest)
        held = {place.leaf for place in group.places}
        for leaf in held if len(held) > 1 else ():
            own = [place for place in group.places if place.leaf == leaf]
            one = group._replace(places=tuple(own))
            order = np.roll(np.arange(group.size), 1)
            change = np.abs(outputs(moved(leaves, one, order)) - expected).max()
            assert change > 1e-4 * largest or IGNORED in leaf, leaf
    first = 1 if any(g.part == 0 and g.fixed_by for g in found.groups) else 0
    assert parts - {None} == set(range(first, len(layout) - 1))


@pytest.mark.parametrize(("network", "x", "layout"), OTHERS.values(), ids=OTHERS)
def test_units_of_networks_of_others_may_be_reordered(network, x, layout):
    assert_permutable(network, x, layout)


@pytest.mark.slow
@pytest.mark.parametrize(("network", "x", "layout"), LARGER.values(), ids=LARGER)
def test_units_of_larger_networks_may_be_reordered(network, x, layout):
    assert_permutable(network, x, layout)


def test_a_flatten_gates_and_skips_have_views():
    found = pj.partial.cells_of(*OTHERS["MNIST CNN"][:2])
    assert found.wiring["Dense_0/kernel"] == (None, 2, 3)
    assert [piece.shape for piece in found.views["Dense_0/kernel"]] == [(9, 5, 7)]
    found = pj.partial.cells_of(*OTHERS["NNX LSTM"][:2])
    assert found.wiring["rnn/cell/dense_h/kernel"] == (1, None, 1)
    found = pj.partial.cells_of(*OTHERS["concatenation"][:2])
    assert found.wiring["Conv_2/kernel/0"] == (None, None, 1, 3)
    assert found.wiring["Conv_2/kernel/1"] == (None, None, 2, 3)
    found = pj.partial.cells_of(*OTHERS["fused heads"][:2])
    assert found.wiring["Dense_1/kernel"] == (1, None, 2, None)


def test_residual_sums_normalisation_and_statistics_belong_to_their_units():
    found = pj.partial.cells_of(*OTHERS["ResNet"][:2])
    (stem,) = (group for group in found.groups if group.part == 1)
    held = {place.leaf for place in stem.places}
    assert {"params/Conv_0/kernel", "params/Conv_2/kernel"} <= held
    assert {"params/BatchNorm_0/scale", "batch_stats/BatchNorm_0/mean"} <= held
    assert not stem.mixed_by
    found = pj.partial.cells_of(*OTHERS["transformer"][:2])
    (stream,) = (group for group in found.groups if group.part == 0)
    assert "reduce_sum" in stream.mixed_by
    heads = next(n for n, group in enumerate(found.groups) if group.part == 1)
    dimensions = [group for group in found.groups if group.inside == heads]
    assert [group.size for group in dimensions] == [4, 4]


@pytest.mark.parametrize("name", ["MNIST CNN", "concatenation", "fused heads"])
@pytest.mark.parametrize("is_stacked", [False, True])
def test_a_view_is_undone(name, is_stacked):
    network, x, _ = OTHERS[name]
    views = pj.partial.cells_of(network, x).views
    shapes = jax.eval_shape(
        lambda: network.init(jax.random.key(0), jnp.zeros(x.shape, x.dtype))
    )["params"]
    rng = np.random.default_rng(4)
    agents = (2,) if is_stacked else ()
    params = jax.tree.map(
        lambda s: rng.normal(size=(*agents, *s.shape)).astype(s.dtype), shapes
    )
    changed = viewed(params, views, is_stacked=is_stacked)
    back = restored(changed, shapes, views, is_stacked=is_stacked)
    jax.tree.map(np.testing.assert_array_equal, back, params)
    of_shapes = jax.tree.leaves(viewed(shapes, views))
    assert [leaf.shape[len(agents) :] for leaf in jax.tree.leaves(changed)] == [
        leaf.shape for leaf in of_shapes
    ]


class Between(nn.Module):
    """An operation between two layers."""

    operation: object

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(self.operation(nn.relu(nn.Dense(8)(x))))


ORDER = np.random.default_rng(5).permutation(8)
MATRIX = np.random.default_rng(6).normal(size=(8, 4)).astype(np.float32)
UNKNOWN = {
    "cumsum": lambda h: jnp.cumsum(h, -1),
    "sort": lambda h: jnp.sort(h, -1),
    "fft": lambda h: jnp.abs(jnp.fft.fft(h)),
    "gather": lambda h: h[:, ORDER],
    "reshape": lambda h: h[:, :6].reshape(-1, 2, 3).reshape(-1, 3, 2).sum(1),
    "top_k": lambda h: jax.lax.top_k(h, 4)[0],
    "conv_general_dilated": lambda h: nn.Conv(2, (3,))(h[..., None])[..., 0],
    "a slice": lambda h: h + jnp.roll(h, 1, -1),
    "argmax": lambda h: h * h.argmax(-1, keepdims=True).astype(h.dtype),
    "rev": lambda h: h + h[:, ::-1],
    "slice": lambda h: h[:, ::2],
    "scatter": lambda h: h.at[:, 0].set(0.0),
    "dot_general": lambda h: h @ MATRIX,
    "dynamic_slice": lambda h: jax.lax.dynamic_slice_in_dim(
        h, h[0, 0].astype(int), 4, 1
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_operation_that_cannot_be_followed_is_named(name):
    with pytest.raises(pj.InputError, match="treat the units of a layer alike") as told:
        pj.partial.cells_of(Between(UNKNOWN[name]), floats(5))
    assert f"go through {name}" in str(told.value)
    inside_flax = ("conv_general_dilated", "a slice")
    assert name in inside_flax or "test_network_cells.py" in str(told.value)


FOLLOWED = {
    "gated unit": (lambda h: nn.glu(h), (5, 4, 3)),
    "maxout": (lambda h: h.reshape(-1, 4, 2).max(-1), (5, 4, 3)),
    "softmax": (nn.softmax, (5, 8, 3)),
    "tile": (lambda h: jnp.tile(h, 2), (5, 8, 3)),
    "repeat": (lambda h: jnp.repeat(h, 2, axis=-1), (5, 8, 3)),
    "outer product": (
        lambda h: (h[:, :, None] * h[:, None]).reshape(-1, 64),
        (5, 8, 3),
    ),
    "loop": (
        lambda h: jax.lax.fori_loop(0, 3, lambda i, h: jnp.tanh(h), h),
        (5, 8, 3),
    ),
    "cond": (lambda h: jax.lax.cond(h.sum() > 0, jnp.sin, jnp.cos, h), (5, 8, 3)),
    "remat": (jax.checkpoint(jnp.sin), (5, 8, 3)),
}


@pytest.mark.parametrize(("operation", "layout"), FOLLOWED.values(), ids=FOLLOWED)
def test_operations_that_treat_units_alike_are_followed(operation, layout):
    assert_permutable(Between(operation), floats(5), layout)


def test_units_told_apart_by_a_constant_are_shared_by_index():
    found = pj.partial.cells_of(Between(lambda h: h + jnp.arange(8.0)[None]), floats(5))
    assert found.layout == (5, 8, 3)
    (hidden,) = (group for group in found.groups if group.part == 1)
    assert set(hidden.fixed_by) == {"a constant"}


def test_ops_on_the_input_and_one_hot_vectors_are_inputs():
    class Looks(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = jnp.cumsum(jnp.sort(x, -1), -1)[:, ::-1]
            return nn.Dense(3)(nn.relu(nn.Dense(6)(x)))

    assert pj.partial.cells_of(Looks(), floats(5)).layout == (5, 6, 3)

    class OneHot(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = jax.nn.one_hot(x, 9).reshape(x.shape[0], -1)
            return nn.Dense(3)(nn.relu(nn.Dense(6)(x)))

    assert pj.partial.cells_of(OneHot(), TOKENS).layout == (54, 6, 3)


def test_what_is_no_network_of_layers_is_refused():
    mean = pj.Network(lambda key: {"w": jnp.zeros(())}, lambda p, x: x * p["w"])
    with pytest.raises(pj.InputError, match="Need outputs along an axis"):
        pj.partial.cells_of(mean, floats(5))
    with pytest.raises(pj.InputError, match="Need a batch of inputs"):
        pj.partial.cells_of(others.plain_mlp(), 5)

    class Nested(nn.Module):
        @nn.compact
        def __call__(self, x):
            x, y = nn.Conv(4, (3, 3))(x), nn.Conv(5, (3, 3))(x)
            both = jnp.concatenate([x, y], -1)
            return nn.Dense(3)(both.reshape(x.shape[0], -1))

    with pytest.raises(pj.InputError, match="inside of a flatten"):
        pj.partial.cells_of(Nested(), floats(6, 6, 2))


def test_wrong_cells_are_refused_when_they_are_tried():
    network, x, _ = OTHERS["plain functions"]
    found = pj.partial.cells_of(network, x)
    task = Task(None, None, None, network=network, example=x)
    symmetry.check_permutations(found, task)
    groups = [
        g._replace(places=g.places[:1]) if g.part == 1 else g for g in found.groups
    ]
    with pytest.raises(pj.InputError, match="Need units that may be reordered"):
        symmetry.check_permutations(found._replace(groups=tuple(groups)), task)


class TestTerms:
    def test_reshape_splits_and_joins(self):
        a, b, c = Var(4), Var(6), Var(1)
        joined, last = reshaped([a, b, c], (24, 1))
        assert joined == Prod((a, b)) and last is c
        assert reshaped([joined, last], (4, 6)) == [a, Prod((b, c))]
        first, *_ = reshaped([Var(24)], (4, 6))
        assert first.size == 4
        assert reshaped([Var(4), Var(6)], (3, 8)) is None

    def test_products_and_sequences_are_cut_alike(self):
        gates = Var(12)
        one, four = Var(3), Cat((Var(3), Var(3), Var(3), Var(3)))
        assert unify(gates, four)
        for part in four.parts:
            assert unify(part, one)
        assert columns_of(gates, resolved(one))[0].tolist() == [
            [0, 3, 6, 9],
            [1, 4, 7, 10],
            [2, 5, 8, 11],
        ]

    def test_a_product_meets_a_sequence(self):
        outer, inner = Var(3), Var(4)
        left, right = Var(8), Var(4)
        assert unify(Prod((outer, inner)), Cat((left, right)))
        assert columns_of(right, resolved(inner))[0].shape == (4, 1)
        assert columns_of(left, resolved(right))[0].shape == (4, 2)

    def test_sizes_that_do_not_divide_cannot_be_followed(self):
        assert not unify(Prod((Var(4), Var(6))), Prod((Var(6), Var(4))))
        assert not unify(Var(4), Var(5))
