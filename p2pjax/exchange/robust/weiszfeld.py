"""The geometric median, by a few smoothed steps of Weiszfeld's algorithm.

K. Pillutla et al. 2022, "Robust aggregation for federated learning",
https://arxiv.org/abs/1912.13445.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange.robust.base import Received, Rule, gram_rule, members, own_alone
from p2pjax.exchange.robust.checking import check_count, check_positive
from p2pjax.exchange.robust.ordering import distances_from
from p2pjax.types import Array, InputError

STARTS = ("own", "mean", "zero")


def geometric_median(
    max_byzantine: int,
    smoothing: float = 0.1,
    num_iterations: int = 8,
    start: str = "own",
    weighted: bool = False,
) -> Rule:
    """The point with the smallest sum of distances to all members, nearly.

    Each step takes the mean of members with weights `1 / max(smoothing, distance)`. The
    point is always a mean of members, so that only their coefficients are computed.

    Args:
      max_byzantine: messages that may be hostile; a receiver with no more than twice
        as many members keeps its own model.
      smoothing: distances below count as this one. In single precision distances to the
        point are exact to about 3e-4 of those between members: not much below that.
      num_iterations: steps.
      start: "own" model, the "mean" of all members, or "zero" as in byzfl.
      weighted: by the mixing weights.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [1.0], [1.0], [2.0], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.geometric_median(2), received, members).round(1).tolist()
      [1.0]
    """
    b = check_count(max_byzantine, "max_byzantine")
    smoothing = check_positive(smoothing, "smoothing")
    num_iterations = check_count(num_iterations, "num_iterations", 1)
    if start not in STARTS:
        raise InputError(f'Need start of "own", "mean" or "zero", got "{start}".')

    def coefficients_fn(received: Received) -> Array:
        distance = received.distance
        squares = jnp.asarray(received.squares)
        counts = members(received).astype(distance.dtype)
        if weighted:
            counts = jnp.asarray(received.weight)

        def mean(counts: Array) -> jax.Array:
            total = counts.sum()
            safe = jnp.where(total > 0, total, 1)
            return jnp.where(total > 0, counts / safe, own_alone(distance))

        def step(_: int, coefficients: jax.Array) -> jax.Array:
            apart = distances_from(squares, coefficients)
            return mean(counts / jnp.maximum(apart, smoothing))

        if start == "own":
            first = own_alone(distance)
        elif start == "mean":
            first = mean(counts)
        else:  # the step from zero, which no mean of members reaches
            first = mean(counts / jnp.maximum(jnp.asarray(received.norm), smoothing))
        num_left = num_iterations - (start == "zero")
        return jax.lax.fori_loop(0, num_left, step, first)

    return gram_rule(
        "geometric_median",
        coefficients_fn,
        needs_pairs=True,
        needs_norms=start == "zero",
        max_byzantine=b,
        min_members=2 * b + 1,
        is_set=True,
    )
