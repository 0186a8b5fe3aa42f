"""Examples of users who are spread over several files, put together."""

import warnings
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from p2pjax.types import InputError


class Part(NamedTuple):
    """What one user has in one file."""

    user: str
    x: np.ndarray  # [n, ...]
    y: np.ndarray  # [n] int32
    file: str
    is_test: bool


class Merged(NamedTuple):
    """All users' examples in the order of the parts."""

    x: np.ndarray  # [E, ...]
    y: np.ndarray  # [E] int32
    user: np.ndarray  # [E] int32, users numbered as they appear
    is_test: np.ndarray  # [E] bool


def merge_users(parts: Iterable[Part], source: str) -> Merged:
    """One user per name: files of training and test examples share users.

    Samples that LEAF took twice overlap, and so do copies of a file in the folders of
    training and of test examples: an example, equal in input and label, that a user
    already has from another file is left out, with a warning. Where it was read first
    it counts, so what trains an agent never tests it. Repetitions within a file are
    the source's own and stay.

    Args:
        parts: of all files, file after file.
        source: where they came from, for messages.

    Raises:
        InputError: there is no example, or examples differ in shape.
    """
    by_user: dict[str, list[int]] = {}
    own = [part for part in parts if len(part.y)]
    for number, part in enumerate(own):
        by_user.setdefault(part.user, []).append(number)
    if not own:
        raise InputError(
            f"{source}: at least one example is needed, found no writer with any: "
            "get the files again"
        )
    shapes = {part.x.shape[1:] for part in own}
    if len(shapes) > 1:
        found = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
        raise InputError(
            f"{source}: examples of one shape are needed, found {found}: choose files "
            "of one data set"
        )
    num_before = sum(len(part.y) for part in own)
    for numbers in by_user.values():
        if len({own[number].file for number in numbers}) > 1:
            _drop_copies(own, numbers)
    num_copies = num_before - sum(len(part.y) for part in own)
    if num_copies:
        warnings.warn(
            f"{source}: left out {num_copies} of {num_before} examples, because their "
            "users have the same ones in another file.",
            stacklevel=3,
        )
    ids = {user: number for number, user in enumerate(by_user)}
    sizes = [len(part.y) for part in own]
    return Merged(
        np.concatenate([part.x for part in own]),
        np.concatenate([part.y for part in own]),
        np.repeat(np.array([ids[part.user] for part in own], np.int32), sizes),
        np.repeat(np.array([part.is_test for part in own]), sizes),
    )


def _drop_copies(parts: list[Part], numbers: list[int]) -> None:
    """Leaves out, in these parts of one user, what an earlier file has."""
    seen: dict[tuple[int, bytes], str] = {}
    for number in numbers:
        part = parts[number]
        keys = [(int(y), x.tobytes()) for x, y in zip(part.x, part.y, strict=True)]
        keep = [seen.get(key, part.file) == part.file for key in keys]
        seen |= {key: part.file for key, kept in zip(keys, keep, strict=True) if kept}
        parts[number] = part._replace(x=part.x[keep], y=part.y[keep])
