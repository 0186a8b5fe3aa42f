"""Formats of messages: what a receiver decodes of a leaf, and how many bits it took.

A format works on ONE leaf of ONE sender (of one owner class); `encoding` puts leaves
together to messages. What is computed are the decoded numbers, and the bits are
counted; nothing is packed.

* `top_k`, `random_k`: a few of the numbers. Stich et al. (2018), "Sparsified SGD with
  memory", https://arxiv.org/abs/1809.07599.
* `qsgd`: random levels between 0 and the norm. Alistarh et al. (2017), "QSGD",
  https://arxiv.org/abs/1610.02132.
* `sign`: signs and one size. Karimireddy et al. (2019), "Error feedback fixes SignSGD",
  https://arxiv.org/abs/1901.09847.
* `half`, `uniform8`: each number in fewer bits.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.exchange.largest import largest
from p2pjax.types import Array, InputError, Key

FLOAT_BITS = 32  # of a number that is sent as it is
SEED_BITS = 32
NUM_LEVELS = 127  # of uniform8, each side of 0
FEWEST_LEVELS = 15  # of QSGD, for whole models
SMALLEST_HALF = 2.0**-14  # below, half has a fixed step
STEP_OF_HALF = 2.0**-24


class Format(NamedTuple):
    """How the numbers of a leaf travel.

    Example:
      >>> half().compress(jax.random.key(0), jnp.array([0.1])).tolist()
      [0.0999755859375]
    """

    name: str  # of its kind
    # (key, leaf of ONE sender) -> what a receiver decodes, of the same shape
    compress: Callable[[Key, Array], Array]
    bits: Callable[[int], int]  # numbers of a leaf, 1 or more -> bits
    message_bits: int = 0  # once per message
    # numbers of a leaf -> delta with E|C(x) - x|^2 <= (1 - delta) |x|^2 for all x; 0 or
    # less where what is left out may be more than there was. None: not known
    contraction: Callable[[int], float] | None = None
    is_random: bool = False  # whether it chooses numbers by the key alone
    carries_models: bool = False  # whether models, not only updates, survive it
    # formats that send some numbers as they are: (key, leaf) -> which of them
    select: Callable[[Key, Array], Array] | None = None
    # Formats that are elementwise once one number of the leaf is known, block by block:
    # a piece of the leaf -> a number; those of pieces are merged by the maximum
    measure: Callable[[Array], Array] | None = None
    # (the measure, values) -> decoded values
    decode: Callable[[Array, Array], Array] | None = None


def top_k(ratio: float, *, index_bits: int | None = None) -> Format:
    """The largest numbers by magnitude; of equal ones those with the lowest index.

    Args:
      ratio: share of a leaf's numbers, above 0 to 1; at least one of each leaf.
      index_bits: of a position; None for as many as the leaf needs.

    >>> top_k(0.4).compress(jax.random.key(0), jnp.array([1.0, -3, 2, 0, 1])).tolist()
    [0.0, -3.0, 2.0, 0.0, 0.0]
    """
    _check_ratio(ratio)

    def select_fn(key: Key, leaf: Array) -> Array:
        del key
        return largest(jnp.abs(leaf), _num_kept(ratio, leaf.size))

    def bits_fn(size: int) -> int:
        width = _index_bits(size) if index_bits is None else index_bits
        return _num_kept(ratio, size) * (FLOAT_BITS + width)

    return Format(
        "top_k",
        lambda key, leaf: jnp.where(select_fn(key, leaf), leaf, 0),
        bits_fn,
        contraction=lambda size: _num_kept(ratio, size) / size,
        select=select_fn,
    )


def random_k(
    ratio: float, unbiased: bool = False, *, shared_seed: bool = True
) -> Format:
    """Numbers drawn without replacement.

    Args:
      ratio: share of a leaf's numbers, above 0 to 1; at least one of each leaf.
      unbiased: multiply what is sent, so that the mean over draws is what was to be
        sent.
      shared_seed: both ends draw the positions, so that a seed travels in their place.

    >>> decoded = random_k(0.5).compress(jax.random.key(0), jnp.arange(1.0, 9))
    >>> int((decoded != 0).sum())
    4
    """
    _check_ratio(ratio)

    def select_fn(key: Key, leaf: Array) -> Array:
        scores = jax.random.uniform(key, leaf.shape, jnp.float32)
        return largest(scores, _num_kept(ratio, leaf.size))

    def factor(size: int) -> float:
        return size / _num_kept(ratio, size) if unbiased else 1.0

    def bits_fn(size: int) -> int:
        width = 0 if shared_seed else _index_bits(size)
        return _num_kept(ratio, size) * (FLOAT_BITS + width)

    def contraction_fn(size: int) -> float:
        return 2 - factor(size) if unbiased else _num_kept(ratio, size) / size

    return Format(
        "random_k",
        lambda key, leaf: jnp.where(select_fn(key, leaf), leaf, 0) * factor(leaf.size),
        bits_fn,
        SEED_BITS if shared_seed else 0,
        contraction=contraction_fn,
        is_random=True,
        select=None if unbiased else select_fn,
    )


def quantize(bits: int, *, stochastic: bool = False) -> Format:
    """Each number in 16 or 8 bits: `half` or `uniform8`.

    Args:
      bits: 16 or 8.
      stochastic: round up or down at random, so that the mean over draws is the
        number; 8 bits only.

    >>> quantize(8).bits(100)  # and the leaf's scale
    832
    """
    if bits not in (8, 16):
        raise InputError(
            f"Need 16 or 8 bits for quantize, got {bits}: for fewer, use qsgd(levels) "
            "or sign()."
        )
    if bits == 8:
        return uniform8(stochastic=stochastic)
    if stochastic:
        raise InputError(
            "Need 8 bits for stochastic rounding, got 16: use quantize(8, "
            "stochastic=True)."
        )
    return half()


def half() -> Format:
    """16-bit floats.

    >>> half().bits(100)
    1600
    """

    def decode_fn(measure: Array, values: Array) -> Array:
        del measure
        # Not a conversion there and back, which XLA may leave out; `reduce_precision`
        # has no numbers below the smallest normal one.
        normal = jax.lax.reduce_precision(values, exponent_bits=5, mantissa_bits=10)
        tiny = jnp.round(values / STEP_OF_HALF) * STEP_OF_HALF
        return jnp.where(jnp.abs(values) < SMALLEST_HALF, tiny, normal)

    return Format(
        "half",
        lambda key, leaf: decode_fn(jnp.zeros(()), leaf),
        lambda size: 16 * size,
        carries_models=True,
        measure=lambda piece: jnp.zeros((), piece.dtype),
        decode=decode_fn,
    )


def uniform8(*, stochastic: bool = False) -> Format:
    """255 levels from minus to plus the largest magnitude of the leaf.

    Args:
      stochastic: round up or down at random; else to the nearest, half to even.

    >>> uniform8().compress(jax.random.key(0), jnp.array([127.0, 2.4, -0.6])).tolist()
    [127.0, 2.0, -1.0]
    """

    def measure_fn(piece: Array) -> Array:
        return jnp.abs(piece).max()

    def decode_fn(
        measure: Array, values: Array, rounded: Callable[[Array], Array] = jnp.round
    ) -> Array:
        scale = jnp.asarray(measure / NUM_LEVELS)
        is_zero = scale == 0
        levels = rounded(values / jnp.where(is_zero, 1, scale))
        return jnp.where(is_zero, 0, levels * scale)

    def compress_fn(key: Key, leaf: Array) -> Array:
        if not stochastic:
            return decode_fn(measure_fn(leaf), leaf)
        draws = jax.random.uniform(key, leaf.shape, leaf.dtype)
        return decode_fn(
            measure_fn(leaf),
            leaf,
            lambda levels: jnp.clip(jnp.floor(levels + draws), -NUM_LEVELS, NUM_LEVELS),
        )

    return Format(
        "uniform8",
        compress_fn,
        lambda size: 8 * size + FLOAT_BITS,
        carries_models=True,
        measure=None if stochastic else measure_fn,
        decode=None if stochastic else decode_fn,
    )


def qsgd(levels: int, biased: bool = False) -> Format:
    """Signs and random levels of the norm of a leaf (Alistarh et al. 2017).

    https://arxiv.org/abs/1610.02132. Without bias the mean over draws is what was to be
    sent, but what is left out may be larger than it: on leaves of more than about
    `levels ** 2` numbers error feedback and CHOCO-SGD need `biased`.

    Args:
      levels: above 0. With 15 or more it carries models too.
      biased: divided by the bound on the variance, so that less is left out than there
        was.

    >>> qsgd(15).bits(100)  # 15 levels and 0 are 4 bits, and a sign
    532
    """
    if levels < 1 or levels != int(levels):
        raise InputError(f"Need 1 or more levels for qsgd, got {levels}.")
    levels = int(levels)

    def compress_fn(key: Key, leaf: Array) -> Array:
        draws = jax.random.uniform(key, leaf.shape, leaf.dtype)
        decoded = _with_levels(leaf, draws, levels)
        return decoded / _variance(leaf.size, levels) if biased else decoded

    def contraction_fn(size: int) -> float:
        variance = _variance(size, levels)
        return 1 / variance if biased else 2 - variance

    return Format(
        "qsgd",
        compress_fn,
        lambda size: FLOAT_BITS + size * (1 + levels.bit_length()),
        contraction=contraction_fn,
        carries_models=levels >= FEWEST_LEVELS and not biased,
    )


def sign() -> Format:
    """Signs, and the mean magnitude of the leaf; that of 0 is plus.

    >>> sign().compress(jax.random.key(0), jnp.array([1.0, -5.0, 0.0])).tolist()
    [2.0, -2.0, 2.0]
    """

    def compress_fn(key: Key, leaf: Array) -> Array:
        del key
        size = jnp.abs(leaf).mean()
        return jnp.where(leaf < 0, -size, size)

    return Format(
        "sign",
        compress_fn,
        lambda size: size + FLOAT_BITS,
        # |x|_1^2 / (n |x|^2), which is the least where one number is not 0
        contraction=lambda size: 1 / size,
    )


def _check_ratio(ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise InputError(
            f"Need a share of numbers to send above 0 and up to 1, got {ratio}."
        )


def _num_kept(ratio: float, size: int) -> int:
    """Of a leaf; the ratio as it was written, so that 0.29 of 100 are 29."""
    return max(1, math.floor(Fraction(str(float(ratio))) * size))


def _index_bits(size: int) -> int:
    """`ceil(log2 size)`."""
    return (size - 1).bit_length()


def _with_levels(leaf: Array, draws: Array, levels: int) -> Array:
    """`sign(x) |x| q / s` with q = s |x_i| / |x| rounded up where the draw is below."""
    norm = jnp.sqrt(jnp.square(leaf).sum())
    exact = jnp.abs(leaf) * (levels / jnp.where(norm > 0, norm, 1))
    lower = jnp.floor(exact)
    level = jnp.minimum(lower + (draws < exact - lower).astype(leaf.dtype), levels)
    return jnp.sign(leaf) * level * (norm / levels)


def _variance(size: int, levels: int) -> float:
    """`tau` of QSGD: `E|C(x)|^2 <= tau |x|^2` without bias."""
    return 1 + min(size / levels**2, math.sqrt(size) / levels)
