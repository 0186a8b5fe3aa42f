"""Rules that shorten what is far from the own model.

Centred clipping: S. P. Karimireddy et al. 2021, "Learning from history for Byzantine
robust optimization", https://arxiv.org/abs/2012.10333. Self-centred clipping and
ClippedGossip: L. He et al. 2022, "Byzantine-robust decentralized learning via
ClippedGossip", https://arxiv.org/abs/2202.01545. CS+: R. Gaucher et al. 2025, "Unified
breakdown analysis for Byzantine robust gossip", https://arxiv.org/abs/2410.10418.

Those with `max_byzantine` f tolerate the weight of the f heaviest messages.
"""

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.robust.base import (
    Received,
    Rule,
    from_neighbors,
    gram_rule,
    members,
    own_alone,
)
from p2pjax.exchange.robust.checking import check_count, check_positive
from p2pjax.exchange.robust.ordering import (
    TOLERANCE,
    distances_from,
    equal_shares,
    farther_weight,
    largest_sum,
    neighbors,
)
from p2pjax.types import Array


def centered_clipping(
    radius: float, num_iterations: int = 1, count_self: bool = True
) -> Rule:
    """Steps from the own model by the mean of clipped differences, `[n]` unweighted.

    `v <- v + (1 / n) sum_j clip(m_j - v, radius)`, where v starts at the own model.

    Args:
      radius: longest difference that counts whole.
      num_iterations: steps.
      count_self: whether the own model is one of the n members, or the centre only, as
        the model of a server is.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [0.5], [1.0], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.centered_clipping(1.0), received, members).tolist()
      [0.625]
    """
    radius = check_positive(radius, "radius")
    num_iterations = check_count(num_iterations, "num_iterations", 1)

    def coefficients_fn(received: Received) -> Array:
        distance = received.distance
        counted = members(received) if count_self else neighbors(received.present)
        share = equal_shares(counted, distance)
        first = share * clip_factor(distance, radius)
        start = own_alone(distance)
        centre = start * (1 - first.sum()) + first
        if num_iterations == 1:
            return centre
        squares = jnp.asarray(received.squares)

        def step(_: Array | int, centre: Array) -> Array:
            moved = share * clip_factor(distances_from(squares, centre), radius)
            return centre * (1 - moved.sum()) + moved

        return jax.lax.fori_loop(1, num_iterations, step, centre)

    return gram_rule(
        "centered_clipping",
        coefficients_fn,
        needs_pairs=num_iterations > 1,
        is_set=True,
    )


def self_centered_clipping(radius: float, step_size: float = 1.0) -> Rule:
    """Plain mixing of differences from the own model, clipped to a fixed length.

    Args:
      radius: longest difference that counts whole.
      step_size: eta of `x + eta sum_j c_j (m_j - x)`.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [0.5], [1e9], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.self_centered_clipping(1.0), received, members).tolist()
      [0.625]
    """
    radius = check_positive(radius, "radius")
    step_size = check_positive(step_size, "step_size")

    def coefficients_fn(received: Received) -> Array:
        factor = clip_factor(received.distance, radius)
        return from_neighbors(received.weight * factor, step_size)

    return gram_rule("self_centered_clipping", coefficients_fn, step_size=step_size)


def clipped_gossip(max_byzantine: int, step_size: float = 1.0) -> Rule:
    """Self-centred clipping with a radius that follows the distances.

    Its square is `(1 / b) sum_j w_j d_j^2` over the nearest messages, so many that a
    weight of b stays out.

    Args:
      max_byzantine: messages that may be hostile; b is the weight of as many of the
        heaviest. 0: nothing is clipped.
      step_size: eta of `x + eta sum_j c_j (m_j - x)`.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [3.0], [4.0], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.clipped_gossip(1), received, members).tolist()  # radius 5
      [3.0]
    """
    count = check_count(max_byzantine, "max_byzantine")
    step_size = check_positive(step_size, "step_size")

    def coefficients_fn(received: Received) -> Array:
        weight, distance = jnp.asarray(received.weight), received.distance
        if count == 0:
            return from_neighbors(weight, step_size)
        among = neighbors(received.present)
        tolerated = largest_sum(weight, among, count)
        is_near = among & ~_collected(weight, distance, among, tolerated)
        radius = gossip_radius(weight, distance, is_near, tolerated)
        return from_neighbors(weight * clip_factor(distance, radius), step_size)

    return gram_rule(
        "clipped_gossip", coefficients_fn, max_byzantine=count, step_size=step_size
    )


def gossip_radius(
    weight: Array, distance: Array, is_near: Array, tolerated: Array
) -> Array:
    """ClippedGossip's radius; of the honest ones it would be what an oracle knows.

    Args:
      weight: `[K]`.
      distance: `[K]`.
      is_near: `[K]` bool, whose distances count.
      tolerated: b, the weight that may be hostile; of 0 the radius is 0.

    Example:
      >>> weight, distance = jnp.array([0.5, 0.25, 0.25]), jnp.array([0.0, 2.0, 9.0])
      >>> near = jnp.array([False, True, False])
      >>> float(gossip_radius(weight, distance, near, jnp.float32(0.25)))
      2.0
    """
    # In units of the farthest of them, whose square might overflow.
    unit = jnp.where(is_near, distance, 0).max()
    unit = jnp.where(unit > 0, unit, 1)
    squares = jnp.where(is_near, weight * jnp.square(distance / unit), 0)
    mean = squares.sum() / jnp.where(tolerated > 0, tolerated, 1)
    return jnp.where(tolerated > 0, unit * jnp.sqrt(mean), 0)


def cs_plus(max_byzantine: int, step_size: float = 1.0) -> Rule:
    """CS+: the farthest messages are clipped to the distance of the next nearer one.

    Clipped are the farthest whose weight is 2b; if nothing is nearer, the agent keeps
    its own model.

    Args:
      max_byzantine: messages that may be hostile; b is the weight of as many of the
        heaviest.
      step_size: eta of `x + eta sum_j c_j (m_j - x)`.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [1.0], [2.0], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.cs_plus(1), received, members).tolist()  # radius 1
      [0.75]
    """
    count = check_count(max_byzantine, "max_byzantine")
    step_size = check_positive(step_size, "step_size")

    def coefficients_fn(received: Received) -> Array:
        weight, distance = jnp.asarray(received.weight), received.distance
        among = neighbors(received.present)
        tolerated = 2 * largest_sum(weight, among, count)
        is_far = _collected(weight, distance, among, tolerated)
        radius = jnp.where(among & ~is_far, distance, 0).max()
        return from_neighbors(weight * clip_factor(distance, radius), step_size)

    def doubt(num_members: np.ndarray, weight: np.ndarray | None) -> str | None:
        if count == 0:
            return None
        if weight is None:
            is_frozen = 2 * count >= num_members - 1
        else:
            others = -np.sort(-np.asarray(weight, float)[:, 1:], axis=1)
            total = others.sum(1)
            heaviest = 2 * others[:, :count].sum(1)
            is_frozen = heaviest >= total * (1 - TOLERANCE)
        if not is_frozen.any():
            return None
        agent = int(np.argmax(is_frozen))
        return (
            f"cs_plus keeps the own model of {is_frozen.sum()} agents, first of agent "
            f"{agent}: twice the weight of {count} messages is all that its neighbours "
            "have; lower max_byzantine or use a denser graph."
        )

    return gram_rule(
        "cs_plus",
        coefficients_fn,
        max_byzantine=count,
        doubt=doubt,
        step_size=step_size,
    )


def clip_factor(distance: Array, radius: Array | float) -> Array:
    """`min(1, radius / distance)`, 1 at distance 0."""
    is_far = distance > radius
    return jnp.where(is_far, radius / jnp.where(is_far, distance, 1), 1)


def _collected(weight: Array, distance: Array, among: Array, enough: Array) -> Array:
    """The farthest of some, no more than it takes to weigh enough, `[K]` bool."""
    slack = TOLERANCE * jnp.where(among, weight, 0).sum()
    return among & (farther_weight(weight, distance, among) < enough - slack)
