"""Reads the JSON files that LEAF writes for FEMNIST, writer by writer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from p2pjax.datasets.loaders.arrays import as_labels, check_lengths, ink_from_paper
from p2pjax.datasets.loaders.files import require_file, unreadable
from p2pjax.types import InputError

KEYS = ("users", "num_samples", "user_data")


CONTENT = f"LEAF JSON with {', '.join(KEYS)}"


def read_writers(
    path: Path, num_classes: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields (name, x uint8 [n, 28, 28], y int32 [n]) of each writer of one file.

    LEAF leaves writers without examples in `user_data` but not in `users`; only
    `users` counts here, as it does there.

    Args:
        path: one file, {"users": [...], "num_samples": [...], "user_data": {user:
            {"x": [[784 numbers, paper is 1 and ink 0], ...], "y": [...]}}}.
        num_classes: labels must lie below.

    Raises:
        InputError: the file or a writer in it cannot be used.
    """
    content = _read_json(path)
    users, num_samples, user_data = (content[key] for key in KEYS)
    if len(set(users)) != len(users) or len(users) != len(num_samples):
        raise InputError(
            f"{path}: users must be distinct and have one num_samples each, found "
            f"{len(users)} users, {len(set(users))} distinct, and {len(num_samples)} "
            "num_samples: run LEAF's preprocess.sh again"
        )
    for user, count in zip(users, num_samples, strict=True):
        source = f"{path}, user {user}"
        x, y = _read_user(user_data.get(user), source)
        if count != len(y):
            raise InputError(
                f"{source}: num_samples must equal the number of labels, found "
                f"num_samples {count} and {len(y)} labels: "
                "run LEAF's preprocess.sh again"
            )
        if len(x) or len(y):
            pixels = ink_from_paper(x, source, "x")
            labels = as_labels(y, num_classes, source)
            check_lengths(source, x=pixels, y=labels)
            yield user, pixels, labels


def _read_json(path: Path) -> dict[str, Any]:
    require_file(path, CONTENT)
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, CONTENT, error) from error
    keys = list(content) if isinstance(content, dict) else []
    if not set(KEYS) <= set(keys):
        found = f"the keys {', '.join(keys[:8])}" if keys else type(content).__name__
        raise InputError(
            f"{path} must be {CONTENT} but holds {found}: name a folder of LEAF files"
        )
    users, num_samples, user_data = (content[key] for key in KEYS)
    lists = isinstance(users, list) and isinstance(num_samples, list)
    names = lists and all(isinstance(user, str) for user in users)
    if not names or not isinstance(user_data, dict):
        raise InputError(
            f"{path}: users must be a list of names, num_samples a list and user_data "
            f"an object, found {type(users).__name__}, {type(num_samples).__name__} "
            f"and {type(user_data).__name__}: run LEAF's preprocess.sh again"
        )
    return content


def _read_user(record: Any, source: str) -> tuple[np.ndarray, np.ndarray]:
    """The raw x [n, 784] and y [n] of one writer."""
    if not isinstance(record, dict) or not {"x", "y"} <= set(record):
        found = ", ".join(record) if isinstance(record, dict) else "nothing"
        raise InputError(
            f"{source}: user_data must have x and y, found {found or 'neither'}: "
            "run LEAF's preprocess.sh again"
        )
    try:
        x, y = np.asarray(record["x"]), np.asarray(record["y"])
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"{source}: x must be lists of 784 numbers and y a list of labels, found "
            "lists of unequal length: run LEAF's preprocess.sh again"
        ) from error
    if x.ndim == 0 or y.ndim == 0:
        raise InputError(
            f"{source}: x and y must be lists, found {type(record['x']).__name__} and "
            f"{type(record['y']).__name__}: run LEAF's preprocess.sh again"
        )
    return x, y
