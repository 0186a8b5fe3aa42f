"""What each agent sends to all who want it, where messages are looked at as models.

Servers and agents that choose their peers read whole messages, not only blocks of them:
what attackers send takes the place of their own rows. That is possible where it is the
same for all receivers.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange.attacks.base import Attack, Scene, at_scale
from p2pjax.exchange.pipeline import ENCODE, Attackers, Exchange, Memory, transmit
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


def published_one(
    exchange: Exchange,
    key: Key,
    t: Array,
    message: PyTree,
    is_byzantine: Array,
    before: PyTree = None,
) -> PyTree:
    """What ONE agent sends, for methods in which one at a time does.

    Args:
      exchange: of messages of one agent, with an attack that needs no others.
      key: of the message.
      t: round.
      message: leaves of one agent.
      is_byzantine: whether it attacks.
      before: the same before local training, for attacks that need it.

    Example:
      >>> from p2pjax.exchange import attacks, owner_classes, pipeline
      >>> message = {"params": jnp.array([1.0, 2.0])}
      >>> plan = owner_classes.whole_model(1, message)
      >>> flip = attacks.sign_flip((0,), of="model")
      >>> exchange = pipeline.make_exchange(plan, attack=flip, eager=True)
      >>> key, t = jax.random.key(0), jnp.int32(0)
      >>> published_one(exchange, key, t, message, jnp.array(True))["params"].tolist()
      [-1.0, -2.0]
    """
    stacked, rows_before = jax.tree.map(
        lambda leaf: jnp.asarray(leaf)[None], (message, before)
    )
    memory = Memory(attackers=Attackers(jnp.asarray(is_byzantine)[None]))
    sent, _ = transmit(exchange, key, t, stacked, memory, rows_before)
    rows, _ = published(exchange, key, sent)
    return jax.tree.map(lambda leaf: leaf[0], rows)
