"""What a robust rule is: how ONE receiver combines messages that may be hostile.

Most rules say how much each member counts, from distances alone: their cost is that of
plain mixing, and models are read twice. Coordinate rules look at each number by itself.
Both are pure functions of one receiver, to be vmapped over receivers; which messages
are there is a traced mask, so that lost messages compile to the same program.

Everything but the start of a geometric median at zero and BALANCE is translation
invariant, so squared distances between members are all that is needed of the models.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.types import Array, InputError, Key


class Received(NamedTuple):
    """What ONE receiver has: its own model in slot 0, then messages of its senders.

    Example:
      >>> weight, distance = jnp.array([0.5, 0.25, 0.25]), jnp.array([0.0, 1.0, 9.0])
      >>> received = Received(weight, jnp.ones(3, bool), distance)
      >>> from p2pjax.exchange import robust
      >>> robust.gts(1).coefficients(received).tolist()
      [0.75, 0.25, 0.0]
    """

    weight: Array  # [K] mixing weights; they sum to 1, those of lost messages included
    present: Array  # [K] bool: arrived and finite; padding is not. Slot 0 always is
    distance: Array  # [K] Euclidean, of each message from the own model; 0 in slot 0
    squares: Array | None = None  # [K, K] squared distances between members
    norm: Array | None = None  # [K] Euclidean norms of the members
    loss: Array | None = None  # [K] of each member's model on one batch of the receiver
    progress: Array | None = None  # [] t / T, round over planned rounds
    key: Key | None = None  # of this receiver and round
    # [] bool: whether slot 0 is a member; None: it is. The model of a server is none:
    # rules may start from it, but it does not count.
    counts_self: Array | None = None


class Rule(NamedTuple):
    """A way to combine what a receiver has, although some of it may be hostile.

    Example:
      >>> from p2pjax.exchange import robust
      >>> rule = robust.bucketing(robust.krum(2), size=2)
      >>> rule.name, rule.min_members
      ('bucketing(krum)', 9)
    """

    name: str
    # what each member counts, [K], of sum 1; 0 for those that are not present
    coefficients: Callable[[Received], Array] | None = None
    # or a coordinate rule: (members [K, c], present [K], mixing weights [K]) -> [c]
    combine: Callable[[Array, Array, Array], Array] | None = None
    # of a coordinate rule: a matrix [K, K] and a mask [K]; what it combines is then
    # `matrix @ members`, of which those in the mask are present
    premix: Callable[[Received], tuple[Array, Array]] | None = None
    needs_pairs: bool = False  # reads Received.squares
    needs_norms: bool = False
    needs_losses: bool = False
    needs_progress: bool = False
    needs_key: bool = False
    max_byzantine: int = 0  # members that may be hostile
    min_members: int = 1  # with one's own; with fewer the agent keeps its own model
    num_rounds: int = 0  # T, of Received.progress
    # whether its members are a set, so that it also suits a server (`counts_self`)
    is_set: bool = False
    # eta of rules that step from the own model, None for those that average: what a
    # receiver would get without attackers is that step, or the mean of what is left
    step_size: float | None = None
    # host: (members [N], mixing weights [N, K] or None) -> why not to use it, or None
    doubt: Callable[[np.ndarray, np.ndarray | None], str | None] | None = None


def gram_rule(
    name: str, coefficients: Callable[[Received], Array], **fields: Any
) -> Rule:
    """A rule that says how much each member counts.

    Args:
      name: of the rule.
      coefficients: as `Rule.coefficients`, of members made sound by `sound`.
      **fields: others of the rule.

    Example:
      >>> mean = gram_rule("mean", lambda r: r.weight / r.weight.sum())
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[1.0], [3.0], [jnp.nan]])
      >>> present = jnp.array([True, True, False])
      >>> received = robust.received_from_members(members, present=present)
      >>> robust.apply(mean, received, members).tolist()
      [2.0]
    """
    rule = Rule(name, **fields)

    def coefficients_fn(received: Received) -> Array:
        check_needs(rule, received)
        received = sound(received)
        found = coefficients(received)
        is_enough = members(received).sum() >= rule.min_members
        return jnp.where(is_enough, found, own_alone(received.distance))

    return rule._replace(coefficients=coefficients_fn)


def coordinate_rule(
    name: str,
    combine: Callable[[Array, Array, Array], Array],
    **fields: Any,
) -> Rule:
    """A rule that looks at each number by itself.

    Args:
      name: of the rule.
      combine: as `Rule.combine`; members that are not present are 0.
      **fields: others of the rule.

    Example:
      >>> from p2pjax.exchange import robust
      >>> largest = coordinate_rule("largest", lambda m, present, weight: m.max(0))
      >>> members = jnp.array([[1.0, 5.0], [3.0, 2.0]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(largest, received, members).tolist()
      [3.0, 5.0]
    """
    rule = Rule(name, **fields)

    def combine_fn(members: Array, present: Array, weight: Array) -> Array:
        present = jnp.asarray(present, bool).at[0].set(True)
        members = jnp.where(present[:, None], members, 0)
        is_enough = present.sum() >= rule.min_members
        return jnp.where(is_enough, combine(members, present, weight), members[0])

    return rule._replace(combine=combine_fn)


def check_needs(rule: Rule, received: Received) -> None:
    """Refuses what a receiver has if it lacks something that the rule reads."""
    needed = {
        "squares": rule.needs_pairs,
        "norm": rule.needs_norms,
        "loss": rule.needs_losses,
        "progress": rule.needs_progress,
        "key": rule.needs_key,
    }
    for field, is_needed in needed.items():
        if is_needed and getattr(received, field) is None:
            raise InputError(
                f"Need `{field}` of what is received for {rule.name}, got none."
            )


def sound(received: Received) -> Received:
    """The same without numbers that could spoil others.

    What is not present has distances and norms of 0. A message that is so far away that
    its distance overflows is not present either. Squared distances are at most so large
    that a sum of them is finite.

    Example:
      >>> far = Received(jnp.ones(2) / 2, jnp.ones(2, bool), jnp.array([0.0, jnp.inf]))
      >>> sound(far).present.tolist()
      [True, False]
    """
    distance = jnp.asarray(received.distance)
    is_own = jnp.arange(distance.shape[0]) == 0
    present = is_own | (received.present & jnp.isfinite(distance))
    distance = jnp.where(present & ~is_own, distance, 0)

    def kept(values: Array) -> Array:
        return jnp.where(present, jnp.asarray(values).astype(distance.dtype), 0)

    squares = received.squares
    if squares is not None:
        squares = jnp.asarray(squares).astype(distance.dtype)
        largest = jnp.finfo(distance.dtype).max / (4 * squares.shape[0])
        squares = jnp.where(squares < largest, jnp.maximum(squares, 0), largest)
        both = present[:, None] & present[None, :]
        others = ~jnp.eye(squares.shape[0], dtype=bool)
        squares = jnp.where(both & others, squares, 0)
        squares = (squares + squares.T) / 2  # so that ties are ties
    loss = received.loss
    if loss is not None:  # of a hostile model it may be anything
        loss = jnp.asarray(loss).astype(distance.dtype)
        loss = jnp.where(present & ~jnp.isnan(loss), loss, jnp.inf)
    return received._replace(
        weight=kept(received.weight),
        present=present,
        distance=distance,
        squares=squares,
        norm=None if received.norm is None else kept(received.norm),
        loss=loss,
    )


def members(received: Received) -> Array:
    """Those present that count, `[K]`: also slot 0, if it is not only the centre.

    Args:
      received: what ONE receiver has.

    Example:
      >>> have = Received(jnp.ones(2) / 2, jnp.ones(2, bool), jnp.array([0.0, 3.0]))
      >>> members(have).tolist(), members(have._replace(counts_self=False)).tolist()
      ([True, True], [False, True])
    """
    if received.counts_self is None:
        return received.present
    slots = jnp.arange(received.present.shape[0])
    return received.present & ((slots > 0) | received.counts_self)


def own_alone(like: Array) -> jax.Array:
    """Coefficients `[K]` with which an agent keeps its own model.

    Args:
      like: any `[K]`, whose shape and type they get.
    """
    return (jnp.arange(like.shape[0]) == 0).astype(like.dtype)


def from_neighbors(neighbor_weight: Array, step_size: float | None = None) -> Array:
    """Coefficients `[K]` of `x + step_size * sum_j c_j (m_j - x)`.

    Args:
      neighbor_weight: `c`, `[K]`; slot 0 is ignored.
      step_size: None is 1.

    Example:
      >>> from_neighbors(jnp.array([0.0, 0.25, 0.5])).tolist()
      [0.25, 0.25, 0.5]
    """
    others = jnp.asarray(neighbor_weight).at[0].set(0)
    if step_size is not None:
        others = others * step_size
    return others.at[0].set(1 - others.sum())


def convex(coefficients: Array) -> Array:
    """Coefficients `[K]` that keep variances positive, for batch-norm statistics.

    A long step may give the own model a negative coefficient: the step is then made as
    long as it can be.

    Args:
      coefficients: of sum 1, `[K]`, those of neighbours not negative.

    Example:
      >>> convex(jnp.array([-1.0, 0.5, 1.5])).tolist()
      [0.0, 0.25, 0.75]
      >>> convex(jnp.array([0.5, 0.25, 0.25])).tolist()
      [0.5, 0.25, 0.25]
    """
    others = jnp.asarray(coefficients).at[0].set(0)
    total = others.sum()
    return from_neighbors(jnp.where(total > 1, others / jnp.maximum(total, 1), others))


def product(left: Array, right: Array) -> jax.Array:
    """`left @ right` in full precision on every device."""
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)
