"""Sparse binary vectors to complete: the task of the associative network.

Bouchra Pilet, Frey, Taiani (2021), "Simple, efficient and convenient decentralized
multi-task learning for neural networks". Vector k repeats one of s patterns: with o = 3
m (k mod s), coordinates o .. o + m - 1 are known and the next m are to be guessed from
them; in a modified pattern the m after those are guessed instead. Noise flips z bits,
evenly spaced, that move with k div s. Everything is computed, nothing is drawn.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from p2pjax.datasets.stacking import stack_agents
from p2pjax.host_memory import check_room
from p2pjax.types import FederatedData, InputError

OVERFLOWS = ("refuse", "drop", "wrap")


class Patterns(NamedTuple):
    """What the vectors look like.

    The paper prints block_size 8, which needs 72 coordinates and has 50. Four makes
    its "8 non-zero bits" true; `overflow` gives the other readings of 8.
    """

    num_bits: int = 50  # n
    block_size: int = 4  # m: ones that are known, and as many to be guessed
    period: int = 3  # s: patterns
    num_flips: int = 2  # z: noise
    overflow: str = "refuse"  # coordinates from n on: an error, lost, or mod n


class Vector(NamedTuple):
    """One vector in its three forms, uint8 0 / 1 `[n]` each."""

    training: np.ndarray  # known and guessed ones, with noise
    test: np.ndarray  # known ones only, with noise
    expected: np.ndarray  # known and guessed ones, without noise


def vector(
    k: int, patterns: Patterns = Patterns(), *, modified: bool = False
) -> Vector:
    """The k-th vector, in its modified form if asked for.

    Raises:
        InputError: the patterns need more coordinates than there are, and `overflow`
            does not say what to do.
    """
    check_patterns(patterns)
    num_bits, size, period, num_flips, _ = patterns
    origin = 3 * size * (k % period)
    first_guessed = origin + (2 * size if modified else size)
    known = _ones(range(origin, origin + size), patterns)
    guessed = _ones(range(first_guessed, first_guessed + size), patterns)
    flipped = [
        (k // period + i * (num_bits // num_flips)) % num_bits for i in range(num_flips)
    ]
    noise = _ones(flipped, patterns)
    complete = known | guessed
    return Vector(complete ^ noise, known ^ noise, complete)


def world(
    patterns: Patterns = Patterns(),
    *,
    num_agents: int = 15,
    num_modified: int = 2,
    modified: int = 1,
    train: Sequence[int] = range(9),
    test: Sequence[int] = range(1000, 1100),
) -> FederatedData:
    """Every agent learns and completes the same vectors, a few agents one modified.

    Training sets have x (training vectors, in the given order) and y (the same without
    noise); test sets have x (test inputs) and y (expected outputs). All are uint8 0 / 1
    `[N, M, n]`. The validation set is empty, and `cluster` is 1 for modified agents.

    Args:
        patterns: what the vectors look like.
        num_agents: N.
        num_modified: agents, the first ones, for which one pattern is modified.
        modified: the pattern, k mod period.
        train: k of the training vectors.
        test: k of the tests.

    Raises:
        InputError: numbers that do not fit together.
    """
    check_patterns(patterns)
    if not 0 <= num_modified <= num_agents or num_agents < 1:
        raise InputError(
            f"Need at least one agent and at most all of them modified, got "
            f"{num_modified} modified of {num_agents}."
        )
    if not 0 <= modified < patterns.period:
        raise InputError(
            f"Need a modified pattern from 0 to {patterns.period - 1}, got {modified}."
        )
    if not len(train) or not len(test):
        raise InputError(
            f"Need at least one training vector and one test, got {len(train)} and "
            f"{len(test)}."
        )

    # x and y of all agents, in bytes.
    num_vectors = 2 * num_agents * (len(train) + len(test))
    check_room(num_vectors * patterns.num_bits, f"{num_vectors} vectors")

    @cache
    def vectors_of(differs: bool, ks: Sequence[int]) -> Vector:  # leaves [M, n]
        vectors = [
            vector(k, patterns, modified=differs and k % patterns.period == modified)
            for k in ks
        ]
        return Vector(*map(np.stack, zip(*vectors, strict=True)))

    kinds = [agent < num_modified for agent in range(num_agents)]
    learned = [vectors_of(kind, tuple(train)) for kind in kinds]
    asked = [vectors_of(kind, tuple(test)) for kind in kinds]
    empty = np.zeros((0, patterns.num_bits), np.uint8)
    return FederatedData(
        train=stack_agents([{"x": v.training, "y": v.expected} for v in learned]),
        valid=stack_agents([{"x": empty, "y": empty} for _ in kinds]),
        test=stack_agents([{"x": v.test, "y": v.expected} for v in asked]),
        cluster=(np.arange(num_agents) < num_modified).astype(np.int32),
    )


def check_patterns(patterns: Patterns) -> None:
    """Refuses patterns that cannot be built."""
    num_bits, size, period, num_flips, overflow = patterns
    if overflow not in OVERFLOWS:
        raise InputError(
            f"Need an overflow of {', '.join(OVERFLOWS)}, got {overflow!r}."
        )
    if min(num_bits, size, period) < 1 or not 0 <= num_flips <= num_bits:
        raise InputError(
            "Need at least one bit, a block of one and a period of one, and no more "
            f"flips than bits, got {num_bits} bits, blocks of {size}, period {period} "
            f"and {num_flips} flips."
        )
    needed = 3 * size * period
    if overflow == "refuse" and needed > num_bits:
        raise InputError(
            f"Need 3 x block_size x period = {needed} coordinates (blocks of {size}, "
            f"period {period}), got {num_bits} bits: use blocks of at most "
            f"{num_bits // (3 * period)}, more bits, or the overflow 'drop' or 'wrap'."
        )


def _ones(coordinates: Sequence[int], patterns: Patterns) -> np.ndarray:
    bits = np.zeros(patterns.num_bits, np.uint8)
    inside = np.asarray(coordinates, int)
    if patterns.overflow == "drop":
        inside = inside[inside < patterns.num_bits]
    bits[inside % patterns.num_bits] = 1
    return bits
