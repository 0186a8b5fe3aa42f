"""Dense layers are products of matrices, with the same numbers as flax' own."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from p2pjax.nn.kernels import dense

LAYERS = {
    "rows": (dict(features=4), (5, 3)),
    "sequences": (dict(features=(2, 3)), (2, 7, 4)),
    "two_axes_of_inputs": (dict(features=3, axis=(-2, -1)), (2, 7, 2, 4)),
    "many_rows": (dict(features=3), (4, dense.MANY_ROWS // 4, 2)),
    "one_example": (dict(features=3, axis=(1, 2)), (1, 2, 4)),
}


def values_and_gradients(module, variables, x):
    def total(variables, x):
        out = module.apply(variables, x)
        return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum(), out

    return jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(variables, x)


@pytest.mark.parametrize("name", LAYERS)
def test_equals_flax(name):
    arguments, shape = LAYERS[name]
    x = jax.random.normal(jax.random.key(0), shape)
    theirs = nn.DenseGeneral(**arguments)
    variables = theirs.init(jax.random.key(1), x)
    mine = dense.DenseGeneral(**arguments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        values_and_gradients(mine, variables, x),
        values_and_gradients(theirs, variables, x),
    )


def test_weights_are_not_transposed_in_a_step():
    """Their gradient comes out as they are stored."""
    module = dense.DenseGeneral(5, axis=(1, 2))
    x = jnp.ones((3, 2, 4))
    variables = module.init(jax.random.key(0), x)
    step = jax.grad(lambda v: module.apply(v, x).sum())
    equations = str(jax.make_jaxpr(step)(variables))
    assert "f32[8,5]" in equations
    assert "f32[5,2,4]" not in equations


@pytest.mark.parametrize("num_rows", [2, dense.MANY_ROWS - 1, dense.MANY_ROWS])
def test_inputs_of_few_rows_are_transposed_before(num_rows):
    x, kernel = jnp.ones((num_rows, 3)), jnp.ones((3, 5))
    by_rows = (((1,), (0,)), ((), ()))
    gradient = jax.grad(lambda k: dense.as_matrices(x, k, by_rows).sum())
    is_transposed = "optimization_barrier" in str(jax.make_jaxpr(gradient)(kernel))
    assert is_transposed == (num_rows < dense.MANY_ROWS)


def test_refuses_other_products():
    x = jnp.ones((2, 3))
    with pytest.raises(AssertionError, match="the last axes"):
        dense.as_matrices(x, x, (((0,), (0,)), ((), ())))


@pytest.mark.parametrize("num_examples", [1, 4])
def test_derivatives_of_both_directions_and_of_each_other(num_examples):
    rng = np.random.default_rng(0)
    x, x_dot = rng.normal(size=(2, num_examples, 3)).astype(np.float32)
    kernel, kernel_dot = rng.normal(size=(2, 3, 5)).astype(np.float32)
    by_rows = (((1,), (0,)), ((), ()))

    def found(product):
        def total(x, kernel):
            return jnp.sin(product(x, kernel, by_rows)).sum()

        gradient = jax.grad(total, (0, 1))
        return jax.jit(
            lambda *args: (
                jax.jvp(total, args, (x_dot, kernel_dot)),
                jax.jvp(gradient, args, (x_dot, kernel_dot)),
            )
        )(x, kernel)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        found(dense.as_matrices),
        found(jax.lax.dot_general),
    )


@pytest.mark.parametrize(
    "platform, num_examples, is_ready",
    [("cpu", 4, True), ("cpu", 1, False), ("tpu", 4, False), ("cuda", 4, False)],
)
def test_inputs_are_transposed_before_the_gradient_on_cpus(
    platform, num_examples, is_ready
):
    """But not for a single example, whose gradient XLA fuses with its update."""
    module, x = dense.Dense(5), jnp.ones((num_examples, 3))
    variables = module.init(jax.random.key(0), x)
    step = jax.jit(jax.grad(lambda v: module.apply(v, x).sum()))
    lowered = step.trace(variables).lower(lowering_platforms=(platform,))
    assert ("optimization_barrier" in lowered.as_text()) == is_ready


def test_numpy_constants_of_many_agents():
    x, kernels = np.ones((2, 4, 3), np.float32), np.ones((2, 3, 5), np.float32)
    by_rows = (((1,), (0,)), ((), ()))
    many = jax.vmap(lambda x, kernel: dense.as_matrices(x, kernel, by_rows))
    np.testing.assert_allclose(jax.jit(lambda: many(x, kernels))(), x @ kernels)
