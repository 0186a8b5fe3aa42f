"""LEAF's JSON files, user by user: images (FEMNIST) or features.

Caldas et al. (2018), "LEAF: a benchmark for federated settings", arXiv:1812.01097.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from p2pjax.datasets.loaders.arrays import (
    INT32_LIMIT,
    as_labels,
    check_lengths,
    finite_floats,
    ink_from_paper,
)
from p2pjax.datasets.loaders.files import listed, not_found, shown
from p2pjax.datasets.loaders.text_files import read_json
from p2pjax.datasets.loaders.users import Part, merge_users
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError

KEYS = ("users", "num_samples", "user_data")


CONTENT = f"LEAF JSON with {', '.join(KEYS)}"


WANTED = ("LEAF's train/*.json and test/*.json", "LEAF's all_data*.json")


class File(NamedTuple):
    """One JSON file."""

    path: Path
    is_test: bool  # whether it is in the folder test


def load(
    data_dir: str | Path, *, pixels: bool = True, num_classes: int | None = None
) -> Examples:
    """Loads a data set that LEAF, or a program that writes its format, has written.

    Args:
        data_dir: a folder with train/*.json and test/*.json, or all_data*.json, or any
            *.json; or one such file.
        pixels: whether x are images as FEMNIST's, 784 numbers with paper 1 and ink 0;
            else they are features, kept as float32, such as LEAF's synthetic data.
        num_classes: one more than the largest label unless given.

    Returns:
        x uint8 [E, 28, 28] with ink 255, or float32 [E, features]. Users are numbered
        as they appear; what a user has in several files counts once (see
        `users.merge_users`). `is_test` is set where there are folders train and test.

    Raises:
        InputError: nothing found, or a file cannot be used.
    """
    files = find_files(Path(data_dir))
    parts = (
        _as_part(name, x, y, source, file, pixels, num_classes)
        for file in files
        for name, x, y, source in read_users(file.path)
    )
    merged = merge_users(parts, source=str(data_dir))
    if num_classes is None:
        num_classes = int(merged.y.max()) + 1
    has_split = any(file.is_test for file in files)
    is_test = merged.is_test if has_split else None
    return Examples(merged.x, merged.y, merged.user, num_classes, is_test)


def find_files(path: Path, dataset: str = "LEAF data") -> list[File]:
    """The files to read: training files before test files.

    Args:
        path: a folder, or one file.
        dataset: its name, for messages.
    """
    if path.is_file():
        return [File(path, is_test=False)]
    train, test = (_json_files(path / split, "*.json") for split in ("train", "test"))
    if train or test:
        for files, there, missing in (
            (test, "train", "test"),
            (train, "test", "train"),
        ):
            if not files:
                raise InputError(
                    f"{dataset} needs train/*.json and test/*.json in {path}, found "
                    f"only {there}/*.json: add {missing}/*.json, or name what is there "
                    "instead of the folder"
                )
        return [File(f, is_test=False) for f in train] + [File(f, True) for f in test]
    files = _json_files(path, "all_data*.json") or _json_files(path, "*.json")
    if not files:
        raise not_found(path, WANTED, dataset)
    return [File(file, is_test=False) for file in files]


def read_users(path: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray, str]]:
    """Yields (name, x [n, ...], y [n], where, for messages) of each user of one file.

    LEAF leaves users without examples in `user_data` but not in `users`; only `users`
    counts here, as it does there.

    Args:
        path: one file, {"users": [...], "num_samples": [...], "user_data": {user:
            {"x": [[numbers], ...], "y": [...]}}}.

    Raises:
        InputError: the file or a user in it cannot be used.
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
        source = f"{path}, user {shown(user)}"
        x, y = _read_user(user_data.get(user), source)
        if count != len(y):
            raise InputError(
                f"{source}: num_samples must equal the number of labels, found "
                f"num_samples {shown(count)} and {len(y)} labels: "
                "run LEAF's preprocess.sh again"
            )
        if len(x) or len(y):
            yield user, x, y, source


def read_writers(file: File, num_classes: int) -> Iterator[Part]:
    """Yields the images of each writer of one file of FEMNIST.

    Args:
        file: see `read_users`.
        num_classes: labels must lie below.

    Raises:
        InputError: the file or a writer in it cannot be used.
    """
    for name, x, y, source in read_users(file.path):
        yield _as_part(name, x, y, source, file, True, num_classes)


def _as_part(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    source: str,
    file: File,
    pixels: bool,
    num_classes: int | None,
) -> Part:
    inputs = ink_from_paper(x, source, "x") if pixels else _as_features(x, source)
    labels = as_labels(y, num_classes or INT32_LIMIT - 1, source)
    check_lengths(source, x=inputs, y=labels)
    return Part(name, inputs, labels, str(file.path), file.is_test)


def _as_features(x: np.ndarray, source: str) -> np.ndarray:
    if x.dtype.kind not in "uif" or x.ndim < 2:
        raise InputError(
            f"{source}: x must be lists of numbers, found {x.dtype} {list(x.shape)}: "
            "choose a data set of numbers"
        )
    return finite_floats(x, source)


def _json_files(folder: Path, pattern: str) -> list[Path]:
    """Files in the order in which LEAF numbered them: all_data_2 before all_data_10."""
    parts = {file: re.split(r"(\d+)", file.name) for file in folder.glob(pattern)}
    return sorted(
        parts, key=lambda file: [int(p) if p.isdecimal() else p for p in parts[file]]
    )


def _read_json(path: Path) -> dict[str, Any]:
    content = read_json(path, CONTENT)
    keys = list(content) if isinstance(content, dict) else []
    if not set(KEYS) <= set(keys):
        found = f"the keys {listed(keys)}" if keys else type(content).__name__
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
    """The raw x [n, ...] and y [n] of one user."""
    if not isinstance(record, dict) or not {"x", "y"} <= set(record):
        found = listed(record) if isinstance(record, dict) else "nothing"
        raise InputError(
            f"{source}: user_data must have x and y, found {found or 'neither'}: "
            "run LEAF's preprocess.sh again"
        )
    x, y = record["x"], record["y"]
    if not isinstance(x, list) or not isinstance(y, list):
        raise InputError(
            f"{source}: x and y must be lists, found {type(x).__name__} and "
            f"{type(y).__name__}: run LEAF's preprocess.sh again"
        )
    return _as_array(x, "x", source), _as_array(y, "y", source)


def _as_array(values: list, name: str, source: str) -> np.ndarray:
    """Numbers in lists; a single text would make texts of its length of all others."""
    try:
        other = next(_no_numbers(values), None)
        array = np.asarray(None if other else values)
    except (ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{source}: x must be lists of numbers, 784 of an image, and y a list of "
            "labels, found lists of unequal length or numbers that are too large: "
            "run LEAF's preprocess.sh again"
        ) from error
    if other or array.dtype == object:
        found = other or "whole numbers of more than 64 bits"
        raise InputError(
            f"{source}: {name} must be numbers, found {found}: choose a data set of "
            "LEAF with images or features in its JSON"
        )
    return array


def _no_numbers(values: list) -> Iterator[str]:
    """What else there is in lists of lists."""
    kinds = set(map(type, values)) - {int, float}
    for value in values if kinds else ():
        if isinstance(value, list):
            yield from _no_numbers(value)
        elif type(value) not in (int, float):
            yield f"names, texts or others such as '{shown(value)}'"
