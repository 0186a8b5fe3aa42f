"""Dissensus: attackers undo what a receiver hears from its honest neighbours.

He, Karimireddy, Jaggi (2022), "Byzantine-robust decentralized learning via
ClippedGossip", https://arxiv.org/abs/2202.01545; with a scale of 1 it is the isolation
of Wu, Chen, Ling (2023), https://arxiv.org/abs/2206.04568.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange.attacks.attackers import Who, placed
from p2pjax.exchange.attacks.base import Attack, Hostile, Scene
from p2pjax.exchange.attacks.checks import check_scale
from p2pjax.exchange.attacks.honest import neighbors
from p2pjax.types import Array


def dissensus(
    byzantine: Who, scale: float | None = None, *, unit_weights: bool = False
) -> Attack:
    """Byzantine agents push each receiver away from its honest neighbours.

    They send `x + scale * sum_k w_k (x - x_k) / w`, x the receiver's own model, the sum
    over its honest neighbours, w what all attackers beside it count together. With a
    scale of 1 plain gossip gives the own model back; He et al. use 1.5. In the line
    search the sum is not divided by w.

    Args:
      byzantine: numbers of agents, or `attached(f)`.
      scale: how far; None: by line search, per receiver.
      unit_weights: whether all neighbours count 1 in the sum, not their mixing
        weights: for rules that do not read these.

    Example:
      >>> dissensus(byzantine=(0, 3), scale=1.5).per_sender
      False
    """
    check_scale("dissensus", scale, searched=True)

    def hostile_fn(scene: Scene) -> Hostile:
        weight = jnp.asarray(scene.peers.weight).astype(scene.rows.dtype)
        weight = jnp.ones_like(weight) if unit_weights else weight
        direction = _away(scene, jnp.where(neighbors(scene), weight, 0))
        if scale is None:
            return Hostile(scene.rows, direction)
        total = jnp.where(scene.is_hostile, weight, 0).sum(1, keepdims=True)  # [N, 1]
        is_attacked = total > 0
        share = jnp.where(is_attacked, 1 / jnp.where(is_attacked, total, 1), 0)
        return Hostile(scene.rows, share * direction)

    return placed(Attack("dissensus", hostile=hostile_fn, scale=scale), byzantine)


def _away(scene: Scene, weight: Array) -> Array:
    """`sum_k weight[i, k] * (rows[i] - rows[ids[i, k]])`, `[N, c]`, slot by slot."""

    def add_slot(total: jax.Array, slot: tuple[Array, Array]) -> tuple[jax.Array, None]:
        ids, weight = slot
        # Not read where it does not count: 0 * inf of a diverged attacker.
        difference = jnp.where(weight[:, None] == 0, 0, scene.rows - scene.rows[ids])
        return total + weight[:, None] * difference, None

    slots = scene.peers.ids.T[1:], weight.T[1:]
    return jax.lax.scan(add_slot, jnp.zeros_like(scene.rows), slots, unroll=4)[0]
