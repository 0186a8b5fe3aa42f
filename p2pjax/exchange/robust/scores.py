"""Krum and multi-Krum: members with many near others.

P. Blanchard et al. 2017, "Machine learning with adversaries: Byzantine tolerant
gradient descent", https://arxiv.org/abs/1703.02757.
"""

import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.robust.base import Received, Rule, gram_rule, members
from p2pjax.exchange.robust.checking import check_count
from p2pjax.exchange.robust.ordering import equal_shares, number, ranks
from p2pjax.types import Array, InputError

CLOSEST = {"n-b-2": 2, "n-b-1": 1}  # how many others a score looks at


def krum(max_byzantine: int, closest: str = "n-b-2") -> Rule:
    """The member with the smallest sum of squared distances to its nearest others.

    Args:
      max_byzantine: b, messages that may be hostile; a receiver with no more than twice
        as many members keeps its own model.
      closest: how many others of n members count, at least one: "n-b-2" as in the
        paper, or "n-b-1" as in the libraries byzfl and byzpy.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[1.0], [2.0], [2.1], [4.0], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.krum(1), received, members).round(1).tolist()
      [2.0]
    """
    return _krum("krum", max_byzantine, 1, closest)


def multi_krum(
    max_byzantine: int, num_selected: int | None = None, closest: str = "n-b-2"
) -> Rule:
    """Mean of the members with the best scores of Krum.

    Args:
      max_byzantine: see `krum`.
      num_selected: of n members; None for n - b.
      closest: see `krum`.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[1.0], [2.0], [3.0], [4.0], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.multi_krum(1), received, members).tolist()
      [2.5]
    """
    if num_selected is not None:
        num_selected = check_count(num_selected, "num_selected", 1)
    return _krum("multi_krum", max_byzantine, num_selected, closest)


def _krum(
    name: str, max_byzantine: int, num_selected: int | None, closest: str
) -> Rule:
    b = check_count(max_byzantine, "max_byzantine")
    if closest not in CLOSEST:
        raise InputError(f'Need closest of "n-b-2" or "n-b-1", got "{closest}".')

    def coefficients_fn(received: Received) -> Array:
        counted = members(received)
        n = number(counted)
        score = scores(received, b, closest)
        count = n - b if num_selected is None else jnp.minimum(num_selected, n)
        is_selected = counted & (ranks(score, counted) < count)
        return equal_shares(is_selected, score)

    def doubt(num_members: np.ndarray, weight: np.ndarray | None) -> str | None:
        del weight
        agent = int(np.argmin(num_members))
        if num_members[agent] >= 2 * b + 3:
            return None
        return (
            f"{name} promises something from 2 x {b} + 3 messages on (with one's own), "
            f"got {num_members[agent]} at agent {agent}: lower b or use a denser graph."
        )

    return gram_rule(
        name,
        coefficients_fn,
        needs_pairs=True,
        max_byzantine=b,
        min_members=2 * b + 1,
        doubt=doubt,
        is_set=True,
    )


def scores(received: Received, max_byzantine: int, closest: str = "n-b-2") -> Array:
    """Sum of squared distances of each member to its nearest others, `[K]`.

    Args:
      received: with squared distances; those of absent members are not read.
      max_byzantine: b.
      closest: see `krum`.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [1.0], [3.0], [9.0]])
      >>> scores(robust.received_from_members(members), 1).tolist()
      [1.0, 1.0, 4.0, 36.0]
    """
    present, squares = members(received), jnp.asarray(received.squares)
    size = squares.shape[0]
    is_other = present[None, :] & ~jnp.eye(size, dtype=bool)
    nearest_first = jnp.sort(jnp.where(is_other, squares, jnp.inf), axis=1)
    num_others = number(present) - 1
    count = jnp.maximum(num_others + 1 - max_byzantine - CLOSEST[closest], 1)
    places = jnp.arange(size, dtype=jnp.int32)[None, :]
    is_counted = places < jnp.minimum(count, num_others)
    return jnp.where(is_counted, nearest_first, 0).sum(1)
