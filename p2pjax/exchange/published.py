"""What each agent sends to all who want it, where messages are looked at as models.

Servers and agents that choose their peers read whole messages, not only blocks of them:
what attackers send takes the place of their own rows. That is possible where it is the
same for all receivers.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange import encoding
from p2pjax.exchange.attacks.base import Attack, Scene, at_scale
from p2pjax.exchange.encoding import parts_of
from p2pjax.exchange.pipeline import ENCODE, Attackers, Exchange, Memory, transmit
from p2pjax.exchange.reading import (
    Reader,
    Sent,
    Spot,
    columns,
    fold,
    hostile_rows,
    prepared_reader,
    remembered,
    with_scale,
)
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
    leaves, structure = jax.tree.flatten(sent.rows)
    size = leaves[0].shape[0]
    is_byzantine = jnp.asarray(assault.is_byzantine)
    memory = jax.tree.leaves(assault.memory)
    seen = assault._replace(
        before=jax.tree.leaves(assault.before),
        memory=memory,
        # Attackers learn from those whose rows are not theirs.
        is_byzantine=is_byzantine
        if is_heard is None
        else is_byzantine | ~jnp.asarray(is_heard),
    )
    parts = parts_of(manner.plan, sent.rows)
    for number, owner_class in enumerate(manner.plan.classes):
        of_class = tuple(part for part in parts if part.owner_class == number)
        if all(part.is_statistic for part in of_class):
            continue
        reader = prepared_reader(
            Reader(
                of_class,
                owner_class.owner,
                _nobody(size),
                Sent(leaves, assault=seen),
                leaves,
                manner.attack,
                jnp.zeros((size, 1), bool),
            )
        )
        assert manner.attack.scale is not None, "checked by is_same_for_all"
        reader = with_scale(reader, manner.attack.scale)
        if memory:
            memory = remembered(reader, memory)
        leaves = _written(reader, is_byzantine)
    rows = jax.tree.unflatten(structure, leaves)
    if exchange.channel.format is not None:
        rows = _encoded(exchange, key, rows, is_byzantine)
    return rows, jax.tree.unflatten(jax.tree.structure(assault.memory), memory)


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


def _written(reader: Reader, is_byzantine: Array) -> list[Array]:
    """All leaves, with what attackers send in their rows."""
    leaves = list(reader.own)

    def write(leaf: Array, spot: Spot) -> Array:
        hostile = at_scale(hostile_rows(reader, spot, leaf), reader.scale)
        rows = columns(leaf, spot.at, spot.sizes)
        rows = jnp.where(is_byzantine[:, None], hostile.astype(rows.dtype), rows)
        leaf = jax.lax.dynamic_update_slice(leaf, rows.reshape(spot.sizes), spot.at)
        return jax.lax.optimization_barrier(leaf)  # as in `mixing`

    for number, part in enumerate(reader.parts):
        if not part.is_statistic:
            leaves[part.leaf] = fold(reader, write, leaves[part.leaf], only=number)
    return leaves


def _encoded(exchange: Exchange, key: Key, rows: PyTree, is_byzantine: Array) -> PyTree:
    """With the rows of attackers as their format carries them; others have been."""
    format, manner = exchange.channel.format, exchange.manner
    assert format is not None and manner is not None
    size = is_byzantine.shape[0]
    keys = jax.random.split(jax.random.fold_in(key, ENCODE), size)
    decoded = jax.vmap(
        lambda key, one: encoding.encode_models(format, manner.plan, key, one)[0]
    )(keys, rows)

    def chosen(new: Array, old: Array) -> Array:
        return jnp.where(is_byzantine.reshape((-1,) + (1,) * (old.ndim - 1)), new, old)

    return jax.tree.map(chosen, decoded, rows)


def _nobody(size: int) -> Peers:
    """Peers of agents of whom none hears another: attacks here read no graph."""
    ids = jnp.arange(size, dtype=jnp.int32)[:, None]
    return Peers(ids, jnp.ones((size, 1)))
