"""Gaussian noise in place of models.

Around zero as in Blanchard et al. (2017), "Machine learning with adversaries:
Byzantine tolerant gradient descent", https://papers.nips.cc/paper/6617; around the
honest mean as in Wu, Chen, Ling (2023), https://arxiv.org/abs/2206.04568.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange.attacks.attackers import Attached, Who, placed
from p2pjax.exchange.attacks.base import Attack, Hostile, Scene
from p2pjax.exchange.attacks.checks import check_choice, check_scale
from p2pjax.exchange.attacks.honest import mean

CENTERS = ("zero", "own", "mean")


def gaussian(
    byzantine: Who, std: float = 1.0, around: str = "zero", *, local: bool = False
) -> Attack:
    """Byzantine agents send independent Gaussian numbers.

    Each of them draws its own, but those around a local mean, which are drawn once
    for each receiver, as are those of attached attackers.

    Args:
      byzantine: numbers of agents; `attached(f)` for zero and the mean only.
      std: standard deviation of each number.
      around: "zero", "own" for what the agent would have sent, or "mean" of honest
        messages.
      local: whether the mean is over what a receiver hears, not over all agents.

    Example:
      >>> gaussian(byzantine=(0, 3), std=30.0, around="mean").scale
      30.0
    """
    check_choice("gaussian", "a centre", around, CENTERS)
    check_scale("gaussian", std)
    is_attached, is_local = isinstance(byzantine, Attached), local and around == "mean"

    def hostile_fn(scene: Scene) -> Hostile:
        key = jax.random.fold_in(scene.key, scene.block)
        noise = jax.random.normal(key, scene.rows.shape, scene.rows.dtype)
        if around == "zero":
            return Hostile(jnp.zeros_like(scene.rows[:1]), noise)
        return Hostile(scene.rows if around == "own" else mean(scene, local), noise)

    attack = Attack(
        "gaussian",
        hostile=hostile_fn,
        scale=std,
        per_sender=around == "own" or not (is_attached or is_local),
        needs_others=around == "mean",
    )
    return placed(attack, byzantine)
