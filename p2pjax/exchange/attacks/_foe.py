"""Fall of empires, or inner product manipulation: the mean, reversed.

Xie, Koyejo, Gupta (2020), "Fall of empires: Breaking Byzantine-tolerant SGD by inner
product manipulation", https://arxiv.org/abs/1903.03936.
"""

import jax.numpy as jnp

from p2pjax.exchange.attacks.attackers import Who, placed
from p2pjax.exchange.attacks.base import Attack, Hostile, Scene
from p2pjax.exchange.attacks.checks import check_scale
from p2pjax.exchange.attacks.honest import mean, mean_before


def foe(
    byzantine: Who,
    scale: float | None = None,
    *,
    updates: bool = False,
    local: bool = False,
) -> Attack:
    """Byzantine agents send `-scale * mean` of honest messages.

    On models this pulls towards zero. With `updates` they send the mean of the models
    before local training minus `scale` times the mean of what was learned. The line
    search starts from the receiver's own model in both forms.

    Args:
      byzantine: numbers of agents, or `attached(f)`.
      scale: epsilon of the paper, 0.1 in He et al. (2022); None: by line search, per
        receiver.
      updates: whether what was learned is reversed, not the models.
      local: whether attackers know only what a receiver hears, not all agents.

    Example:
      >>> foe(byzantine=(0, 3), scale=0.1).name
      'foe'
    """
    check_scale("foe", scale, searched=True)

    def hostile_fn(scene: Scene) -> Hostile:
        start = mean_before(scene, local) if updates else None
        after = mean(scene, local)
        direction = -after if start is None else start - after
        if scale is None:
            return Hostile(scene.rows, direction)
        return Hostile(jnp.zeros_like(after) if start is None else start, direction)

    attack = Attack("foe", hostile=hostile_fn, scale=scale, needs_before=updates)
    return placed(attack, byzantine)
