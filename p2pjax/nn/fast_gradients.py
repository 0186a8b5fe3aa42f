"""Gives any network the package's gradients of convolutions and maximum pooling.

Inside a loop over agents XLA:CPU has no fast kernel for autodiff's weight gradient of a
convolution, and its gradient of maximum pooling is slow as well (`nn.fast_conv`).
A network of one's own need not be written differently for that: it is traced, and each
such operation is evaluated with the own gradient, all others as they are.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxprs_in_params
from jax.extend.core.primitives import reduce_window_max_p

from p2pjax.nn.fast_convolution import fast_conv
from p2pjax.nn.kernels.convolution import max_pool
from p2pjax.types import Array, PyTree

# What may stand around layers. Functions with derivatives of their own are left alone.
_AROUND = ("jit", "remat2", "scan", "cond")

_LARGEST_WINDOW = 25  # pixels: the own gradient has an operation for each of them


def _fast_max_pool(x: Array, **params: Any) -> Array:
    """As XLA's, of which windows between examples and channels are covered."""
    window, strides = params["window_dimensions"], params["window_strides"]
    padding = params["padding"]
    is_covered = (
        x.ndim in (3, 4)
        and jnp.issubdtype(x.dtype, jnp.floating)
        and window[0] == window[-1] == strides[0] == strides[-1] == 1
        and padding[0] == padding[-1] == (0, 0)
        and all(step == 1 for step in params["base_dilation"])
        and all(step == 1 for step in params["window_dilation"])
        and math.prod(window) <= _LARGEST_WINDOW
    )
    if not is_covered:
        return reduce_window_max_p.bind(x, **params)
    lowest = jnp.array(-jnp.inf, x.dtype)
    x = jax.lax.pad(x, lowest, [(low, high, 0) for low, high in padding])
    if x.ndim == 4:
        return max_pool(x, window[1:3], strides[1:3])
    return max_pool(x[:, None], (1, window[1]), (1, strides[1]))[:, 0]


_FAST: dict[str, Callable[..., Array]] = {
    "conv_general_dilated": fast_conv,
    "reduce_window_max": _fast_max_pool,
}


def with_fast_gradients(fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same function with fast gradients in the agent loop on CPUs.

    Values are the same and gradients equal up to rounding, on every platform. Layers
    inside `jax.jit`, `jax.checkpoint`, `jax.lax.scan` and `jax.lax.cond` are found too.
    What `fast_conv` leaves to `jax.lax` stays there, and so does what is inside
    functions with derivatives of their own (`jax.custom_vjp`). Forward-mode derivatives
    of it are not defined, but those of its gradients are. The tasks of this package do
    this for every network; it is for a loss of your own.

    >>> import flax.linen as nn, jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> layer, images = nn.Conv(4, (3, 3)), jnp.ones((2, 8, 8, 1))
    >>> params = layer.init(jax.random.key(0), images)
    >>> loss = lambda params: layer.apply(params, images).sum()
    >>> pj.nn.has_slow_convolutions(jax.grad(loss), params)
    True
    >>> fast = pj.nn.with_fast_gradients(loss)
    >>> pj.nn.has_slow_convolutions(jax.grad(fast), params)
    False

    Args:
      fn: of pytrees of arrays, to a pytree of arrays.
    """

    def fast(*args: PyTree) -> PyTree:
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        leaves = _evaluate(closed, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    return fast


def _evaluate(closed: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    known = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        with equation.ctx.manager:
            found = _apply(equation, [read(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
    primitive, params = equation.primitive, equation.params
    if primitive.name in _FAST:
        return [_FAST[primitive.name](*operands, **params)]
    if _is_around_a_layer(equation):
        params = {name: _inside(value) for name, value in params.items()}
    found = primitive.bind(*operands, **primitive.get_bind_params(params))
    return found if primitive.multiple_results else [found]


def _is_around_a_layer(equation: JaxprEqn) -> bool:
    if equation.primitive.name not in _AROUND:
        return False
    if equation.params.get("branches_platforms") is not None:
        return False  # of `jax.lax.platform_dependent`: someone has chosen already
    return any(
        inner.primitive.name in _FAST or _is_around_a_layer(inner)
        for jaxpr in jaxprs_in_params(equation.params)
        for inner in jaxpr.eqns
    )


def _inside(value: Any) -> Any:
    """A parameter of an operation, with every program in it evaluated anew."""
    if isinstance(value, tuple) and all(isinstance(v, ClosedJaxpr) for v in value):
        return tuple(map(_inside, value))
    if isinstance(value, Jaxpr):
        return _inside(ClosedJaxpr(value, ())).jaxpr
    if not isinstance(value, ClosedJaxpr):
        return value
    evaluate = lambda *args: _evaluate(value, args)
    return jax.make_jaxpr(evaluate)(*value.in_avals)
