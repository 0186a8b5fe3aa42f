"""Dense layers of several axes are products of matrices, with the same numbers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from p2pjax.models import dense

LAYERS = {
    "rows": (dict(features=4), (5, 3)),
    "sequences": (dict(features=(2, 3)), (2, 7, 4)),
    "two_axes_of_inputs": (dict(features=3, axis=(-2, -1)), (2, 7, 2, 4)),
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


def test_refuses_other_products():
    x = jnp.ones((2, 3))
    with pytest.raises(AssertionError, match="the last axes"):
        dense.as_matrices(x, x, (((0,), (0,)), ((), ())))
