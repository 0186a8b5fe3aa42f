"""Rules that take some messages as they are and the others not at all.

BALANCE: M. Fang et al. 2024, "Byzantine-robust decentralized federated learning",
https://arxiv.org/abs/2406.10416. UBAR: S. Guo et al. 2022, "Byzantine-resilient
decentralized stochastic gradient descent", https://arxiv.org/abs/2002.08569.
"""

import math

import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.robust.base import Received, Rule, gram_rule, own_alone
from p2pjax.exchange.robust.checking import check_count, check_positive, check_share
from p2pjax.exchange.robust.ordering import equal_shares, neighbors, number, ranks
from p2pjax.types import Array, InputError


def balance(
    gamma: float = 0.3,
    kappa: float = 1.0,
    alpha: float = 0.5,
    *,
    num_rounds: int,
) -> Rule:
    """Accepts messages near the own model, ever nearer in the course of a run.

    A message is accepted up to a distance of `gamma exp(-kappa t / T) |x|`.

    Args:
      gamma: largest distance at the start, relative to the norm of the own model.
      kappa: how fast it shrinks; 0 for not at all.
      alpha: what the own model counts; the rest is the mean of what is accepted.
      num_rounds: T, planned for the run; the results of all rounds depend on it.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[10.0], [12.0], [20.0]])
      >>> received = robust.received_from_members(members, progress=0.0)
      >>> robust.apply(robust.balance(num_rounds=100), received, members).tolist()
      [11.0]
    """
    gamma = check_positive(gamma, "gamma")
    if not 0 <= kappa < math.inf:
        raise InputError(f"Need kappa of 0 or more, got {kappa}.")
    alpha = check_share(alpha, "alpha")
    num_rounds = check_count(num_rounds, "num_rounds", 1)

    def coefficients_fn(received: Received) -> Array:
        distance = received.distance
        progress = jnp.asarray(received.progress).astype(distance.dtype)
        limit = gamma * jnp.exp(-kappa * progress) * jnp.asarray(received.norm)[0]
        return _accepted(
            neighbors(received.present) & (distance <= limit), alpha, distance
        )

    return gram_rule(
        "balance",
        coefficients_fn,
        needs_norms=True,
        needs_progress=True,
        num_rounds=num_rounds,
    )


def ubar(honest_share: float, alpha: float = 0.5) -> Rule:
    """Takes those of the nearest messages whose models are no worse than the own one.

    Models are compared by their loss on one batch of the receiver; if none is as good
    as the own one, the best of the nearest is taken.

    Args:
      honest_share: share of the messages that are looked at, the nearest; at least one.
      alpha: what the own model counts; the rest is the mean of what is accepted.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [1.0], [2.0], [9.0]])
      >>> loss = jnp.array([0.5, 0.6, 0.4, 0.1])
      >>> received = robust.received_from_members(members, loss=loss)
      >>> robust.apply(robust.ubar(0.7), received, members).tolist()
      [1.0]
    """
    honest_share = check_share(honest_share, "honest_share")
    alpha = check_share(alpha, "alpha")

    def coefficients_fn(received: Received) -> Array:
        distance, loss = received.distance, jnp.asarray(received.loss)
        among = neighbors(received.present)
        num_looked_at = _shares(honest_share, distance.shape[0])[number(among)]
        is_near = among & (ranks(distance, among) < num_looked_at)
        is_good = is_near & jnp.isfinite(loss) & (loss <= loss[0])
        best = jnp.argmin(jnp.where(is_near, loss, jnp.inf))
        is_best = is_near & (jnp.arange(loss.shape[0]) == best) & jnp.isfinite(loss)
        return _accepted(jnp.where(is_good.any(), is_good, is_best), alpha, distance)

    return gram_rule("ubar", coefficients_fn, needs_losses=True)


def _shares(share: float, size: int) -> Array:
    """`floor(share * n)`, at least 1, for n from 0 to below `size`, exactly."""
    counts = np.floor(share * np.arange(size) + 1e-9)
    return jnp.asarray(np.maximum(counts, 1), jnp.int32)


def _accepted(is_accepted: Array, alpha: float, like: Array) -> Array:
    """Coefficients: alpha for the own model, the rest in equal parts for others."""
    own = own_alone(like)
    mean = equal_shares(is_accepted, like)
    return jnp.where(is_accepted.any(), alpha * own + (1 - alpha) * mean, own)
