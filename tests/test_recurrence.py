"""Derivatives of the GRU's recurrence against finite differences and autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from p2pjax.nn.cells import CellMask
from p2pjax.nn.kernels import recurrence
from p2pjax.nn.kernels.recurrence import gru_state

TIMES, BATCH, UNITS = 4, 3, 2
# The second example is padded on the left, the third on the right.
IS_TOKEN = np.array([[1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0]], bool).T
SMALLER = CellMask(mask=np.array([True, False]), present=np.array(True))


def state_of(cells):
    """Last state as a function of everything that has derivatives, in float64."""
    rng = np.random.default_rng(0)
    shapes = (TIMES, BATCH, 3, UNITS), (UNITS, 3, UNITS), (3, UNITS)
    values = [rng.normal(size=shape) for shape in shapes]
    if cells is not None:
        values[1][~cells.mask] = 0  # absent cells have no weights
    return lambda p, k, b: gru_state(p, IS_TOKEN, k, b, cells), values


@pytest.mark.parametrize("cells", [None, SMALLER], ids=["all", "fewer cells"])
def test_derivatives_are_those_of_finite_differences(cells):
    with jax.enable_x64(True):
        fn, values = state_of(cells)
        check_grads(fn, values, order=1, modes=["fwd", "rev"], atol=1e-7, rtol=1e-7)


def test_derivatives_are_those_of_autodiff():
    with jax.enable_x64(True):
        fn, values = state_of(None)
        toward = np.random.default_rng(1).normal(size=(BATCH, UNITS))

        def plain(p, k, b):
            return recurrence._walk(p, IS_TOKEN, k, b, None)[0]

        results = [
            jax.grad(lambda *args, fn=fn: (fn(*args) * toward).sum(), (0, 1, 2))(
                *values
            )
            for fn in (fn, plain)
        ]
        for ours, autodiffs in zip(*results, strict=True):
            np.testing.assert_allclose(ours, autodiffs, rtol=1e-12, atol=1e-14)


def test_padding_passes_no_gradient_on():
    fn, (projected, kernel, bias) = state_of(None)
    args = [jnp.asarray(v, jnp.float32) for v in (projected, kernel, bias)]
    gradient = jax.grad(lambda *args: fn(*args).sum())(*args)
    assert np.abs(np.asarray(gradient)[IS_TOKEN]).min() > 0
    assert not np.asarray(gradient)[~IS_TOKEN].any()


def test_weights_have_one_product_for_all_times():
    """Otherwise every step back adds to a gradient as large as the weights."""
    fn, values = state_of(None)
    args = [jnp.asarray(v, jnp.float32) for v in values]
    jaxpr = jax.make_jaxpr(jax.grad(lambda *args: fn(*args).sum(), (0, 1, 2)))(*args)
    loops = [eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name == "scan"]
    carried = [
        var.aval.shape
        for eqn in loops
        for var in eqn.outvars[: eqn.params["num_carry"]]
    ]
    assert len(loops) == 2 and carried == [(BATCH, UNITS)] * 2
