"""Mean-field Gaussians over trees of weights, in three kinds of coordinates.

`Gaussian` has means and deviations: what a network draws its weights from. `Natural`
has precisions and precisions times means: products add and quotients subtract. Free
coordinates are whatever an optimizer may change without limits.
"""

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.types import Array, PyTree


class Gaussian(NamedTuple):
    """Independent normal weights; both trees have the same leaves."""

    mean: PyTree
    stddev: PyTree  # positive; {} where the weights are their means


class Natural(NamedTuple):
    """The same as a factor of a product; zeros are the flat factor."""

    precision: PyTree  # 1 / variance
    shift: PyTree  # mean / variance


class Coordinates(NamedTuple):
    """Free numbers that stand for a Gaussian, and back."""

    free: Callable[[Gaussian], PyTree]
    gaussian: Callable[[PyTree], Gaussian]


def natural(q: Gaussian) -> Natural:
    """Natural parameters."""
    precision = jax.tree.map(lambda stddev: stddev**-2, q.stddev)
    return Natural(precision, jax.tree.map(jnp.multiply, q.mean, precision))


def moments(q: Natural) -> Gaussian:
    """Mean and deviation of a factor that is not flat."""
    mean = jax.tree.map(jnp.divide, q.shift, q.precision)
    return Gaussian(mean, jax.tree.map(jax.lax.rsqrt, q.precision))


def product(*factors: Natural) -> Natural:
    """Product of densities, up to a constant."""
    return jax.tree.map(lambda *leaves: reduce(add, leaves), *factors)


def quotient(q: Natural, divisor: Natural) -> Natural:
    """Quotient of densities; its precision is negative where the divisor is sharper."""
    return jax.tree.map(jnp.subtract, q, divisor)


def power(q: Natural, exponent: Array | float) -> Natural:
    """A density to a power."""
    return jax.tree.map(lambda leaf: leaf * jnp.asarray(exponent, leaf.dtype), q)


def damped(old: Natural, new: Natural, damping: Array | float) -> Natural:
    """The part `damping` of the way from old to new; both positive, so is this."""
    return product(power(old, 1 - damping), power(new, damping))


def kl_divergence(q: Gaussian, p: Gaussian) -> Array:
    """Kullback-Leibler divergence KL(q || p), summed over all weights."""

    def of_leaf(mean: Array, stddev: Array, mean_p: Array, stddev_p: Array):
        ratio = stddev / stddev_p
        distance = (mean - mean_p) / stddev_p
        return (jnp.square(ratio) + jnp.square(distance) - 1).sum() / 2 - jnp.log(
            ratio
        ).sum()

    parts = jax.tree.map(of_leaf, q.mean, q.stddev, p.mean, p.stddev)
    return reduce(add, jax.tree.leaves(parts), jnp.zeros(()))


def centered(stddev: float, like: PyTree) -> Gaussian:
    """Mean 0 and the same deviation everywhere: a prior for weights `like` these."""
    return Gaussian(
        jax.tree.map(jnp.zeros_like, like),
        jax.tree.map(lambda leaf: jnp.full_like(leaf, stddev), like),
    )


def _softplus_free(q: Gaussian) -> Gaussian:
    return Gaussian(q.mean, jax.tree.map(inverse_softplus, q.stddev))


def _softplus_gaussian(free: Gaussian) -> Gaussian:
    return Gaussian(free.mean, jax.tree.map(jax.nn.softplus, free.stddev))


def inverse_softplus(x: Array) -> Array:
    """The y with log(1 + exp(y)) = x, for positive x."""
    return x + jnp.log(-jnp.expm1(-x))


# Deviations are softplus of a free number.
SOFTPLUS = Coordinates(_softplus_free, _softplus_gaussian)


# The means alone: an ordinary network.
POINT = Coordinates(lambda q: q.mean, lambda mean: Gaussian(mean, {}))
