"""Warns of convolutions that are slow in the agent loop on CPUs."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, jaxprs_in_params

from p2pjax.nn.fast_convolution import image_axes, kernel_axes


class SlowConvolutionWarning(UserWarning):
    """A network trains with convolutions that are slow in the agent loop on CPUs."""


def warn_of_slow_convolutions(
    fn: Callable[..., Any], *args: Any, stacklevel: int = 2
) -> None:
    """Warns if training one agent has slow convolutions.

    Networks of the tasks of this package have fast ones (`with_fast_gradients`) but for
    groups of channels, dilated inputs and kernels with three axes. Traces the function
    by shapes only, and computes nothing. As every warning of Python, it is shown once
    per place unless filters say otherwise. On accelerators there is nothing to warn of.

    >>> import flax.linen as nn, jax, jax.numpy as jnp, warnings
    >>> import p2pjax as pj
    >>> layer, images = nn.Conv(4, (3, 3)), jnp.ones((2, 8, 8, 1))
    >>> params = layer.init(jax.random.key(0), images)
    >>> gradient = jax.grad(lambda params, x: layer.apply(params, x).sum())
    >>> with warnings.catch_warnings(record=True) as found:
    ...     warnings.simplefilter("always")
    ...     pj.nn.warn_of_slow_convolutions(gradient, params, images)
    >>> [warning.category.__name__ for warning in found]
    ['SlowConvolutionWarning']

    Args:
      fn: what one agent does, unbatched, with its gradients; a loss without its
        gradient has nothing slow.
      *args: arrays or shapes of its arguments.
      stacklevel: see `warnings.warn`.
    """
    if jax.default_backend() == "cpu" and has_slow_convolutions(fn, *args):
        warnings.warn(
            "This network's convolutions train many times slower than need be in the "
            "agent loop on a CPU: use them without groups of channels, without a "
            "dilated input and over at most two axes, and wrap a loss of your own in "
            "p2pjax.nn.with_fast_gradients.",
            SlowConvolutionWarning,
            stacklevel=stacklevel,
        )


def has_slow_convolutions(fn: Callable[..., Any], *args: Any) -> bool:
    """Whether a function has, on CPUs, autodiff's weight gradient of a convolution.

    Args:
      fn: with gradients inside, unbatched.
      *args: arrays or shapes of its arguments.

    Example:
      >>> import jax.numpy as jnp
      >>> has_slow_convolutions(jax.grad(lambda w: (w * w).sum()), jnp.ones(3))
      False
    """
    return any(map(_is_slow, _equations(jax.make_jaxpr(fn)(*args).jaxpr)))


def _equations(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Those that run on CPUs, of inner programs too."""
    for equation in jaxpr.eqns:
        yield equation
        platforms = equation.params.get("branches_platforms")
        if platforms is None:
            inner = list(jaxprs_in_params(equation.params))
        else:  # of `jax.lax.platform_dependent`; None is its default
            of_cpu = [i for i, names in enumerate(platforms) if "cpu" in (names or ())]
            branches = equation.params["branches"]
            inner = [branches[of_cpu[0] if of_cpu else -1].jaxpr]
        for one in inner:
            yield from _equations(one)


def _is_slow(equation: JaxprEqn) -> bool:
    """Whether it is autodiff's weight gradient of a convolution as flax has them."""
    if equation.primitive.name != "conv_general_dilated":
        return False
    axes = equation.params["dimension_numbers"]
    num_axes = len(axes.lhs_spec) - 2
    return axes.lhs_spec == axes.rhs_spec == _swapped(
        image_axes(num_axes)
    ) and axes.out_spec == _swapped(kernel_axes(num_axes))


def _swapped(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The gradient sums over examples, which take the place of the channels."""
    return axes[1], axes[0], *axes[2:]
