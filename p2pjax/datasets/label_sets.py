"""Labels of words: which number stands for which tag."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from p2pjax.types import InputError

PADDING, OUTSIDE, CLS, SEP = range(4)  # labels of every label set


SPECIAL = ("[PAD]", "O", "[CLS]", "[SEP]")


class LabelSet(NamedTuple):
    """Labels by number, the first four as in `SPECIAL`."""

    names: tuple[str, ...]
    types: tuple[str, ...]  # of entities, k of them
    type_of: np.ndarray  # [labels] 1 to k, 0 outside of entities
    begins: np.ndarray  # [labels] whether it begins an entity whatever came before


def label_set(tags: Sequence[str]) -> LabelSet:
    """The labels that these tags need, sorted by type, B- before I-.

    >>> label_set(["O", "I-PER", "B-PER", "I-LOC"]).names[4:]
    ('I-LOC', 'B-PER', 'I-PER')
    """
    own = set(tags) - {"O"}
    bad = sorted(tag for tag in own if tag[:2] not in ("B-", "I-") or len(tag) < 3)
    if bad:
        raise InputError(f"Need tags O, B-type or I-type, got {', '.join(bad[:5])}.")
    ordered = sorted(own, key=lambda tag: (tag[2:], tag))
    types = tuple(sorted({tag[2:] for tag in own}))
    return LabelSet(
        names=(*SPECIAL, *ordered),
        types=types,
        type_of=np.array([0] * 4 + [1 + types.index(t[2:]) for t in ordered], np.int32),
        begins=np.array([False] * 4 + [t[0] == "B" for t in ordered]),
    )
