"""Orders, sums and distances of members, some of which are not there."""

import jax
import jax.numpy as jnp

from p2pjax.types import Array

TOLERANCE = 1e-6  # of all weight: sums of equal weights miss equality by less


def ranks(values: Array, among: Array) -> Array:
    """0 for the smallest, `[K]`; ties go to the lowest index, the rest comes last.

    Args:
      values: `[K]`, or `[..., K]` with an order for each row.
      among: `[..., K]` bool, those that are ordered.

    Example:
      >>> ranks(jnp.array([3.0, 1.0, 0.0, 1.0]), jnp.array([1, 1, 0, 1], bool)).tolist()
      [2, 0, 3, 1]
    """
    order = jnp.argsort(jnp.where(among, values, jnp.inf), axis=-1, stable=True)
    return jnp.argsort(order, axis=-1, stable=True).astype(jnp.int32)


def number(among: Array) -> jax.Array:
    """How many there are."""
    return among.sum(dtype=jnp.int32)


def neighbors(present: Array) -> Array:
    """Those present that are not the receiver itself, `[K]`."""
    return present & (jnp.arange(present.shape[0]) > 0)


def equal_shares(among: Array, like: Array) -> jax.Array:
    """One over their number for some of `[..., K]`, 0 for the others.

    Args:
      among: `[..., K]` bool; the shares of a row without any are 0.
      like: any array of the type that shares get.

    Example:
      >>> equal_shares(jnp.array([True, False, True]), jnp.zeros(1)).tolist()
      [0.5, 0.0, 0.5]
    """
    counts = jnp.asarray(among).astype(like.dtype)
    return counts / jnp.maximum(counts.sum(-1, keepdims=True), 1)


def farther_weight(weight: Array, distance: Array, among: Array) -> Array:
    """How much weight is farther away than each of some members, `[K]`.

    Sums run from the far end. Of members with equal distances, that with the lowest
    index is the nearest.

    Args:
      weight: `[K]`.
      distance: `[K]`.
      among: `[K]` bool, those that are looked at.

    Example:
      >>> all_of_them = jnp.ones(3, bool)
      >>> distance = jnp.array([2.0, 1.0, 3.0])
      >>> farther_weight(jnp.array([0.25, 0.5, 0.125]), distance, all_of_them).tolist()
      [0.125, 0.375, 0.0]
    """
    size = distance.shape[0]
    nearest_first = jnp.argsort(jnp.where(among, distance, -jnp.inf), stable=True)
    from_far = nearest_first[::-1]  # those not looked at come last
    sums = jnp.cumsum(jnp.where(among, weight, 0)[from_far])
    before = jnp.concatenate([jnp.zeros(1, sums.dtype), sums[:-1]])
    place = size - 1 - jnp.argsort(nearest_first, stable=True)
    return before[place]


def largest_sum(weight: Array, among: Array, count: int) -> Array:
    """Sum of the `count` largest weights: what so many hostile members can weigh.

    Args:
      weight: `[K]`.
      among: `[K]` bool, those that are looked at.
      count: of them; all if there are fewer.

    Example:
      >>> weight = jnp.array([0.5, 0.25, 0.125, 0.125])
      >>> float(largest_sum(weight, jnp.array([False, True, True, True]), 2))
      0.375
    """
    if count == 0:
        return jnp.zeros((), weight.dtype)
    largest_first = jnp.sort(jnp.where(among, weight, 0))[::-1]
    # The same sums in the same order as from the far end: equal weights, equal sums.
    return jnp.cumsum(largest_first)[min(count, weight.shape[0]) - 1]


def distances_from(squares: Array, coefficients: Array) -> jax.Array:
    """Distance of each member from a mean of all, `[K]`.

    Each is the length of a sum of differences from that very member. Sums of squared
    distances would be the same number and less to compute, but in single precision a
    hostile message at 1e15, or a mean that is nearly a member, leaves nothing of it.
    What rounding does to the products of differences is bounded by Cauchy and Schwarz.

    Args:
      squares: squared distances between members, `[K, K]`.
      coefficients: of the mean, `[K]`, of sum 1 and not negative.

    Example:
      >>> points = jnp.array([0.0, 2.0, 3.0])
      >>> squares = jnp.square(points[:, None] - points[None])
      >>> distances_from(squares, jnp.array([0.0, 0.5, 0.5])).tolist()
      [2.5, 0.5, 0.5]
    """
    counts = coefficients[:, None] * coefficients[None, :]

    def square_from(square: Array) -> Array:
        """Of one member, from its squared distances `[K]` to the others."""
        length = jnp.sqrt(square)
        bound = length[:, None] * length[None, :]
        products = (square[:, None] + square[None, :] - squares) / 2
        return (counts * jnp.clip(products, -bound, bound)).sum()

    return jnp.sqrt(jnp.maximum(jax.lax.map(square_from, jnp.asarray(squares)), 0))
