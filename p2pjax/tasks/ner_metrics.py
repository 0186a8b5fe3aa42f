"""Named entities in sequences of labels, and their F1 score.

An entity is a maximal run of labels of one type that a B- label or another type ends,
as in the CoNLL evaluation; I- labels may open one, so label sets without B- (Few-NERD)
work too. It is found if begin, end and type are right. All of it may be traced.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.datasets.label_sets import OUTSIDE, PADDING, LabelSet
from p2pjax.types import Array, Ratio


class Spans(NamedTuple):
    """Where entities begin, end, and of which type; all `[B, P]`."""

    starts: Array  # bool
    stop: Array  # first position after the entity that begins here
    type: Array


class Found(NamedTuple):
    """Entities of every type, `[k]`."""

    right: Array
    predicted: Array
    actual: Array


def spans(labels: Array, known: LabelSet) -> Spans:
    """Entities in sequences of labels `[B, P]`; special labels count as O."""
    kind = jnp.asarray(known.type_of)[labels]
    before = jnp.pad(kind, ((0, 0), (1, 0)))[:, :-1]
    starts = (kind > 0) & (jnp.asarray(known.begins)[labels] | (kind != before))
    length = labels.shape[1]
    position = jnp.arange(length, dtype=jnp.int32)[None]
    ends_here = jnp.where(starts | (kind == 0), position, jnp.int32(length))
    later = jnp.pad(ends_here, ((0, 0), (0, 1)), constant_values=length)[:, 1:]
    return Spans(starts, jax.lax.cummin(later, axis=1, reverse=True), kind)


def found(predicted: Array, actual: Array, known: LabelSet) -> Found:
    """Counts entities in predicted and actual labels `[B, P]`.

    Where the actual label is padding nothing is predicted.
    """
    predicted = jnp.where(actual == PADDING, OUTSIDE, predicted)
    mine, real = spans(predicted, known), spans(actual, known)
    is_right = mine.starts & real.starts & (mine.type == real.type)
    is_right &= mine.stop == real.stop

    def per_type(counted: Array, kind: Array) -> Array:
        every = jnp.arange(1, len(known.types) + 1, dtype=kind.dtype)[None, None]
        return (counted[..., None] & (kind[..., None] == every)).sum((0, 1))

    return Found(
        per_type(is_right, real.type),
        per_type(mine.starts, mine.type),
        per_type(real.starts, real.type),
    )


def macro_f1(counts: Found) -> Ratio:
    """Mean F1 over the types that occur in the data or in what was predicted.

    F1 is the harmonic mean of precision and recall, 0 where nothing is right.
    """
    total = (counts.predicted + counts.actual).astype(jnp.float32)
    f1 = 2 * counts.right.astype(jnp.float32) / jnp.maximum(total, 1)
    return Ratio(f1.sum(), (total > 0).sum().astype(jnp.float32))
