"""Data sets of TensorFlow Federated in its current format, sqlite: images and texts.

`load` reads images by client (EMNIST, CIFAR-100, CelebA, files that
`save_to_sql_client_data` wrote), `load_texts` texts (Shakespeare, StackOverflow).
Neither needs TensorFlow. `client_sqlite` says how a file is opened.
"""

from collections.abc import Sequence
from math import isqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p2pjax.datasets.loaders.arrays import INT32_LIMIT, as_labels, ink_from_paper
from p2pjax.datasets.loaders.client_sqlite import Database, Row, open_database
from p2pjax.datasets.loaders.files import listed, not_found
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError

IMAGES = {"pixels": "f", "image": "i"}  # names of features, and of what kind they are


# Names of features that are texts, and whether test texts are of the same users. Those
# of StackOverflow (tokens) are of other users and other years.
TEXTS = {"snippets": True, "tokens": False}


_BATCH = 1024  # images that are converted at once


def load(
    path: str | Path,
    *,
    label: str = "label",
    splits: Sequence[str] | None = None,
    max_users: int | None = None,
) -> Examples:
    """Loads images and labels of all clients.

    Args:
        path: a .sqlite or .sqlite.lzma file, or a folder with one, whose examples have
            pixels (784 floats, paper is 1 and ink 0, as EMNIST) or image (0 .. 255, as
            CIFAR-100 and CelebA), square and of one or three channels.
        label: the feature that is the class, such as "smiling" of CelebA.
        splits: training and test split, or one of them; those in
            `client_sqlite.SPLITS` unless given. EMNIST has its digits alone in
            ("digits_only_train", "digits_only_test").
        max_users: the first so many clients of the training split only; without the
            test split of CIFAR-100, whose clients are others.

    Returns:
        x uint8 [E, side, side] or [E, side, side, 3], training examples first; there
        are as many classes as the largest label tells. Clients are users, numbered by
        their names in alphabetical order; one of both splits is one user, but not in
        CIFAR-100, which numbers training and test clients separately. `is_test` is set
        where there are two splits.

    Raises:
        InputError: the file cannot be used, or holds something else.
    """
    path = find_file(path)
    with open_database(path) as database:
        parts = database.splits(splits)
        clients = _first_clients(database, parts[0], max_users)
        read = [_read_split(database, split, clients, label) for split in parts]
    if clients is not None and read[-1].is_separate:
        parts, read = parts[:1], read[:1]  # test clients of these names are others
    shapes = {split.x.shape[1:] for split in read if len(split.labels)}
    if len(shapes) != 1:
        found = " and ".join(str(list(shape)) for shape in sorted(shapes))
        raise InputError(
            f"{path}: images of one size are needed, found {found or 'no example'}: "
            "name other splits"
        )
    x = np.concatenate([split.x for split in read if len(split.labels)])
    labels = np.concatenate([split.labels for split in read])
    y = as_labels(labels, INT32_LIMIT - 1, str(path), label)
    names = [
        f"{part} {client}" if number and split.is_separate else client
        for number, (part, split) in enumerate(zip(parts, read, strict=True))
        for client in split.clients
    ]
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    user = np.array([numbers[name] for name in names], np.int32)
    is_test = np.repeat(np.arange(len(read)) > 0, [len(s.labels) for s in read])
    own = is_test if len(parts) > 1 else None
    return Examples(x, y, user, int(y.max()) + 1, own)


def load_texts(
    path: str | Path, field: str | None = None, max_users: int | None = None
) -> Documents:
    """Loads the texts of each client.

    Args:
        path: a .sqlite or .sqlite.lzma file, or a folder with one, whose examples have
            snippets (Shakespeare) or tokens (StackOverflow).
        field: which of them it must have; None is either.
        max_users: the first so many clients only; StackOverflow has 342477.

    Returns:
        The texts of the training split's clients, in alphabetical order. The test
        split is kept where its texts are by the same clients, of Shakespeare.

    Raises:
        InputError: the file cannot be used, or holds something else.
    """
    path = find_file(path)
    wanted = tuple(TEXTS) if field is None else (field,)
    with open_database(path) as database:
        parts = database.splits()
        clients = _first_clients(database, parts[0], max_users)
        train, found = _texts(database, parts[0], clients, wanted)
        test = None
        if TEXTS[found] and len(parts) > 1:
            test, _ = _texts(database, parts[1], clients, (found,))
    users = sorted(train)
    own = None if test is None else [test.get(user, []) for user in users]
    return Documents(users, [train[user] for user in users], test=own)


def find_file(path: str | Path) -> Path:
    """The file itself, or the only one of a folder, unpacked before packed."""
    path = Path(path)
    if path.is_file():
        return path
    found = sorted(path.glob("*.sqlite")) or sorted(path.glob("*.sqlite.*z*"))
    if not found:
        wanted = ("one *.sqlite", "one *.sqlite.lzma")
        raise not_found(path, wanted, "A data set of TensorFlow Federated")
    if len(found) > 1:
        raise InputError(
            f"A data set of TensorFlow Federated needs one *.sqlite in {path}, found "
            f"{', '.join(file.name for file in found)}: name the file"
        )
    return found[0]


def _first_clients(
    database: Database, split: str, max_users: int | None
) -> list[str] | None:
    if max_users is None:
        return None
    if max_users < 1:
        raise InputError(f"Need max_users of at least one, got {max_users}.")
    return database.clients(split, max_users)


class _Images(NamedTuple):
    x: np.ndarray  # uint8 [E, ...]
    labels: np.ndarray  # int64 [E]
    clients: list[str]  # E names
    is_separate: bool  # whether they are others than those of the training split


def _read_split(
    database: Database, split: str, clients: Sequence[str] | None, label: str
) -> _Images:
    source = f"{database.path}, {split}"
    done: list[np.ndarray] = []
    batch: list[np.ndarray] = []
    labels: list[int] = []
    names: list[str] = []
    expected = None
    is_separate = False
    for row in database.rows(split, clients):
        pixels, field = _pixels(row)
        if expected is None:
            expected = field, pixels.size
            is_separate = "coarse_label" in row.features  # CIFAR-100
        if (field, pixels.size) != expected:
            raise InputError(
                f"{row.source}: {expected[1]} numbers {expected[0]} are needed, as in "
                f"the examples before, found {pixels.size} {field}: get the file again"
            )
        batch.append(pixels)
        labels.append(_label(row, label))
        names.append(row.client)
        if len(batch) == _BATCH:
            done.append(_as_images(batch, field, source))
            batch = []
    if batch and expected:
        done.append(_as_images(batch, expected[0], source))
    x = np.concatenate(done) if done else np.zeros(0, np.uint8)
    return _Images(x, np.array(labels, np.int64), names, is_separate)


def _pixels(row: Row) -> tuple[np.ndarray, str]:
    """An image's numbers [size], and what they are called."""
    for name, kind in IMAGES.items():
        if name in row.features:
            values = row.features[name]
            if isinstance(values, np.ndarray) and values.dtype.kind == kind:
                return values, name
            what = "floats" if kind == "f" else "whole numbers"
            found = "bytes" if isinstance(values, list) else str(values.dtype)
            raise InputError(
                f"{row.source}: {name} must be {what}, one per pixel, found {found}: "
                "write decoded images"
            )
    raise InputError(
        f"{row.source}: images are needed, {' or '.join(IMAGES)}, found "
        f"{_names(row)}: {_instead(row)}"
    )


def _as_images(batch: list[np.ndarray], field: str, source: str) -> np.ndarray:
    """Numbers [size] of several images as uint8 [E, ...]."""
    values = np.stack(batch)
    if field == "pixels":
        return ink_from_paper(values, source, field)
    size = values.shape[1]
    sides = {channels: isqrt(size // channels) for channels in (1, 3)}
    shapes = [
        (side, side) if channels == 1 else (side, side, channels)
        for channels, side in sides.items()
        if side and side * side * channels == size
    ]
    if not shapes:
        raise InputError(
            f"{source}: image must be square, of one or three channels, found {size} "
            "numbers: resize the images"
        )
    if values.min() < 0 or values.max() > 255:
        raise InputError(
            f"{source}: image must lie in 0..255, found {values.min()}.."
            f"{values.max()}: rescale it"
        )
    return values.astype(np.uint8).reshape(-1, *shapes[0])


def _label(row: Row, name: str) -> int:
    value = row.features.get(name)
    if value is None:
        raise InputError(
            f"{row.source}: {name} is needed as label, found {_names(row)}: name one "
            "of these as label"
        )
    if isinstance(value, list) or value.dtype.kind != "i" or value.size != 1:
        raise InputError(
            f"{row.source}: {name} must be one whole number, found {len(value)} "
            f"{'strings' if isinstance(value, list) else value.dtype}: name another "
            "feature as label"
        )
    return int(value[0])


def _texts(
    database: Database,
    split: str,
    clients: Sequence[str] | None,
    wanted: Sequence[str],
) -> tuple[dict[str, list[str]], str]:
    """Texts by client, and what they are called."""
    texts: dict[str, list[str]] = {}
    field = wanted[0]
    for row in database.rows(split, clients):
        if not texts:
            field = next((name for name in wanted if name in row.features), field)
        value = row.features.get(field)
        if not isinstance(value, list) or len(value) != 1:
            raise InputError(
                f"{row.source}: a text is needed, {' or '.join(wanted)}, found "
                f"{_names(row)}: {_instead(row)}"
            )
        text = value[0].decode(errors="replace")
        texts.setdefault(row.client, []).append(text)
    return texts, field


def _names(row: Row) -> str:
    return listed(row.features) or "nothing"


def _instead(row: Row) -> str:
    if set(TEXTS) & set(row.features):
        return "these are texts, choose a data set of images or load_texts"
    if set(IMAGES) & set(row.features):
        return "these are images, choose a data set of texts or load"
    return "choose another data set"
