"""What each agent sends to all who want it, where messages are looked at as models.

Servers and agents that choose their peers read whole messages, not only blocks of them:
what attackers send takes the place of their own rows. That is possible where it is the
same for all receivers.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange.attacks.base import Attack, Scene, at_scale
from p2pjax.exchange.pipeline import ENCODE, Exchange
from p2pjax.exchange.reading import Sent
from p2pjax.exchange.replacing import replaced_models
from p2pjax.types import Array, Key, Peers, PyTree


def is_same_for_all(attack: Attack) -> bool:
    """Whether an attacker sends the same to all receivers, and needs no graph.

    Args:
      attack: of messages or data.

    Example:
      >>> from p2pjax.exchange import attacks
      >>> is_same_for_all(attacks.alie((0,), scale=1.5))
      True
      >>> is_same_for_all(attacks.alie((0,), scale=1.5, local=True))
      False
    """
    if attack.hostile is None or attack.per_sender:
        return True
    if attack.scale is None or attack.prepare is not None:
        return False
    many, few = 1 << 20, 2  # agents that are never made, and columns

    def hostile_shape() -> Array:
        ids = jnp.zeros((many, few), jnp.int32)
        rows = jnp.zeros((many, few))
        scene = Scene(
            rows,
            jnp.zeros(many, bool),
            Peers(ids, jnp.zeros((many, few))),
            ids > 0,
            jax.random.key(0),
            before=rows,
            memory=rows[0],
        )
        if attack.measure is not None:
            scene = scene._replace(measured=attack.measure(scene))
        assert attack.hostile is not None
        return at_scale(attack.hostile(scene), 1.0)

    return jax.eval_shape(hostile_shape).shape[0] == 1


def published(
    exchange: Exchange, key: Key, sent: Sent, is_heard: Array | None = None
) -> tuple[PyTree, PyTree]:
    """Messages as they reach all receivers, `[N, ...]`, and what attackers remember.

    Args:
      exchange: made with `eager`.
      key: of the exchange.
      sent: `pipeline.transmit`.
      is_heard: `[N]` agents that send something in this exchange: of others attackers
        know nothing. None: all.
    """
    manner, assault = exchange.manner, sent.assault
    if manner is None or assault is None or manner.attack is None:
        return sent.rows, ()
    key = jax.random.fold_in(key, ENCODE)
    return replaced_models(manner, key, assault, sent.rows, is_heard)
