"""What attackers send in place of their own messages, written into whole rows.

Where messages are decoded number by number, what attackers send is computed where it is
read (`reading`). Here it takes the place of their rows before any agent reads them: for
receivers that look at whole messages, and for formats that look at a whole leaf. That
is possible where an attacker sends the same to all receivers.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange import encoding
from p2pjax.exchange.attacks.base import at_scale
from p2pjax.exchange.class_readers import Manner
from p2pjax.exchange.encoding import SparseMessage, parts_of
from p2pjax.exchange.reading import (
    Assault,
    Reader,
    Sent,
    Spot,
    columns,
    fold,
    hostile_rows,
    prepared_reader,
    remembered,
    with_scale,
    written,
)
from p2pjax.types import Array, Key, Peers, PyTree


def replaced(
    manner: Manner, assault: Assault, rows: PyTree, is_heard: Array | None = None
) -> tuple[PyTree, PyTree]:
    """Messages with those of attackers replaced, and what attackers remember.

    Args:
      manner: of the exchange, with an attack that sends the same to all receivers.
      assault: of the round.
      rows: messages as if all agents were honest, leaves `[N, ...]`.
      is_heard: `[N]` agents that send something in this exchange: of others attackers
        know nothing. None: all.
    """
    attack = manner.attack
    assert attack is not None and attack.scale is not None, "see is_same_for_all"
    leaves, structure = jax.tree.flatten(rows)
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
    parts = parts_of(manner.plan, rows)
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
                attack,
                jnp.zeros((size, 1), bool),
            )
        )
        reader = with_scale(reader, attack.scale)
        if memory:
            memory = remembered(reader, memory)
        leaves = _written(reader, is_byzantine)
    remembers = jax.tree.unflatten(jax.tree.structure(assault.memory), memory)
    return jax.tree.unflatten(structure, leaves), remembers


def replaced_models(
    manner: Manner, key: Key, assault: Assault, rows: PyTree, is_heard: Array | None
) -> tuple[PyTree, PyTree]:
    """As `replaced`, with what attackers send in the format of the messages.

    Args:
      manner: of the exchange.
      key: of its formats.
      assault: of the round.
      rows: what would be decoded of all agents if they were honest.
      is_heard: as `replaced` has it.
    """
    hostile, memory = replaced(manner, assault, rows, is_heard)
    if manner.format is None:
        return hostile, memory
    format = manner.format

    def encode(key: Key, one: PyTree) -> PyTree:
        return encoding.encode_models(format, manner.plan, key, one)[0]

    hostile = jax.vmap(encode)(_keys(key, assault), hostile)
    return _of_attackers(assault, hostile, rows), memory


def replaced_sent(
    manner: Manner, key: Key, assault: Assault, sent: Sent, whole: PyTree
) -> tuple[Sent, PyTree]:
    """What all agents have sent, that of attackers replaced, and what they remember.

    Attackers have no memory of what they sent before. Of messages that are parts of
    models they know the models: they make one of their own and send a part of it.

    Args:
      manner: of the exchange, whose format looks at whole leaves.
      key: of its formats.
      assault: of the round.
      sent: messages as if all agents were honest.
      whole: models of which these are parts, leaves `[N, ...]`.
    """
    if sent.mask is None:
        rows, memory = replaced_models(manner, key, assault, sent.rows, None)
        current = sent.rows if sent.current is None else sent.current
        return sent._replace(rows=rows, current=current), memory
    hostile, memory = replaced(manner, assault, whole)
    format = manner.format
    assert format is not None

    def encode(key: Key, one: PyTree) -> SparseMessage:
        return encoding.encode_sparse(format, manner.plan, key, one, ())[0]

    parts = jax.vmap(encode)(_keys(key, assault), hostile)
    honest = SparseMessage(sent.rows, sent.mask)
    return Sent(*_of_attackers(assault, parts, honest)), memory


def _written(reader: Reader, is_byzantine: Array) -> list[Array]:
    """All leaves, with what attackers send in their rows."""
    leaves = list(reader.own)

    def write(leaf: Array, spot: Spot) -> Array:
        hostile = at_scale(hostile_rows(reader, spot, leaf), reader.scale)
        rows = columns(leaf, spot.at, spot.sizes)
        rows = jnp.where(is_byzantine[:, None], hostile.astype(rows.dtype), rows)
        return written(leaf, spot, rows)

    for number, part in enumerate(reader.parts):
        if not part.is_statistic:
            leaves[part.leaf] = fold(reader, write, leaves[part.leaf], only=number)
    return leaves


def _keys(key: Key, assault: Assault) -> Key:
    """One of each sender."""
    return jax.random.split(key, assault.is_byzantine.shape[0])


def _of_attackers(assault: Assault, hostile: PyTree, honest: PyTree) -> PyTree:
    """The rows of attackers, and those of others."""
    is_byzantine = jnp.asarray(assault.is_byzantine)

    def chosen(new: Array, old: Array) -> Array:
        return jnp.where(is_byzantine.reshape((-1,) + (1,) * (old.ndim - 1)), new, old)

    return jax.tree.map(chosen, hostile, honest)


def _nobody(size: int) -> Peers:
    """Peers of agents of whom none hears another: attacks here read no graph."""
    ids = jnp.arange(size, dtype=jnp.int32)[:, None]
    return Peers(ids, jnp.ones((size, 1)))
