"""Rules that leave out what is far from the own model, or from the mean.

GTS: R. Gaucher et al. 2025, "Unified breakdown analysis for Byzantine robust gossip",
https://arxiv.org/abs/2410.10418. NNA: S. Farhadkhani et al. 2023, "Robust collaborative
learning with linear gradient overhead", https://arxiv.org/abs/2209.10931. IOS: Z. Wu et
al. 2023, "Byzantine-resilient decentralized stochastic optimization with robust
aggregation rules", https://arxiv.org/abs/2206.04568.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange.robust.base import (
    Received,
    Rule,
    from_neighbors,
    gram_rule,
    members,
    product,
)
from p2pjax.exchange.robust.checking import check_count, check_positive
from p2pjax.exchange.robust.ordering import (
    equal_shares,
    farther_weight,
    largest_sum,
    neighbors,
    number,
    ranks,
)
from p2pjax.types import Array


def gts(max_byzantine: int, step_size: float = 1.0) -> Rule:
    """Drops a weight of b from the far end; what is dropped counts for oneself.

    Args:
      max_byzantine: messages that may be hostile; b is the weight of as many of the
        heaviest. Where weights differ, the last one may be dropped in part.
      step_size: eta of `x + eta sum_j c_j (m_j - x)`.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [1.0], [2.0], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.gts(1), received, members).tolist()
      [0.75]
    """
    count = check_count(max_byzantine, "max_byzantine")
    step_size = check_positive(step_size, "step_size")

    def coefficients_fn(received: Received) -> Array:
        weight = jnp.asarray(received.weight)
        among = neighbors(received.present)
        tolerated = largest_sum(weight, among, count)
        left = tolerated - farther_weight(weight, received.distance, among)
        return from_neighbors(weight - jnp.clip(left, 0, weight), step_size)

    return gram_rule("gts", coefficients_fn, max_byzantine=count, step_size=step_size)


def nna(max_byzantine: int) -> Rule:
    """Nearest neighbour averaging: mean of the n - b members nearest to one's own.

    The own model is one of them.

    Args:
      max_byzantine: b, messages that may be hostile.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [1.0], [2.0], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.nna(1), received, members).tolist()
      [1.0]
    """
    b = check_count(max_byzantine, "max_byzantine")

    def coefficients_fn(received: Received) -> Array:
        counted, distance = members(received), received.distance
        count = jnp.maximum(number(counted) - b, 1)
        # Slot 0 is at 0, and first of ties.
        is_kept = counted & (ranks(distance, counted) < count)
        return equal_shares(is_kept, distance)

    return gram_rule("nna", coefficients_fn, max_byzantine=b, is_set=True)


def ios(max_byzantine: int) -> Rule:
    """Iterative outlier scissor: leaves out the farthest from the mean, b times.

    The mean is weighted and of those that are still trusted, always with the own model.

    Args:
      max_byzantine: b, messages that may be hostile.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [1.0], [2.0], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.ios(1), received, members).tolist()
      [1.0]
    """
    b = check_count(max_byzantine, "max_byzantine")

    def coefficients_fn(received: Received) -> Array:
        weight, present = jnp.asarray(received.weight), received.present
        squares = jnp.asarray(received.squares)

        def mean(is_trusted: Array) -> Array:
            trusted = jnp.where(is_trusted, weight, 0)
            total = trusted.sum()
            return from_neighbors(trusted / jnp.where(total > 0, total, 1))

        def remove(_: Array | int, is_trusted: Array) -> Array:
            # Squared distance from the mean, but for what is the same for all.
            apart = product(squares, mean(is_trusted))
            farthest = jnp.argmax(jnp.where(neighbors(is_trusted), apart, -jnp.inf))
            slots = jnp.arange(apart.shape[0])
            return is_trusted & ((slots == 0) | (slots != farthest))

        return mean(jax.lax.fori_loop(0, b, remove, present))

    return gram_rule("ios", coefficients_fn, needs_pairs=True, max_byzantine=b)
