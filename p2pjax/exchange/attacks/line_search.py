"""The strongest factor of an attack, found per receiver without gradients.

El-Mhamdi, Guerraoui, Rouault (2021), "Distributed momentum for Byzantine-resilient
stochastic gradient descent", https://openreview.net/forum?id=H8UHdhWG6A3, as Gaucher
et al. (2025), https://arxiv.org/abs/2410.10418, use it: first growing steps, then
shrinking ones to and fro. What is maximised is the squared distance of what a receiver
gets from what it would get if attackers sent nothing.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from p2pjax.types import Array, Peers

SHRINKING = 0.8  # of steps once a try was no better


def line_search(
    objective: Callable[[Array], Array], num_receivers: int, num_evaluations: int = 16
) -> Array:
    """Factors of 0 or more, one per receiver, that make an objective large.

    The first try is 0. Steps from the best factor double while tries are better; from
    the first that is not, steps shrink, and each goes from the last try towards the
    best, or down if the last was the best or above it. A step that would go below 0 is
    halved until it does not.

    Args:
      objective: factors `[N]` -> what to maximise `[N]`, each of its own factor.
      num_receivers: N.
      num_evaluations: tries, the factor 0 among them.

    Returns:
      The best factor tried, `[N]`.

    Example:
      >>> found = line_search(lambda s: -((s - 3.3) ** 2), 1)
      >>> print(f"{found[0]:.3f}")
      3.304
    """
    zeros = jnp.zeros(num_receivers)
    value_dtype = jax.eval_shape(objective, zeros).dtype
    lowest = jnp.full(num_receivers, -jnp.inf, value_dtype)

    def attempt(i: Array, search: tuple[Array, ...]) -> tuple[Array, ...]:
        best, best_value, last, step, is_growing = search
        now = jnp.where(is_growing, best + step, _next(last, best, step))
        now = jnp.where(i == 0, 0, now)
        value = objective(now)
        is_better = (value > best_value) | (i == 0)
        is_growing = is_growing & is_better
        next_step = jnp.where(is_growing, 2 * step, SHRINKING * step)
        return (
            jnp.where(is_better, now, best),
            jnp.where(is_better, value, best_value),
            now,
            jnp.where(i == 0, step, next_step),
            is_growing,
        )

    start = zeros, lowest, zeros, zeros + 1, jnp.ones(num_receivers, bool)
    return jax.lax.fori_loop(0, num_evaluations, attempt, start)[0]


def _next(last: Array, best: Array, step: Array) -> Array:
    """The try after growth has ended."""
    is_below = last < best

    def too_far(step: Array) -> Array:
        return ~is_below & (step > last) & (last > 0)

    down = jax.lax.while_loop(
        lambda step: too_far(step).any(),
        lambda step: jnp.where(too_far(step), step / 2, step),
        step,
    )
    return jnp.where(is_below, last + step, jnp.maximum(last - down, 0))


def honest_peers(peers: Peers, is_hostile: Array, *, renormalize: bool) -> Peers:
    """Whom receivers would combine if attackers sent nothing: the target of a search.

    Args:
      peers: `[N, K]`, slot 0 is the agent itself.
      is_hostile: `[N, K]` slots in which attackers send.
      renormalize: whether what is left is divided by its sum, as rules do that
        average. Else what attackers would have counted is counted for the receiver's
        own model, as by rules that step from it.

    Example:
      >>> peers = Peers(jnp.array([[0, 1, 2]]), jnp.array([[0.2, 0.2, 0.6]]))
      >>> is_hostile = jnp.array([[False, False, True]])
      >>> print(honest_peers(peers, is_hostile, renormalize=True).weight)
      [[0.5 0.5 0. ]]
      >>> print(honest_peers(peers, is_hostile, renormalize=False).weight)
      [[0.8 0.2 0. ]]
    """
    weight = jnp.asarray(peers.weight)
    ids = jnp.where(is_hostile, peers.ids[:, :1], peers.ids)
    kept = jnp.where(is_hostile, 0, weight)
    if renormalize:
        return Peers(ids, kept / kept.sum(1, keepdims=True))
    lost = jnp.where(is_hostile, weight, 0).sum(1)
    return Peers(ids, kept.at[:, 0].add(lost))
