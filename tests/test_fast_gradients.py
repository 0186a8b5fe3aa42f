"""Networks as users write them, with the package's gradients."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import p2pjax as pj
from p2pjax.nn.slow_convolutions import has_slow_convolutions
from p2pjax.types import Variables

# Nearly all the time is compilation: what is compiled may be slow.
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)

close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_as_autodiff(fn, *args):
    """Values, and gradients of a weighted sum of them."""

    def results(fn):
        out, pull_back = jax.vjp(fn, *args)
        weights = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)
        return out, *pull_back(weights.astype(out.dtype))

    mine, theirs = quick_jit(
        lambda: (results(pj.nn.with_fast_gradients(fn)), results(fn))
    )()
    np.testing.assert_array_equal(mine[0], theirs[0])
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == other.dtype
        close(one, other)


@pytest.mark.parametrize(
    "channels, size, strides, padding",
    [
        ((1, 4), 3, 1, "SAME"),
        ((3, 16), 3, 2, "SAME"),
        ((16, 3), 5, 1, "VALID"),
        ((3, 4), 4, 3, ((1, 2), (0, 1))),
        ((1, 16), 1, 2, "VALID"),
    ],
)
def test_convolutions(channels, size, strides, padding):
    layer = nn.Conv(channels[1], (size, size), strides, padding)
    x = normal(0, 3, 9, 8, channels[0])
    params = layer.init(jax.random.key(0), x)["params"]

    def fn(x, kernel, bias):
        return layer.apply({"params": {"kernel": kernel, "bias": bias}}, x)

    args = x, params["kernel"], params["bias"]
    assert_as_autodiff(fn, *args)
    gradient = lambda fn: jax.grad(lambda *a: fn(*a).sum(), argnums=(0, 1))
    assert has_slow_convolutions(gradient(fn), *args)
    assert not has_slow_convolutions(gradient(pj.nn.with_fast_gradients(fn)), *args)


@pytest.mark.parametrize("strides, dilation", [(1, 1), (2, 1), (1, 2)])
def test_convolutions_of_sequences(strides, dilation):
    layer = nn.Conv(5, (3,), strides, kernel_dilation=dilation, use_bias=False)
    x, kernel = normal(1, 3, 11, 4), normal(2, 3, 4, 5) / 3
    fn = lambda x, kernel: layer.apply({"params": {"kernel": kernel}}, x)
    assert_as_autodiff(fn, x, kernel)
    fast = pj.nn.with_fast_gradients(fn)
    gradient = jax.grad(lambda *a: fast(*a).sum(), argnums=(0, 1))
    assert not has_slow_convolutions(gradient, x, kernel)


@pytest.mark.parametrize(
    "window, strides, padding",
    [
        ((2, 2), (2, 2), "VALID"),
        ((3, 3), (2, 2), "SAME"),
        ((2, 3), (1, 2), "VALID"),
        ((3, 2), (3, 1), ((1, 1), (0, 1))),
    ],
)
def test_pooling(window, strides, padding):
    """Rounded, so that windows have equal numbers: all of the gradient to the first."""
    x = normal(3, 2, 9, 8, 3).round()
    fn = lambda x: nn.max_pool(nn.relu(x), window, strides, padding)
    assert_as_autodiff(fn, x)
    assert "select_and_scatter" in on_cpus(fn, x)
    assert "select_and_scatter" not in on_cpus(pj.nn.with_fast_gradients(fn), x)


def on_cpus(fn, x):
    return jax.jit(jax.grad(lambda x: fn(x).sum())).lower(x).as_text()


def test_pooling_of_sequences():
    x = normal(4, 2, 11, 3).round()
    assert_as_autodiff(lambda x: nn.max_pool(x, (3,), (2,), "SAME"), x)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: nn.max_pool(x, (9, 8)),  # too large for an operation per pixel
        lambda x: jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 2, 2, 3), (1, 1, 1, 1), "VALID"
        ),
        lambda x: nn.Conv(6, (3, 3), feature_group_count=3).apply(
            {"params": {"kernel": normal(0, 3, 3, 1, 6), "bias": normal(1, 6)}}, x
        ),
        lambda x: nn.ConvTranspose(2, (3, 3), (2, 2), use_bias=False).apply(
            {"params": {"kernel": normal(0, 3, 3, 3, 2)}}, x
        ),
    ],
)
def test_what_is_left_to_lax(fn):
    assert_as_autodiff(fn, normal(5, 2, 9, 8, 3))


def test_whole_numbers_are_pooled_too():
    x = np.arange(64).reshape(1, 8, 8, 1)
    fn = lambda x: nn.max_pool(x, (2, 2), (2, 2))
    np.testing.assert_array_equal(pj.nn.with_fast_gradients(fn)(x), fn(x))


def convolved(x, kernel):
    out = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return nn.max_pool(nn.relu(out), (2, 2), (1, 1), "SAME")


def in_scan(x, kernel):
    return jax.lax.scan(lambda x, _: (convolved(x, kernel), None), x, None, length=2)[0]


def in_cond(x, kernel):
    return jax.lax.cond(kernel.sum() > 0, convolved, lambda x, _: x, x, kernel)


@pytest.mark.parametrize(
    "fn",
    [
        jax.jit(convolved),
        jax.checkpoint(convolved),
        in_scan,
        in_cond,
        jax.jit(jax.checkpoint(in_scan)),
        lambda x, kernel: jax.vmap(convolved, (0, None))(x[None], kernel)[0],
    ],
)
def test_layers_inside_of_others(fn):
    x, kernel = normal(6, 2, 6, 6, 2), normal(7, 3, 3, 2, 2) / 9
    assert_as_autodiff(fn, x, kernel)


@pytest.mark.parametrize(
    "fn", [jax.jit(convolved), jax.checkpoint(convolved), in_scan, in_cond]
)
def test_layers_inside_of_others_are_fast(fn):
    x, kernel = normal(6, 2, 6, 6, 2), normal(7, 3, 3, 2, 2) / 9
    for one, expected in ((fn, True), (pj.nn.with_fast_gradients(fn), False)):
        gradient = jax.grad(lambda *a, one=one: one(*a).sum(), argnums=(0, 1))
        assert has_slow_convolutions(gradient, x, kernel) == expected


def test_second_derivatives():
    x, kernel = normal(8, 2, 6, 6, 1), normal(9, 3, 3, 1, 2) / 9

    def curvature(fn):
        loss = lambda kernel: jnp.square(fn(x, kernel)).sum()
        return quick_jit(jax.jvp, static_argnums=0)(
            jax.grad(loss), (kernel,), (jnp.ones_like(kernel),)
        )[1]

    close(curvature(pj.nn.with_fast_gradients(convolved)), curvature(convolved))


def test_own_derivatives_are_kept():
    @jax.custom_vjp
    def own(x, kernel):
        return convolved(x, kernel)

    own.defvjp(
        lambda x, kernel: (own(x, kernel), None),
        lambda _, g: (jnp.ones((2, 6, 6, 1)), jnp.full((3, 3, 1, 1), 7.0)),
    )
    x, kernel = normal(8, 2, 6, 6, 1), normal(9, 3, 3, 1, 1)
    fast = pj.nn.with_fast_gradients(lambda x, kernel: own(x, kernel).sum())
    assert (jax.grad(fast, argnums=1)(x, kernel) == 7).all()


def test_structure_is_kept():
    """None, tuples, results that are arguments, and what is closed over."""
    more = jnp.arange(3.0)
    given = {"a": jnp.ones(3), "b": None}
    found = pj.nn.with_fast_gradients(lambda t: (t, {"sum": t["a"] + more}))(given)
    assert found[0]["a"] is given["a"] and found[0]["b"] is None
    np.testing.assert_array_equal(found[1]["sum"], [1, 2, 3])


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Conv(3, (3, 3), name="conv")(x)
        x = nn.BatchNorm(use_running_average=not train, name="norm")(x)
        x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
        x = nn.Dropout(0.2, deterministic=not train)(x)
        return nn.Dense(2, name="out")(x.reshape(x.shape[0], -1))


class NNXNet(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 3, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.out = nnx.Linear(48, 2, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        return self.out(x.reshape(x.shape[0], -1))


def plain():
    def init(key):
        return {"w": jax.random.normal(key, (3, 3, 1, 2))}

    return pj.tasks.Network(init, lambda p, x: convolved(x, p["w"]).mean((1, 2)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("network", [LinenNet(), NNXNet, plain()])
def test_tasks_train_with_fast_gradients(network):
    """Loss and statistics are those of autodiff, gradients up to rounding."""
    batch = {
        "x": normal(10, 4, 8, 8, 1),
        "y": np.array([0, 1, 1, 0]),
        "valid": np.array([True, True, True, False]),
    }

    def gradient():
        task = pj.classification(network, (8, 8, 1))
        variables = quick_jit(task.init)(jax.random.key(0))

        def loss(params):
            return task.loss(
                Variables(params, variables.stats), batch, jax.random.key(1)
            )

        fn = jax.value_and_grad(loss, has_aux=True)
        is_slow = has_slow_convolutions(fn, variables.params)
        return is_slow, quick_jit(fn)(variables.params)

    is_slow, mine = gradient()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("p2pjax.tasks.network.with_fast_gradients", lambda fn: fn)
        was_slow, theirs = gradient()
    assert was_slow and not is_slow
    jax.tree.map(close, mine, theirs)
