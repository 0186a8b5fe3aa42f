"""Two groups of numbers: a mixture of two Gaussians, fitted by EM inside a program.

The steps are those of scikit-learn's `GaussianMixture` that starts from a given
division: M-step first, at most 100 rounds, until the mean log-likelihood changes by
less than 1e-3.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.types import Array

VARIANCE_FLOOR = 1e-6  # added to variances


TOLERANCE = 1e-3


MAX_ITERATIONS = 100


EPSILON = 1e-6  # added to the weight of a component


class Mixture(NamedTuple):
    """Components 0 and 1."""

    weight: Array  # [2]
    mean: Array  # [2]
    variance: Array  # [2]


class Fit(NamedTuple):
    """A mixture and what it says of the numbers."""

    mixture: Mixture
    label: Array  # [L] bool: whether component 1 is likelier
    num_iterations: Array  # []


def fit(values: Array, is_one: Array, mask: Array) -> Fit:
    """Fits the numbers of ONE agent; vmap it over agents.

    Args:
      values: `[L]`; finite where `mask` is true.
      is_one: `[L]` those that begin in component 1.
      mask: `[L]` which numbers exist.
    """
    exists = mask.astype(values.dtype)
    num_values = jnp.maximum(exists.sum(), 1)
    # Shifted, so that float32 holds the variances of large numbers.
    shift = jnp.where(mask, values, 0).sum() / num_values
    values = jnp.where(mask, values - shift, 0)

    def maximize(share: Array) -> Mixture:  # share [L, 2]
        share = share * exists[:, None]
        total = share.sum(0) + EPSILON
        mean = (share * values[:, None]).sum(0) / total
        squares = jnp.square(values[:, None] - mean[None])
        variance = (share * squares).sum(0) / total + VARIANCE_FLOOR
        return Mixture(total / total.sum(), mean, variance)

    def expect(mixture: Mixture) -> tuple[Array, Array]:
        squares = jnp.square(values[:, None] - mixture.mean[None])
        constant = jnp.log(mixture.weight) - jnp.log(2 * jnp.pi * mixture.variance) / 2
        log_joint = constant[None] - squares / (2 * mixture.variance[None])
        log_value = jax.nn.logsumexp(log_joint, axis=1)  # [L]
        mean = (log_value * exists).sum() / num_values
        return mean, jnp.exp(log_joint - log_value[:, None])

    def proceed(carry: tuple) -> Array:
        _, _, change, iterations = carry
        return (jnp.abs(change) >= TOLERANCE) & (iterations < MAX_ITERATIONS)

    def advance(carry: tuple) -> tuple:
        mixture, likelihood, _, iterations = carry
        new, share = expect(mixture)
        return maximize(share), new, new - likelihood, iterations + 1

    one = is_one.astype(values.dtype)
    infinite = jnp.asarray(jnp.inf, values.dtype)
    start = maximize(jnp.stack([1 - one, one], 1)), -infinite, infinite, jnp.int32(0)
    mixture, _, _, iterations = jax.lax.while_loop(proceed, advance, start)
    _, share = expect(mixture)
    label = (share[:, 1] > share[:, 0]) & mask
    return Fit(mixture._replace(mean=mixture.mean + shift), label, iterations)
