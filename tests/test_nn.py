"""The networks' front door, batch norm on images, and convolutions of one's own."""

import functools
import math
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import p2pjax.nn as networks
from p2pjax.nn import batch_norm_cnn
from p2pjax.nn.fast_convolution import fast_conv
from p2pjax.nn.slow_convolutions import (
    SlowConvolutionWarning,
    has_slow_convolutions,
    warn_of_slow_convolutions,
)
from p2pjax.training.agent_loop import IN_PLACE, VMAP, map_agents
from p2pjax.types import InputError

# Nearly all the time is compilation: what is compiled may be slow.
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)

FLAX = ("NHWC", "HWIO", "NHWC")


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def results(convolution, x, kernel, **options):
    """Values, and gradients of a weighted sum of them."""
    out, pull_back = jax.vjp(lambda *args: convolution(*args, **options), x, kernel)
    weights = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
    return out, *pull_back(weights.astype(out.dtype))


def assert_as_lax(x, kernel, **options):
    both = quick_jit(
        lambda *args: (
            results(fast_conv, *args, **options),
            results(jax.lax.conv_general_dilated, *args, **options),
        )
    )
    for mine, theirs in zip(*both(x, kernel), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_every_name_is_there():
    assert all(hasattr(networks, name) for name in networks.__all__)


class TestFastConv:
    @settings(max_examples=20)
    @given(
        size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
        kernel_size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
        strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        dilation=st.none() | st.tuples(st.integers(1, 2), st.integers(1, 2)),
        padding=st.sampled_from(
            ["SAME", "SAME_LOWER", "VALID", ((1, 2), (0, 3)), ((-1, 1), (1, -1))]
        ),
        channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    )
    def test_images(self, size, kernel_size, strides, dilation, padding, channels):
        """Also kernels larger than the image, whose results are empty."""
        assert_as_lax(
            normal(0, 2, *size, channels[0]),
            normal(1, *kernel_size, *channels) / math.prod(kernel_size),
            window_strides=strides,
            padding=padding,
            rhs_dilation=dilation,
            dimension_numbers=FLAX,
        )

    @pytest.mark.parametrize(
        "x, kernel, options",
        [
            ((2, 8, 8, 4), (3, 3, 1, 4), {"feature_group_count": 4}),
            ((4, 8, 8, 2), (3, 3, 2, 4), {"batch_group_count": 2}),
            (
                (2, 5, 5, 2),
                (3, 3, 2, 4),
                {"lhs_dilation": (2, 2), "padding": ((1, 1), (2, 0))},
            ),
            ((2, 2, 8, 8), (4, 2, 3, 3), {"dimension_numbers": None}),
            ((2, 8, 2), (3, 2, 4), {"dimension_numbers": ("NWC", "WIO", "NWC")}),
            (
                (2, 4, 5, 6, 2),
                (3, 3, 3, 2, 4),
                {"dimension_numbers": ("NDHWC", "DHWIO", "NDHWC")},
            ),
            ((2, 8, 8, 2), (3, 3, 2, 4), {"precision": "highest"}),
            ((2, 8, 8, 2), (3, 3, 2, 4), {"preferred_element_type": jnp.float32}),
            ((0, 8, 8, 2), (3, 3, 2, 4), {}),
        ],
    )
    def test_others(self, x, kernel, options):
        settled = {
            "window_strides": (1,) * (len(x) - 2),
            "padding": "SAME",
            "dimension_numbers": FLAX,
        } | options
        assert_as_lax(normal(0, *x), normal(1, *kernel) / 9, **settled)

    def test_refusals_are_those_of_lax(self):
        with pytest.raises(ValueError, match="feature dimension"):
            fast_conv(
                normal(0, 1, 8, 8, 3),
                normal(0, 3, 3, 2, 4),
                (1, 1),
                "SAME",
                dimension_numbers=FLAX,
            )

    @pytest.mark.parametrize("padding", ["SAME", "CIRCULAR", 1])
    def test_in_linen(self, padding):
        x, options = normal(2, 3, 8, 9, 2), {"strides": 2, "padding": padding}
        mine = nn.Conv(4, (3, 3), conv_general_dilated=fast_conv, **options)
        theirs = nn.Conv(4, (3, 3), **options)
        params = mine.init(jax.random.key(0), x)

        def gradient(module):
            loss = lambda params: jnp.square(module.apply(params, x)).sum()
            return quick_jit(jax.grad(loss))(params)

        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
            gradient(mine),
            gradient(theirs),
        )

    def test_in_nnx(self):
        x = normal(2, 3, 8, 9, 2)
        losses = []
        for options in ({}, {"conv_general_dilated": fast_conv}):
            layer = nnx.Conv(2, 4, (3, 3), **options, rngs=nnx.Rngs(0))
            graph, params = nnx.split(layer)

            def loss(params, graph=graph):
                return jnp.square(nnx.merge(graph, params)(x)).sum()

            losses.append(jax.tree.leaves(jax.value_and_grad(loss)(params)))
            assert has_slow_convolutions(jax.grad(loss), params) == (not options)
        for one, other in zip(*losses, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


class Own(nn.Module):
    """As a user writes it."""

    options: tuple = ()
    kernel_size: tuple = (3, 3)

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.Conv(4, self.kernel_size, **dict(self.options))(x)
            x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
        return x.reshape(x.shape[0], -1).sum(1)


IMAGES = jax.ShapeDtypeStruct((2, 8, 8, 4), jnp.float32)


def training(module, fast=False):
    """Steps of one agent, as they are in the loop; and its variables' shapes."""

    def loss(params, stats, x):
        out, new = module.apply({"params": params, **stats}, x, mutable=["batch_stats"])
        return jnp.square(out).sum(), new

    loss = networks.with_fast_gradients(loss) if fast else loss

    @jax.jit
    def steps(variables, x):
        params = variables["params"]
        stats = {k: v for k, v in variables.items() if k != "params"}

        def step(_, params):
            grads, _ = jax.grad(loss, has_aux=True)(params, stats, x)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

        return jax.lax.fori_loop(0, 2, step, params)

    return steps, jax.eval_shape(lambda x: module.init(jax.random.key(0), x), IMAGES)


class TestSlowConvolutions:
    def test_own_convolutions_are_met_with_a_warning(self):
        steps, variables = training(Own())
        with pytest.warns(SlowConvolutionWarning, match="with_fast_gradients"):
            warn_of_slow_convolutions(steps, variables, IMAGES)

    def test_groups_stay_slow(self):
        steps, variables = training(Own((("feature_group_count", 4),)), fast=True)
        with pytest.warns(SlowConvolutionWarning, match="groups of channels"):
            warn_of_slow_convolutions(steps, variables, IMAGES)

    def test_once_per_place(self):
        steps, variables = training(Own())
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("default")
            for _ in range(3):
                warn_of_slow_convolutions(steps, variables, IMAGES)
        assert len(found) == 1 and found[0].filename == __file__

    @pytest.mark.parametrize(
        "module",
        [
            Own((("conv_general_dilated", fast_conv),)),
            networks.BatchNormCNN((4, 4), (5,), 3),
            networks.CNN((4,), (5,), 3, kernel_size=3),
            networks.CNN((4,), (5,), 3, kernel_size=3, pool=3),
            networks.CNN((4,), (5,), 3, kernel_size=3, activation=nn.gelu),
            networks.MLP((5, 3)),
        ],
    )
    def test_no_warning(self, module):
        steps, variables = training(module)
        warn_of_slow_convolutions(steps, variables, IMAGES)

    def test_no_warning_with_fast_gradients(self):
        steps, variables = training(Own(), fast=True)
        warn_of_slow_convolutions(steps, variables, IMAGES)

    def test_only_gradients_are_slow(self):
        steps, variables = training(Own())
        del steps
        forwards = lambda variables, x: Own().apply(variables, x, mutable=True)
        assert not has_slow_convolutions(forwards, variables, IMAGES)

    def test_inside_a_trace_and_with_what_is_closed_over(self):
        steps, variables = training(Own())

        @jax.jit
        def traced(variables, x):
            assert has_slow_convolutions(lambda v: steps(v, x), variables)
            return x

        jax.eval_shape(traced, variables, IMAGES)

    def test_nothing_to_say_on_accelerators(self, monkeypatch):
        steps, variables = training(Own())
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        warn_of_slow_convolutions(steps, variables, IMAGES)


SMALL = networks.BatchNormCNN((3, 4), (5,), 3)


def started(module, x, num_agents=3):
    keys = jax.random.split(jax.random.key(0), num_agents)
    return quick_jit(jax.vmap(lambda key: module.init(key, x)))(keys)


def steps_of(module):
    def agent_fn(variables, batch):
        x, y = batch

        def loss(params):
            out, new = module.apply(
                variables | {"params": params}, x, train=True, mutable=["batch_stats"]
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(out, y)
            return losses.mean(), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(
            variables["params"]
        )
        params = jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], grads)
        return variables | {"params": params} | new, value

    return agent_fn


class TestBatchNormCNN:
    def test_equals_flax(self):
        class Flax(nn.Module):
            @nn.compact
            def __call__(self, x, train):
                for layer, features in ((1, 3), (2, 4)):
                    name = f"layer_{layer}"
                    x = nn.Conv(features, (3, 3), use_bias=False, name=name)(x)
                    x = nn.BatchNorm(
                        use_running_average=not train, momentum=0.9, name=f"{name}_norm"
                    )(x)
                    x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
                x = x.reshape(len(x), 4, 4)
                x = nn.relu(nn.DenseGeneral(5, axis=(1, 2), name="layer_3")(x))
                return nn.Dense(3, name="layer_4")(x)

        x = normal(0, 4, 9, 8, 2)
        variables = quick_jit(SMALL.init)(jax.random.key(0), x)
        variables = jax.tree.map(lambda leaf: leaf + 0.1, variables)

        def found(module, train):
            def loss(params):
                out, new = module.apply(
                    variables | {"params": params}, x, train, mutable=["batch_stats"]
                )
                return jnp.square(out).sum(), (out, new)

            return quick_jit(jax.grad(loss, has_aux=True))(variables["params"])

        for train in (True, False):
            jax.tree.map(
                functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
                found(SMALL, train),
                found(Flax(), train),
            )

    def test_agents_one_after_the_other_and_side_by_side(self):
        x, y = normal(1, 3, 4, 8, 8, 1), np.zeros((3, 4), np.int32)
        variables = started(SMALL, x[0])
        (one, loss), (other, same) = (
            quick_jit(map_agents(steps_of(SMALL), loop))(variables, (x, y))
            for loop in (IN_PLACE, VMAP)
        )
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
            (one, loss),
            (other, same),
        )
        for layer in ("layer_1_norm", "layer_2_norm"):
            assert (one["batch_stats"][layer]["mean"] != 0).all()
            for leaf in ("scale", "bias"):
                before = variables["params"][layer][leaf]
                assert (one["params"][layer][leaf] != before).any()

    def test_channel_axis_may_be_left_out(self):
        x = normal(2, 2, 8, 8)
        variables = quick_jit(SMALL.init)(jax.random.key(0), x)
        np.testing.assert_array_equal(
            SMALL.apply(variables, x), SMALL.apply(variables, x[..., None])
        )

    @pytest.mark.parametrize(
        ("shape", "said"),
        [
            ((2, 3, 8, 1), r"at least 4 x 4 pixels .* use larger"),
            ((2, 64), "images of height and width .* choose other data"),
        ],
    )
    def test_refuses_what_it_cannot_pool(self, shape, said):
        with pytest.raises(InputError, match=said):
            jax.eval_shape(SMALL.init, jax.random.key(0), jnp.zeros(shape))

    def test_wiring_names_each_parameter_and_its_axes(self):
        shapes = jax.eval_shape(SMALL.init, jax.random.key(0), jnp.zeros((1, 8, 8, 2)))[
            "params"
        ]
        leaves = {
            f"{layer}/{name}": leaf.shape
            for layer, tree in shapes.items()
            for name, leaf in tree.items()
        }
        wiring, widths = batch_norm_cnn.wiring(SMALL), (2, 3, 4, 5, 3)
        assert wiring.keys() == leaves.keys()
        for path, parts in wiring.items():
            for part, size in zip(parts, leaves[path], strict=True):
                assert part is None or widths[part] == size

    def test_absent_cells_learn_nothing(self):
        x, y = normal(3, 4, 8, 8, 1), np.zeros(4, np.int32)
        variables = quick_jit(SMALL.init)(jax.random.key(0), x)
        mask = np.asarray([True, False, True])
        variables["cells"] = {
            "layer_1": {"mask": mask, "present": np.asarray(True)},
        }
        after, _ = quick_jit(steps_of(SMALL))(variables, (x, y))
        kernel, before = (
            tree["params"]["layer_1"]["kernel"] for tree in (after, variables)
        )
        changed = (kernel != before).any((0, 1, 2))
        np.testing.assert_array_equal(changed, mask)
