"""Own gradients of convolution and pooling against autodiff's, and where they are."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from p2pjax.nn import cnn
from p2pjax.nn.kernels import pooled, winograd
from p2pjax.nn.kernels.convolution import Geometry, convolve, max_pool, plain_pooling
from p2pjax.nn.kernels.pooled import PooledConvolution, in_windows, window_max

# Nearly all the time is compilation: what is compiled may be slow.
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


def autodiff_convolution(x, kernel, geometry):
    stride, padding, dilation, _ = geometry
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        stride,
        padding,
        rhs_dilation=dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def autodiff_pool(x, size, stride):
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "VALID")


def values_and_gradients(fn, *inputs):
    """Of a weighted sum of everything that comes out."""
    out, pull_back = jax.vjp(fn, *inputs)
    weights = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
    return out, *pull_back(weights)


def assert_same(fn, other, *inputs):
    both = quick_jit(
        lambda *args: (
            values_and_gradients(fn, *args),
            values_and_gradients(other, *args),
        )
    )
    for mine, autodiffs in zip(*both(*inputs), strict=True):
        np.testing.assert_allclose(mine, autodiffs, rtol=1e-5, atol=1e-5)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
sides = st.tuples(st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=15)
@given(
    data=st.data(),
    kernel_size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    geometry=st.tuples(pairs, st.tuples(sides, sides), pairs).map(
        lambda parts: Geometry(*parts)
    ),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    batch=st.integers(1, 3),
)
def test_convolution_equals_autodiff(data, kernel_size, geometry, channels, batch):
    """Odd and even kernels, any stride, padding and dilation, also uneven ones."""
    sizes = []
    for kernel, padding, dilation in zip(kernel_size, *geometry[1:3], strict=True):
        smallest = max(1, dilation * (kernel - 1) + 1 - sum(padding))
        sizes.append(data.draw(st.integers(smallest, smallest + 6)))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, *sizes, channels[0])).astype(np.float32)
    kernel = rng.normal(size=(*kernel_size, *channels)).astype(np.float32)
    assert_same(
        lambda *args: convolve(*args, geometry),
        lambda *args: autodiff_convolution(*args, geometry),
        x,
        kernel,
    )


@pytest.mark.parametrize(
    "kernel_size, geometry",
    [
        (5, Geometry()),
        (3, Geometry(padding=((1, 1), (1, 1)))),
        (2, Geometry(stride=(2, 2))),
        (4, Geometry((2, 2), ((1, 2), (1, 2)), (2, 2))),
    ],
)
def test_convolutions_of_networks_equal_autodiffs(kernel_size, geometry):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 10, 9, 3)).astype(np.float32)
    kernel = rng.normal(size=(kernel_size, kernel_size, 3, 4)).astype(np.float32)
    assert_same(
        lambda *args: convolve(*args, geometry),
        lambda *args: autodiff_convolution(*args, geometry),
        x,
        kernel,
    )


@settings(max_examples=15)
@given(
    size=st.integers(1, 3),
    stride=st.integers(1, 4),
    more=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    ties=st.booleans(),
)
def test_pooling_equals_autodiff(size, stride, more, ties):
    """Overlapping windows and gaps, pixels left over, equal pixels."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, size + more[0], size + more[1], 3)).astype(np.float32)
    x = np.maximum(x, 0) if ties else x
    assert_same(
        lambda x: max_pool(x, (size,) * 2, (stride,) * 2),
        lambda x: autodiff_pool(x, size, stride),
        x,
    )


def step(convolution, pool):
    """A gradient step inside a loop, as one agent takes it."""

    def loss(kernel, x):
        return jnp.square(pool(jax.nn.relu(convolution(x, kernel)))).sum()

    def steps(kernel, x):
        return jax.lax.fori_loop(
            0, 2, lambda _, k: k - 1e-3 * jax.grad(loss)(k, x), kernel
        )

    return steps


own = step(
    lambda x, k: convolve(x, k, Geometry()), lambda x: max_pool(x, (2, 2), (2, 2))
)
autodiffs = step(
    lambda x, k: autodiff_convolution(x, k, Geometry()),
    lambda x: autodiff_pool(x, 2, 2),
)


def test_in_a_loop_and_batched():
    rng = np.random.default_rng(2)
    kernels = rng.normal(size=(3, 4, 4, 2, 5)).astype(np.float32)
    x = rng.normal(size=(3, 2, 9, 9, 2)).astype(np.float32)
    expected = jax.jit(jax.vmap(autodiffs))(kernels, x)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(own))(kernels, x), expected, rtol=1e-5, atol=1e-5
    )
    one = jax.jit(own)(kernels[0], x[0])
    np.testing.assert_allclose(one, expected[0], rtol=1e-5, atol=1e-5)


def lowered(fn, platform, *shapes):
    traced = jax.jit(fn).trace(*map(jnp.zeros, shapes))
    return traced.lower(lowering_platforms=(platform,)).as_text()


OF_AUTODIFF = (
    "select_and_scatter",  # its gradient of the maximum
    "dim_numbers = [f, 0, 1, b]",  # of kernels: the batch is summed over as channels
)


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
def test_accelerators_keep_autodiffs(platform):
    step = lowered(own, platform, (4, 4, 2, 5), (2, 9, 9, 2))
    for name in OF_AUTODIFF:
        assert (name in step) == (platform != "cpu")


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
@pytest.mark.parametrize("channels", [2, pooled.MANY_CHANNELS])
def test_pooled_convolutions_are_products_on_cpus_only(platform, channels):
    layer = PooledConvolution(4, 3, 2)

    def loss(kernel, x):
        params = {"kernel": kernel, "bias": jnp.zeros(4)}
        return layer.apply({"params": params}, x).sum()

    step = lowered(jax.grad(loss), platform, (3, 3, channels, 4), (2, 9, 9, channels))
    assert ("stablehlo.convolution" in step) == (platform != "cpu")
    for name in OF_AUTODIFF:
        assert (name in step) == (platform != "cpu")


def test_the_network_has_the_gradients_of_autodiff(monkeypatch):
    module = cnn.CNN((3, 4), (5,), 2, kernel_size=2, pool=3)
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2, 13, 14, 2)).astype(np.float32)
    params = quick_jit(module.init)(jax.random.key(0), x)

    def gradient():
        loss = lambda p: jnp.square(module.apply(p, x)).sum()
        return quick_jit(jax.grad(loss))(params)

    mine = gradient()
    monkeypatch.setattr(pooled, "max_pool", plain_pooling)
    monkeypatch.setattr(pooled, "convolve", autodiff_convolution)
    for one, other in zip(*map(jax.tree.leaves, (mine, gradient())), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=8)
@example(size=(9, 8), kernel=(5, 5), pool=2, channels=2, seed=0)  # of the thesis
@example(size=(9, 8), kernel=(5, 5), pool=2, channels=9, seed=0)  # at all points
@example(size=(8, 9), kernel=(3, 4), pool=2, channels=8, seed=0)  # blocks left over
@example(size=(9, 9), kernel=(6, 2), pool=2, channels=8, seed=0)  # too many points
@given(
    size=st.tuples(st.integers(7, 9), st.integers(7, 9)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    pool=st.integers(1, 3),
    channels=st.sampled_from([2, 8]),
    seed=st.integers(0, 100),
)
def test_windows_of_pooling(size, kernel, pool, channels, seed):
    """The largest of every window is what convolution and pooling give."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, *size, channels)).astype(np.float32)
    weights = rng.normal(size=(*kernel, channels, 3)).astype(np.float32)
    weights /= np.sqrt(channels)

    def in_windows_found(x, kernel):
        windows, sizes = in_windows(x.transpose(3, 0, 1, 2), kernel, pool)
        return window_max(windows).reshape(3, 2, *sizes).transpose(1, 2, 3, 0)

    assert_same(
        in_windows_found,
        lambda x, k: autodiff_pool(autodiff_convolution(x, k, Geometry()), pool, pool),
        x,
        weights,
    )


def test_the_first_of_equal_results_gets_the_gradient():
    x = jnp.asarray([[1.0, 5.0], [1.0, 2.0], [0.0, 5.0]])  # [W, C]
    _, pull_back = jax.vjp(window_max, x)
    (found,) = pull_back(jnp.asarray([2.0, 3.0]))
    np.testing.assert_array_equal(found, [[2, 3], [0, 0], [0, 0]])
    _, forwards = jax.jvp(window_max, (x,), (jnp.ones_like(x) * x,))
    np.testing.assert_array_equal(forwards, [1, 5])


def test_layer_equals_flax():
    """Also with an activation that may fall, so has to come before the maximum."""
    x = np.random.default_rng(5).normal(size=(2, 9, 10, 2)).astype(np.float32)
    for activation, pool in ((nn.relu, 2), (nn.tanh, 2), (nn.gelu, 2), (nn.relu, 3)):
        mine = PooledConvolution(4, 3, pool, activation)
        theirs = nn.Conv(4, (3, 3), padding="VALID")
        variables = quick_jit(mine.init)(jax.random.key(0), x)
        jax.tree.map(
            np.testing.assert_array_equal,
            variables,
            quick_jit(theirs.init)(jax.random.key(0), x),
        )
        biased = jax.tree.map(lambda leaf: leaf + 1, variables)
        found = activation(theirs.apply(biased, x))
        wanted = nn.max_pool(found, (pool, pool), (pool, pool))
        result = quick_jit(mine.apply)(biased, x)
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel_size, pool", [(7, 2), (3, 3)])
def test_other_layers_keep_own_convolutions(kernel_size, pool):
    """Too many points, or windows of another size."""
    layer = PooledConvolution(4, kernel_size, pool)
    variables = {"params": {"kernel": jnp.zeros((kernel_size, kernel_size, 8, 4))}}
    variables["params"]["bias"] = jnp.zeros(4)
    step = lowered(lambda x: layer.apply(variables, x), "cpu", (2, 12, 12, 8))
    assert "stablehlo.convolution" in step


def test_directly_and_at_points_the_network_is_the_same(monkeypatch):
    module, x = cnn.CNN((3, 5), (4,), 3, kernel_size=3), jnp.ones((2, 13, 12, 2))
    x = x * jnp.cos(jnp.arange(x.size, dtype=jnp.float32)).reshape(x.shape)
    variables = quick_jit(module.init)(jax.random.key(0), x)

    def loss(params):
        return jnp.square(module.apply(params, x)).sum()

    found = []
    for many in (pooled.MANY_CHANNELS, 0):
        monkeypatch.setattr(pooled, "MANY_CHANNELS", many)
        jax.clear_caches()  # of the same function
        found.append(quick_jit(jax.value_and_grad(loss))(variables))
    monkeypatch.setattr(pooled, "MONOTONE_ACTIVATIONS", ())
    jax.clear_caches()
    plain = jax.tree.leaves(quick_jit(jax.value_and_grad(loss))(variables))
    for one in map(jax.tree.leaves, found):
        for leaf, wanted in zip(one, plain, strict=True):
            np.testing.assert_allclose(leaf, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_weights", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("num_results", [1, 2])
def test_points_give_a_convolution(num_results, num_weights):
    rng = np.random.default_rng(0)
    x = rng.normal(size=num_results + num_weights - 1)
    w = rng.normal(size=num_weights)
    results, weights, inputs = winograd.transforms(num_results, num_weights)
    found = results @ ((weights @ w) * (inputs @ x))
    np.testing.assert_allclose(found, np.correlate(x, w, "valid"), atol=1e-12)


@pytest.mark.slow
def test_points_cost_few_digits(monkeypatch):
    """Of 32 channels and 5 x 5 weights, the largest that there are points for."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 4, 14, 14))
    kernel = rng.normal(size=(5, 5, 32, 16)) / np.sqrt(25 * 32)

    def found(dtype, many_channels):
        monkeypatch.setattr(pooled, "MANY_CHANNELS", many_channels)
        inputs = jnp.asarray(x, dtype), jnp.asarray(kernel, dtype)
        windows, pull_back = jax.vjp(lambda *args: in_windows(*args, 2)[0], *inputs)
        return [np.asarray(one) for one in (windows, *pull_back(jnp.sin(windows)))]

    with jax.enable_x64(True):
        exact = found(jnp.float64, 1000)
        for one, same in zip(exact, found(jnp.float64, 1), strict=True):
            np.testing.assert_allclose(one, same, atol=1e-11)
        rounded = found(jnp.float32, 1)
    for one, wanted in zip(rounded, exact, strict=True):
        error = np.sqrt(np.square(one - wanted).mean() / np.square(wanted).mean())
        assert 6e-7 < error < 4e-6  # without points it is 4e-7


def test_there_are_six_points():
    assert winograd.has_points(2, 5) and winograd.has_points(3, 4)
    assert not winograd.has_points(2, 6)


@pytest.mark.parametrize("channels", [2, 8])
@pytest.mark.parametrize("shape", [(0, 9, 9), (2, 3, 9)])
def test_no_images_and_no_windows(shape, channels):
    layer = PooledConvolution(4, 3, 2)
    x = jnp.zeros((*shape, channels))
    found = layer.init_with_output(jax.random.key(0), x)[0]
    assert found.shape == (shape[0], (shape[1] - 2) // 2, 3, 4)


def test_half_precision_is_spared_the_points():
    """Though its results are that of a convolution too, to its own few digits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 9, 9, 8))
    kernel = rng.normal(size=(5, 5, 8, 4)) / np.sqrt(25 * 8)
    found = []
    for dtype in (jnp.float32, jnp.bfloat16):
        params = {"kernel": jnp.asarray(kernel, dtype), "bias": jnp.zeros(4, dtype)}
        layer = PooledConvolution(4, 5, 2)
        found.append(layer.apply({"params": params}, jnp.asarray(x, dtype)))
    assert found[1].dtype == jnp.bfloat16
    np.testing.assert_allclose(found[1].astype(jnp.float32), found[0], atol=0.04)
