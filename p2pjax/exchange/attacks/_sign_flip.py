"""Sign flipping: what was learned, or a model, with the sign reversed.

Of an agent's own update; of its own model (the bit flipping of He, Karimireddy, Jaggi
2022, https://arxiv.org/abs/2202.01545); of the honest mean (Wu, Chen, Ling 2023,
https://arxiv.org/abs/2206.04568).
"""

import jax.numpy as jnp

from p2pjax.exchange.attacks.attackers import Who, placed
from p2pjax.exchange.attacks.base import Attack, Hostile, Scene
from p2pjax.exchange.attacks.checks import check_choice, check_scale
from p2pjax.exchange.attacks.honest import mean

FORMS = ("update", "model", "mean")


def sign_flip(
    byzantine: Who, of: str = "update", scale: float = 1.0, *, local: bool = False
) -> Attack:
    """Byzantine agents send something with its sign reversed.

    Args:
      byzantine: numbers of agents; `attached(f)` for the mean only.
      of: "update": the model before local training minus `scale` times what was
        learned; "model": minus `scale` times the own model; "mean": minus `scale` times
        the mean of honest messages.
      scale: factor of what is reversed.
      local: whether the mean is over what a receiver hears, not over all agents.

    Example:
      >>> sign_flip(byzantine=(0, 3)).needs_before
      True
    """
    check_choice("sign_flip", "a form", of, FORMS)
    check_scale("sign_flip", scale)

    def hostile_fn(scene: Scene) -> Hostile:
        if of == "update":
            assert scene.before is not None
            return Hostile(scene.before, scene.before - scene.rows)
        flipped = -scene.rows if of == "model" else -mean(scene, local)
        return Hostile(jnp.zeros_like(flipped[:1]), flipped)

    attack = Attack(
        "sign_flip",
        hostile=hostile_fn,
        scale=scale,
        per_sender=of != "mean",
        needs_others=of == "mean",
        needs_before=of == "update",
    )
    return placed(attack, byzantine)
