"""Rules that look at each number by itself: the median and the trimmed mean.

D. Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical
rates", https://arxiv.org/abs/1803.01498. That the own model is never trimmed is from
C. Fang et al. 2022, "BRIDGE: Byzantine-resilient decentralized gradient descent",
https://arxiv.org/abs/1908.08098.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange.robust.base import Rule, coordinate_rule
from p2pjax.exchange.robust.checking import check_count
from p2pjax.exchange.robust.ordering import neighbors, number
from p2pjax.types import Array


def median(max_byzantine: int) -> Rule:
    """Median of each number; of an even number of members, mean of the middle two.

    Args:
      max_byzantine: messages that may be hostile; a receiver with no more than twice
        as many members keeps its own model.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[1.0, 9.0], [2.0, 1.0], [1e9, 2.0]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.median(1), received, members).tolist()
      [2.0, 2.0]
    """
    b = check_count(max_byzantine, "max_byzantine")

    def combine_fn(members: Array, present: Array, weight: Array) -> Array:
        del weight
        rank = _ranks(members, present)
        n = number(present)

        def ranked(place: Array) -> Array:
            return jnp.where(rank == place, members, 0).sum(0)

        return ranked((n - 1) // 2) / 2 + ranked(n // 2) / 2

    return coordinate_rule(
        "median", combine_fn, max_byzantine=b, min_members=2 * b + 1, is_set=True
    )


def trimmed_mean(max_byzantine: int, keep_self: bool = False) -> Rule:
    """Mean of each number without its largest and smallest values.

    Args:
      max_byzantine: b: so many are trimmed on either side; a receiver with no more than
        twice as many members keeps its own model.
      keep_self: only messages are trimmed, and the own value always counts (BRIDGE).

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[1.0], [2.0], [3.0], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.trimmed_mean(1), received, members).tolist()
      [2.5]
    """
    b = check_count(max_byzantine, "max_byzantine")

    def combine_fn(members: Array, present: Array, weight: Array) -> Array:
        del weight
        trimmed = neighbors(present) if keep_self else present
        rank = _ranks(members, trimmed)
        num_kept = jnp.maximum(number(trimmed) - 2 * b, 0)
        total = jnp.where((rank >= b) & (rank < b + num_kept), members, 0).sum(0)
        if keep_self:
            total, num_kept = total + members[0], num_kept + 1
        return total / jnp.maximum(num_kept, 1).astype(total.dtype)

    return coordinate_rule(
        "trimmed_mean",
        combine_fn,
        max_byzantine=b,
        min_members=2 * b + 1,
        is_set=not keep_self,
    )


def _ranks(members: Array, among: Array) -> Array:
    """Rank of each number among those of its column, `[K, c]`; the rest comes last.

    Counting who is below is K^2 comparisons, yet vectorised: on two CPU cores 7 to 25
    times faster than sorting columns, for 5 to 100 members.
    """
    values = jnp.where(among[:, None], members, jnp.inf)
    slots = jnp.arange(values.shape[0])

    def count(
        rank: jax.Array, slot: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, None]:
        index, row = slot
        is_earlier = (index < slots)[:, None]
        is_below = (row[None] < values) | ((row[None] == values) & is_earlier)
        return rank + is_below.astype(rank.dtype), None

    none = jnp.zeros(values.shape, jnp.int32)
    return jax.lax.scan(count, none, (slots, values))[0]
