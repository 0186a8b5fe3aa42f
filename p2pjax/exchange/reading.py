"""What receivers read of all agents' messages, a column block at a time.

Messages that are decoded number by number, and what attackers send in their place, are
computed where a block is read: no second copy of all models exists. One owner class is
read at a time, because agents have other peers in each.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.attacks.base import Attack, Hostile, Scene, at_scale
from p2pjax.exchange.compression import Format
from p2pjax.exchange.encoding import Part
from p2pjax.exchange.mixing import BLOCK_BYTES, walk_columns
from p2pjax.types import Array, Key, Peers, PyTree


class Assault(NamedTuple):
    """What a round knows of its attackers; traced, so that others do not recompile."""

    is_byzantine: Array  # [N] bool
    key: Key  # of the exchange
    t: Array  # [] round
    prepared: Array | None = None  # [C, N] `Attack.prepare` of each owner class, or one
    before: PyTree = None  # leaves [N, ...]: models before local training
    memory: PyTree = ()  # what the attack remembers, leaves of ONE message


class Sent(NamedTuple):
    """What all agents have sent, as far as it exists before it is read."""

    rows: PyTree  # leaves [N, ...]
    mask: PyTree = None  # leaves [N, ...] bool: which numbers were sent; None: all
    measures: tuple[Array | None, ...] | None = None  # [N] of each part, for decoding
    # leaves [N, ...]: what of each agent's own model would be decoded now, where rows
    # are of the exchange before, or of attackers
    current: PyTree = None
    assault: Assault | None = None


class Seen(NamedTuple):
    """A column block of one part, as receivers read it."""

    own: Array  # [N, c] the receivers' own models
    rows: Array  # [N, c] what each agent sends to all its receivers
    decoded: Array  # [N, c] the same, if all were honest
    hostile: Array | None = None  # [N, c] or [1, c]: what attackers send to receiver n


class Spot(NamedTuple):
    """Where a column block is: its part, the first of its places, its sizes."""

    part: int
    at: tuple
    sizes: tuple[int, ...]


class Reader(NamedTuple):
    """How the receivers of one owner class read it."""

    parts: tuple[Part, ...]  # of the class
    owner: np.ndarray  # [N]
    peers: Peers  # [N, K]
    sent: Sent  # leaves as lists in the order of `jax.tree.leaves`
    own: list[Array]  # leaves [N, ...]
    attack: Attack | None = None
    is_hostile: Array | None = None  # [N, K]
    format: Format | None = None  # of messages that are decoded where they are read
    scale: Array | float = 1.0  # of the attack; [N] where it was searched
    hostile_measures: tuple[Array | None, ...] = ()  # [N] or [1] of each part
    # leaves [1, ...]: what attackers send, where it is the same for all receivers
    common: dict[int, Array] | None = None
    measured: PyTree = None  # `Attack.measure` of all blocks
    block_bytes: int = BLOCK_BYTES  # the same for all passes: noise depends on blocks


def columns(leaf: Array, at: tuple, sizes: tuple[int, ...]) -> Array:
    """A column block `[rows, c]`."""
    leaf = jnp.asarray(leaf)
    block = jax.lax.dynamic_slice(leaf, at, (leaf.shape[0], *sizes[1:]))
    return block.reshape(leaf.shape[0], -1)


def fold(
    reader: Reader,
    advance: Callable[[PyTree, Spot], PyTree],
    carry: PyTree,
    *,
    statistics: bool = False,
    only: int | None = None,
) -> PyTree:
    """Folds over all column blocks of a class.

    Args:
      reader: of the class.
      advance: `(carry, spot) -> carry`.
      carry: what is folded.
      statistics: whether batch-norm statistics are among them.
      only: number of the one part that is read; None for all.
    """
    for number, part in enumerate(reader.parts):
        if (part.is_statistic and not statistics) or only not in (None, number):
            continue
        leaf = reader.own[part.leaf]
        for block in part.blocks:

            def at_block(
                carry: PyTree, at: tuple, sizes: tuple[int, ...], number: int = number
            ) -> PyTree:
                return advance(carry, Spot(number, at, sizes))

            carry = walk_columns(
                leaf.shape,
                leaf.dtype.itemsize,
                block,
                at_block,
                carry,
                reader.block_bytes,
            )
    return carry


def rewrite(reader: Reader, write: Callable[[Array, Spot], Array]) -> list[Array]:
    """All leaves of receivers, with each block of the class overwritten.

    Args:
      reader: of the class.
      write: `(leaf, spot) -> leaf`, with the block at the spot `written`.
    """
    leaves = list(reader.own)
    for number, part in enumerate(reader.parts):
        leaves[part.leaf] = fold(
            reader, write, leaves[part.leaf], statistics=True, only=number
        )
    return leaves


def written(leaf: Array, spot: Spot, block: Array) -> Array:
    """The leaf with a column block `[rows, c]` replaced."""
    block = block.astype(leaf.dtype).reshape(spot.sizes)
    leaf = jax.lax.dynamic_update_slice(leaf, block, spot.at)
    return jax.lax.optimization_barrier(leaf)  # as in `mixing`


def see(reader: Reader, spot: Spot, own: Array | None = None) -> Seen:
    """What receivers read of a block.

    Args:
      reader: of the class.
      spot: the block.
      own: the leaf `[N, ...]` of all agents' own models, where it is being overwritten.
    """
    rows = _decoded_rows(reader, spot, own)
    mine = columns(_own(reader, spot, own), spot.at, spot.sizes)
    if not _is_attacked(reader, spot):
        return Seen(mine, rows, rows)
    hostile = _decoded(
        reader,
        reader.hostile_measures[spot.part],
        _hostile(reader, spot, own),
    )
    if not _attack(reader).per_sender:
        return Seen(mine, rows, rows, hostile)
    assault = _assault(reader)
    sent = jnp.where(assault.is_byzantine[:, None], hostile, rows)
    return Seen(mine, sent, rows)


def hostile_rows(reader: Reader, spot: Spot, own: Array | None = None) -> Hostile:
    """What attackers send in a block, before it is scaled and put into a format."""
    hostile = _attack(reader).hostile
    assert hostile is not None
    return hostile(scene(reader, spot, own))


def scene(reader: Reader, spot: Spot, own: Array | None = None) -> Scene:
    """What attackers see of a block."""
    assault, attack = _assault(reader), _attack(reader)
    part = reader.parts[spot.part]
    is_one_group = bool((reader.owner == reader.owner[0]).all())
    before = memory = None
    if attack.needs_before:
        before = columns(assault.before[part.leaf], spot.at, spot.sizes)
    if attack.begin is not None:
        memory = columns(assault.memory[part.leaf][None], spot.at, spot.sizes)[0]
    prepared = assault.prepared
    if prepared is not None:
        prepared = prepared[part.owner_class if prepared.shape[0] > 1 else 0]
    assert reader.is_hostile is not None
    return Scene(
        rows=_decoded_rows(reader, spot, own),
        is_byzantine=assault.is_byzantine,
        peers=reader.peers,
        is_hostile=reader.is_hostile,
        key=assault.key,
        block=_number(spot, part.leaf),
        t=assault.t,
        before=before,
        owner=None if is_one_group else reader.owner,
        prepared=prepared,
        measured=reader.measured,
        memory=memory,
    )


def prepared_reader(reader: Reader) -> Reader:
    """With what has to be known of all of a class before its messages can be read."""
    if reader.attack is None or reader.attack.hostile is None:
        return reader
    if reader.attack.measure is not None:
        measure = reader.attack.measure
        shapes = jax.eval_shape(lambda: measure(scene(reader, _first_spot(reader))))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        def add(total: PyTree, spot: Spot) -> PyTree:
            return jax.tree.map(jnp.add, total, measure(scene(reader, spot)))

        reader = reader._replace(measured=fold(reader, add, zeros))
    return reader


def with_scale(reader: Reader, scale: Array | float) -> Reader:
    """With the factor of the attack, and what the format must know of hostile rows."""
    reader = reader._replace(scale=scale, common=None)
    if reader.attack is None or reader.attack.hostile is None:
        return reader
    shape = jax.eval_shape(lambda: _hostile(reader, _first_spot(reader), None)).shape
    if shape[0] == 1:  # a few numbers, computed once for all passes
        reader = reader._replace(common=_common(reader))
    measures: list[Array | None] = [None] * len(reader.parts)
    measure = None if reader.format is None else reader.format.measure
    if measure is None:
        return reader._replace(hostile_measures=tuple(measures))

    def largest(found: Array, spot: Spot) -> Array:
        rows = _hostile(reader, spot, None)
        return jnp.maximum(found, jax.vmap(measure)(rows))

    for number, part in enumerate(reader.parts):
        if not part.is_statistic:
            none = jnp.zeros(shape[0], reader.own[part.leaf].dtype)
            measures[number] = fold(reader, largest, none, only=number)
    return reader._replace(hostile_measures=tuple(measures))


def _hostile(reader: Reader, spot: Spot, own: Array | None) -> Array:
    """What attackers send in a block, `[N, c]` or `[1, c]`, before its format."""
    if reader.common is not None:
        leaf = reader.common[reader.parts[spot.part].leaf]
        return columns(leaf, spot.at, spot.sizes)
    return at_scale(hostile_rows(reader, spot, own), reader.scale)


def _common(reader: Reader) -> dict[int, Array]:
    def write(leaf: Array, spot: Spot) -> Array:
        rows = _hostile(reader, spot, None)
        return jax.lax.dynamic_update_slice(
            leaf, rows.reshape(1, *spot.sizes[1:]), spot.at
        )

    found: dict[int, Array] = {}
    for number, part in enumerate(reader.parts):
        if not part.is_statistic:
            own = reader.own[part.leaf]
            leaf = found.get(part.leaf, jnp.zeros((1, *own.shape[1:]), own.dtype))
            found[part.leaf] = fold(reader, write, leaf, only=number)
    return found


def remembered(reader: Reader, memory: list[Array]) -> list[Array]:
    """What the attack remembers of the class after this exchange."""
    attack = _attack(reader)
    if attack.remember is None:
        return memory
    remember = attack.remember
    memory = list(memory)

    def write(leaf: Array, spot: Spot) -> Array:
        new = remember(scene(reader, spot)).reshape(spot.sizes[1:])
        return jax.lax.dynamic_update_slice(leaf, new, spot.at[1:])

    for number, part in enumerate(reader.parts):
        if not part.is_statistic:
            memory[part.leaf] = fold(reader, write, memory[part.leaf], only=number)
    return memory


def _decoded_rows(reader: Reader, spot: Spot, own: Array | None) -> Array:
    part = reader.parts[spot.part]
    source = reader.sent.rows[part.leaf]
    if own is not None and source is reader.own[part.leaf]:
        source = own
    rows = columns(source, spot.at, spot.sizes)
    if part.is_statistic or reader.sent.measures is None:
        return rows
    return _decoded(reader, reader.sent.measures[spot.part], rows)


def _decoded(reader: Reader, measure: Array | None, rows: Array) -> Array:
    if measure is None or reader.format is None or reader.format.decode is None:
        return rows
    return jax.vmap(reader.format.decode)(measure, rows)


def _own(reader: Reader, spot: Spot, own: Array | None) -> Array:
    return reader.own[reader.parts[spot.part].leaf] if own is None else own


def _is_attacked(reader: Reader, spot: Spot) -> bool:
    return (
        reader.attack is not None
        and reader.attack.hostile is not None
        and not reader.parts[spot.part].is_statistic
    )


def _attack(reader: Reader) -> Attack:
    assert reader.attack is not None
    return reader.attack


def _assault(reader: Reader) -> Assault:
    assert reader.sent.assault is not None
    return reader.sent.assault


def _number(spot: Spot, leaf: int) -> Array:
    """Of a block, another one for each place in each leaf."""
    number = jnp.uint32(leaf)
    for start in spot.at[1:]:
        number = number * jnp.uint32(1_000_003) + jnp.asarray(start).astype(jnp.uint32)
    return number


def _first_spot(reader: Reader) -> Spot:
    number = next(i for i, part in enumerate(reader.parts) if not part.is_statistic)
    block = reader.parts[number].blocks[0]
    sizes = tuple(np.subtract(block.stop, block.start).tolist())
    return Spot(number, (0, *block.start), (len(reader.owner), *sizes))
