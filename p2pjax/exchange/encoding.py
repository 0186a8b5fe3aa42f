"""What ONE sender does to its message before it is sent; engines vmap it over senders.

Formats work on parts: the numbers of one leaf in one owner class. Parameters that stay
with their agent are left alone and not counted; batch-norm statistics travel as they
are, 32 bits each. What a sender remembers is one array per part, so that it takes as
much memory as what is sent, whatever stays.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.exchange.compression import FLOAT_BITS, Format
from p2pjax.exchange.mixing import walk_columns
from p2pjax.exchange.owner_classes import Block, MixPlan
from p2pjax.exchange.shared import STATISTICS
from p2pjax.paths import leaves_with_paths
from p2pjax.types import Array, Key, PyTree


class Part(NamedTuple):
    """The numbers of one leaf in one owner class."""

    owner_class: int  # position in the plan
    leaf: int  # position in `jax.tree.leaves`
    blocks: tuple[Block, ...]
    is_statistic: bool

    @property
    def size(self) -> int:
        """Numbers of one sender."""
        return sum(block.size for block in self.blocks)


class SparseMessage(NamedTuple):
    """What arrives of a message of which not all numbers were sent."""

    values: PyTree  # 0 where nothing was sent
    mask: PyTree  # of bool: where something was


def parts_of(plan: MixPlan, message: PyTree) -> tuple[Part, ...]:
    """All that travels, class by class.

    Args:
      plan: who shares what.
      message: of one sender or stacked; only its paths are read.
    """
    paths = [path for path, _ in leaves_with_paths(message)]
    parts = []
    for number, owner_class in enumerate(plan.classes):
        if not owner_class.is_shared:
            continue
        by_leaf: dict[int, list[Block]] = {}
        for block in owner_class.blocks:
            by_leaf.setdefault(block.leaf, []).append(block)
        for leaf, blocks in by_leaf.items():
            is_statistic = paths[leaf].split("/")[0] == STATISTICS
            part = Part(number, leaf, tuple(blocks), is_statistic)
            parts += [part] if part.size else []
    return tuple(parts)


def class_bits(
    format: Format | None, plan: MixPlan, message: PyTree
) -> tuple[int, ...]:
    """Bits of each owner class in a message, `[C]`; 0 of those that stay.

    Args:
      format: None for numbers as they are.
      plan: who shares what.
      message: of one sender or stacked; only its paths are read.
    """
    bits = [0] * len(plan.classes)
    for part in parts_of(plan, message):
        if format is None or part.is_statistic:
            bits[part.owner_class] += FLOAT_BITS * part.size
        else:
            bits[part.owner_class] += format.bits(part.size)
    return tuple(bits)


def message_bits(format: Format | None, plan: MixPlan, message: PyTree) -> int:
    """Bits of a message with all classes that are shared; 8 of them are a byte.

    Args:
      format: None for numbers as they are.
      plan: who shares what.
      message: of one sender or stacked; only its paths are read.
    """
    once = 0 if format is None else format.message_bits
    return once + sum(class_bits(format, plan, message))


def num_bytes(bits: int) -> int:
    """Whole bytes of a message.

    Args:
      bits: of all of it.

    >>> num_bytes(70)
    9
    """
    return -(-bits // 8)


def clipped(norm: float, plan: MixPlan, message: PyTree) -> PyTree:
    """Scaled down to a Euclidean norm of the parameters of each owner class.

    Args:
      norm: the largest.
      plan: who shares what.
      message: of ONE sender.
    """
    leaves, structure = jax.tree.flatten(message)
    squares: dict[int, Array] = {}
    parts = _parameters(plan, message)
    for part in parts:
        square = jnp.square(_read(leaves[part.leaf], part).astype(jnp.float32)).sum()
        squares[part.owner_class] = squares.get(part.owner_class, 0) + square
    for part in parts:
        length = jnp.sqrt(squares[part.owner_class])
        factor = jnp.where(length > norm, norm / jnp.where(length > 0, length, 1), 1)
        leaf = leaves[part.leaf]
        scaled = _read(leaf, part) * factor.astype(leaf.dtype)
        leaves[part.leaf] = _write(leaf, part, scaled)
    return jax.tree.unflatten(structure, leaves)


def noised(stddev: float, plan: MixPlan, key: Key, message: PyTree) -> PyTree:
    """With independent normal noise on each parameter that travels.

    Args:
      stddev: its standard deviation.
      plan: who shares what.
      key: of the sender.
      message: of ONE sender.
    """

    def add(key: Key, values: Array) -> Array:
        return values + stddev * jax.random.normal(key, values.shape, values.dtype)

    return _changed(plan, key, message, add)


def encode_models(
    format: Format, plan: MixPlan, key: Key, message: PyTree, memory: PyTree = ()
) -> tuple[PyTree, PyTree, int]:
    """What a receiver decodes of a model, for formats that carry whole models.

    Args:
      format: of the message.
      plan: who shares what.
      key: of the sender.
      message: of ONE sender.
      memory: there is none.

    Returns:
      What is decoded, the memory, and bits.
    """
    decoded = _changed(plan, key, message, format.compress)
    return decoded, memory, message_bits(format, plan, message)


def init_sparse(format: Format, plan: MixPlan, message: PyTree) -> PyTree:
    """The memory of `encode_sparse`: what was last sent is the model at the start.

    Args:
      format: of the messages.
      plan: who shares what.
      message: of ONE sender, at the start.

    Returns:
      One array per part; nothing for formats that choose at random.
    """
    if format.is_random:
        return ()
    leaves = jax.tree.leaves(message)
    return tuple(
        jnp.copy(_read(leaves[part.leaf], part)) for part in _parameters(plan, message)
    )


def encode_sparse(
    format: Format, plan: MixPlan, key: Key, message: PyTree, memory: PyTree
) -> tuple[SparseMessage, PyTree, int]:
    """A part of a model: the numbers that changed most since the agent last sent them.

    Formats that choose at random do so, without a memory.

    Args:
      format: of the message, with `select`.
      plan: who shares what.
      key: of the sender.
      message: of ONE sender.
      memory: `init_sparse`, then what this function returns.

    Returns:
      What is decoded, the memory, and bits.
    """
    assert format.select is not None, "checked by check_channel"
    leaves, structure = jax.tree.flatten(message)
    values: list[Array] = [jnp.zeros_like(leaf) for leaf in leaves]
    masks: list[Array] = [jnp.zeros(leaf.shape, bool) for leaf in leaves]
    last_sent, number = list(memory), 0
    for part in parts_of(plan, message):
        given = _read(leaves[part.leaf], part)
        mask: Array
        if part.is_statistic:
            mask = jnp.ones(given.shape, bool)
        else:
            key_part = jax.random.fold_in(key, number)
            if last_sent:
                mask = format.select(key_part, given - last_sent[number])
                last_sent[number] = jnp.where(mask, given, last_sent[number])
            else:
                mask = format.select(key_part, given)
            number += 1
        decoded = jnp.where(mask, given, 0)
        values[part.leaf] = _write(values[part.leaf], part, decoded)
        masks[part.leaf] = _write(masks[part.leaf], part, mask)
    sparse = SparseMessage(
        jax.tree.unflatten(structure, values), jax.tree.unflatten(structure, masks)
    )
    return sparse, tuple(last_sent), message_bits(format, plan, message)


def measures(
    format: Format, plan: MixPlan, messages: PyTree
) -> tuple[Array | None, ...]:
    """What a format must know of each part before it can be decoded, `[N]` each.

    Args:
      format: that decodes number by number.
      plan: who shares what.
      messages: of all senders, leaves `[N, ...]`.

    Returns:
      Of all parts; None of statistics.
    """
    assert format.measure is not None
    leaves = jax.tree.leaves(messages)
    found: list[Array | None] = []
    for part in parts_of(plan, messages):
        if part.is_statistic:
            found.append(None)
            continue
        leaf = jnp.asarray(leaves[part.leaf])
        largest = jnp.zeros(leaf.shape[:1], leaf.dtype)
        for block in part.blocks:
            largest = walk_columns(
                leaf.shape,
                leaf.dtype.itemsize,
                block,
                partial(_larger, format.measure, leaf),
                largest,
            )
        found.append(largest)
    return tuple(found)


def _larger(
    measure: Callable[[Array], Array],
    leaf: Array,
    largest: Array,
    at: tuple,
    sizes: tuple[int, ...],
) -> Array:
    """What was measured so far, `[N]`, or more in a column block."""
    rows = jax.lax.dynamic_slice(leaf, at, sizes).reshape(sizes[0], -1)
    return jnp.maximum(largest, jax.vmap(measure)(rows))


def worst_contraction(format: Format, plan: MixPlan, message: PyTree) -> float | None:
    """`Format.contraction` of the part of a message with the least; None: not known.

    Args:
      format: of the messages.
      plan: who shares what.
      message: of one sender or stacked; only its paths are read.
    """
    sizes = [part.size for part in _parameters(plan, message)]
    if format.contraction is None or not sizes:
        return None
    return min(map(format.contraction, sizes))


def init_feedback(format: Format, plan: MixPlan, message: PyTree) -> PyTree:
    """The memory of `encode_update` with error feedback: nothing was left out yet.

    Warns where what is left out may grow from message to message.

    Args:
      format: of the messages.
      plan: who shares what.
      message: of ONE sender; only its shapes are read.

    Returns:
      One array per part.
    """
    worst = worst_contraction(format, plan, message)
    if worst is not None and worst <= 0:
        warnings.warn(
            f"What {format.name} leaves out may be more than there was, so that error "
            "feedback may diverge: use it with biased=True, not unbiased=True, or "
            "another format.",
            stacklevel=2,
        )
    leaves = jax.tree.leaves(message)
    return tuple(
        jnp.zeros(part.size, leaves[part.leaf].dtype)
        for part in _parameters(plan, message)
    )


def encode_update(
    format: Format, plan: MixPlan, key: Key, message: PyTree, memory: PyTree = ()
) -> tuple[PyTree, PyTree, int]:
    """What a receiver decodes of an update, with error feedback if there is a memory.

    The sender encodes the update and what was left out before, and remembers what is
    left out now. Call it only where the agent really sends.

    Args:
      format: of the message.
      plan: who shares what.
      key: of the sender.
      message: of ONE sender.
      memory: `init_feedback`, then what this function returns; `()` for none.

    Returns:
      What is decoded, the memory, and bits.
    """
    left_out = list(memory)
    numbers = iter(range(len(left_out)))

    def encode(key: Key, update: Array) -> Array:
        if not left_out:
            return format.compress(key, update)
        number = next(numbers)
        wanted = update + left_out[number]
        sent = format.compress(key, wanted)
        left_out[number] = wanted - sent
        return sent

    decoded = _changed(plan, key, message, encode)
    return decoded, tuple(left_out), message_bits(format, plan, message)


def _parameters(plan: MixPlan, message: PyTree) -> list[Part]:
    """Parts that formats, noise and clipping change: all but statistics."""
    return [part for part in parts_of(plan, message) if not part.is_statistic]


def _changed(
    plan: MixPlan, key: Key, message: PyTree, change: Callable[[Key, Array], Array]
) -> PyTree:
    """The message of ONE sender with each part of parameters changed, `[size]`."""
    leaves, structure = jax.tree.flatten(message)
    for number, part in enumerate(_parameters(plan, message)):
        values = _read(leaves[part.leaf], part)
        values = change(jax.random.fold_in(key, number), values)
        leaves[part.leaf] = _write(leaves[part.leaf], part, values)
    return jax.tree.unflatten(structure, leaves)


def _read(leaf: Array, part: Part) -> Array:
    """The numbers of a part, `[size]`."""
    leaf = jnp.asarray(leaf)
    pieces = [leaf[_place(block)].reshape(-1) for block in part.blocks]
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)


def _write(leaf: Array, part: Part, values: Array) -> Array:
    """The leaf with the numbers of a part `[size]` in their places."""
    leaf = jnp.asarray(leaf)
    if len(part.blocks) == 1 and part.size == leaf.size:
        return values.reshape(leaf.shape)
    first = 0
    for block in part.blocks:
        old = leaf[_place(block)]
        new = values[first : first + block.size].reshape(old.shape)
        leaf = leaf.at[_place(block)].set(new)
        first += block.size
    return leaf


def _place(block: Block) -> tuple[slice, ...]:
    return tuple(map(slice, block.start, block.stop))
