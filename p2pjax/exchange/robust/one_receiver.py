"""Rules end to end for ONE receiver whose members are at hand, as in small problems."""

import jax.numpy as jnp

from p2pjax.exchange.robust.base import Received, Rule, product
from p2pjax.types import Array, Key


def received_from_members(
    members: Array,
    weight: Array | None = None,
    present: Array | None = None,
    *,
    loss: Array | None = None,
    progress: Array | float | None = None,
    key: Key | None = None,
) -> Received:
    """What a receiver has, all distances included, for small problems and tests.

    It holds all differences `[K, K, P]` at once.

    Args:
      members: `[K, P]`, the own model first.
      weight: mixing weights `[K]`; None for equal ones.
      present: `[K]`; None for all.
      loss: see `Received`.
      progress: see `Received`.
      key: see `Received`.

    Example:
      >>> members = jnp.array([[0.0, 0.0], [3.0, 4.0]])
      >>> received_from_members(members).distance.tolist()
      [0.0, 5.0]
    """
    members = jnp.asarray(members)
    num_slots = members.shape[0]
    if weight is None:
        weight = jnp.full(num_slots, 1 / num_slots, members.dtype)
    if present is None:
        present = jnp.ones(num_slots, bool)
    present = jnp.asarray(present, bool).at[0].set(True)
    members = jnp.where(present[:, None], members, members[:1])
    squares = jnp.square(members[:, None] - members[None]).sum(-1)  # [K, K]
    return Received(
        weight=jnp.asarray(weight).astype(members.dtype),
        present=present,
        distance=jnp.sqrt(squares[0]),
        squares=squares,
        norm=jnp.sqrt(jnp.square(members).sum(1)),
        loss=None if loss is None else jnp.asarray(loss),
        progress=None if progress is None else jnp.asarray(progress, members.dtype),
        key=key,
    )


def apply(rule: Rule, received: Received, members: Array) -> Array:
    """What ONE receiver has after a rule, `[P]`.

    Args:
      rule: of either kind.
      received: what the receiver has.
      members: `[K, P]`, the own model first; those not present may hold anything.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[1.0], [2.0], [1e9]])
      >>> received = received_from_members(members)
      >>> apply(robust.median(1), received, members).tolist()
      [2.0]
    """
    present = jnp.asarray(received.present, bool).at[0].set(True)
    members = jnp.where(present[:, None], members, 0)
    if rule.premix is not None:
        matrix, mask = rule.premix(received)
        present = jnp.asarray(mask)
        members = product(matrix.astype(members.dtype), members)
    if rule.combine is not None:
        return rule.combine(members, present, received.weight)
    assert rule.coefficients is not None
    return product(rule.coefficients(received).astype(members.dtype), members)
