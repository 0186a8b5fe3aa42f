"""Coordinates of a posterior that is narrower than its cavity, and the factor between.

A cavity is a product of Gaussian factors without one of them. That one is positive by
construction if what is learned is a mean, and a deviation below the cavity's.
"""

import jax
import jax.numpy as jnp

from p2pjax.nn.gaussian import Coordinates, Gaussian, Natural
from p2pjax.types import Array, InputError

FLAT = 1e-8  # precision of a cavity in which no client has said anything yet


LARGEST_START = 0.95  # of a deviation relative to its cavity's, where refining begins


LARGEST_LOGIT = 30.0  # of relative deviations, so that none becomes 0


SHARPEST = 1e12  # precision of a factor, so that products stay finite


def narrower(cavity: Natural, largest_start: float = LARGEST_START) -> Coordinates:
    """Means, and logits of deviations relative to those of a cavity.

    Any positive factor can be said so, and unlike the factor's own mean and deviation
    these move the posterior at the optimizer's rate however flat the factor is.

    Args:
      cavity: product of the other factors.
      largest_start: of a deviation relative to its cavity's, where refining begins,
        below 1. A factor starts with `1 / largest_start**2 - 1` times the precision of
        its cavity at least, whatever the data say; the nearer to 1, the longer an
        optimizer takes to leave it.

    Example:
      >>> cavity = Natural(jnp.ones(()), jnp.zeros(()))
      >>> coordinates = narrower(cavity)
      >>> free = coordinates.free(Gaussian(jnp.zeros(()), jnp.ones(())))
      >>> round(float(coordinates.gaussian(free).stddev), 4)
      0.95
    """
    if not 0 < largest_start < 1:
        raise InputError(f"Need a largest_start between 0 and 1, got {largest_start}.")
    widest = jax.tree.map(
        lambda precision: jax.lax.rsqrt(jnp.maximum(precision, FLAT)), cavity.precision
    )

    def free_fn(q: Gaussian) -> Gaussian:
        def logit(stddev: Array, widest: Array) -> Array:
            ratio = jnp.minimum(stddev / widest, largest_start)
            return jnp.log(ratio) - jnp.log1p(-ratio)

        return Gaussian(q.mean, jax.tree.map(logit, q.stddev, widest))

    def gaussian_fn(free: Gaussian) -> Gaussian:
        def stddev(logit: Array, widest: Array) -> Array:
            return widest * jax.nn.sigmoid(_bounded(logit))

        return Gaussian(free.mean, jax.tree.map(stddev, free.stddev, widest))

    return Coordinates(free_fn, gaussian_fn)


def factor_of(free: Gaussian, cavity: Natural) -> Natural:
    """The factor that turns a cavity into a posterior given in `narrower` coordinates.

    Its precision is cavity * (1 / sigmoid^2 - 1), written so that it is positive.

    Args:
      free: coordinates of the posterior.
      cavity: product of the other factors.

    Example:
      >>> cavity = Natural(jnp.ones(()), jnp.zeros(()))
      >>> half = Gaussian(jnp.ones(()), jnp.zeros(()))  # deviation half the cavity's
      >>> factor = factor_of(half, cavity)
      >>> float(factor.precision), float(factor.shift)
      (3.0, 4.0)
    """

    def precision_of(logit: Array, precision: Array) -> Array:
        odds = jnp.exp(-_bounded(logit))
        return jnp.minimum(jnp.maximum(precision, FLAT) * odds * (2 + odds), SHARPEST)

    precision = jax.tree.map(precision_of, free.stddev, cavity.precision)
    posterior = jax.tree.map(jnp.add, cavity.precision, precision)
    shift = jax.tree.map(
        lambda mean, precision, other: mean * precision - other,
        free.mean,
        posterior,
        cavity.shift,
    )
    return Natural(precision, shift)


def _bounded(logit: Array) -> Array:
    return jnp.clip(logit, -LARGEST_LOGIT, LARGEST_LOGIT)
