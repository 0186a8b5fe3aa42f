"""Reads idx files, the format that MNIST is published in, plain or gzipped.

Fashion-MNIST, Kuzushiji-MNIST and EMNIST have the same format and similar names.
"""

import math
import re
import struct
from pathlib import Path

import numpy as np

from p2pjax.datasets.loaders.arrays import INT32_LIMIT
from p2pjax.datasets.loaders.files import not_found, require_file
from p2pjax.datasets.loaders.packed import read_unpacked
from p2pjax.datasets.loaders.splits import Split, check_split, join_splits
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError

UNSIGNED_BYTES = 0x08  # the type code that MNIST uses


# train-images-idx3-ubyte, t10k-labels.idx1-ubyte.gz, emnist-letters-test-images-...
_NAME = re.compile(
    r"(?P<dataset>.*?)(?P<split>train|t10k|test)-(?P<kind>images|labels)"
    r"[-.]idx[13]-ubyte(\.gz)?"
)


_KINDS = ("train images", "train labels", "test images", "test labels")


def load(path: str | Path) -> Examples:
    """Loads the four idx files of a data set like MNIST, training examples first.

    Args:
        path: a folder with one data set's files of training and test images and
            labels, each packed by gzip or not, named as those of MNIST
            (train-images-idx3-ubyte, t10k-labels-idx1-ubyte, ...) or of EMNIST
            (emnist-balanced-train-images-idx3-ubyte, ...). In a folder with several
            data sets, one file of the one that is meant.

    Returns:
        x uint8 [E, height, width], all of user 0, with one class more than the largest
        label. EMNIST's images, which are published lying on their side, are upright.
        Its letters are classes 1 to 26, as published.

    Raises:
        InputError: nothing found, several data sets, or a file cannot be used.
    """
    path = Path(path)
    folder = path.parent if path.is_file() else path
    found = _find_files(folder)
    if path.is_file():
        match = _NAME.fullmatch(path.name)
        names = [match["dataset"]] if match else []
    else:
        names = list(found)
    if not names:
        wanted = ("train-images-idx3-ubyte", "emnist-letters-train-images-idx3-ubyte")
        raise not_found(path, wanted, "A data set in idx files")
    if len(names) > 1:
        raise InputError(
            f"One data set in idx files is needed in {folder}, found those that begin "
            f"with {', '.join(repr(name) for name in names)}: name one of the files"
        )
    files = found[names[0]]
    missing = [kind for kind in _KINDS if kind not in files]
    if missing:
        there = ", ".join(file.name for file in files.values())
        raise InputError(
            f"{folder}: idx files of {', '.join(_KINDS)} are needed, found {there}: "
            f"add {', '.join(missing)}"
        )
    is_lying = names[0].startswith("emnist")
    train = _read_split(files["train images"], files["train labels"], is_lying)
    test = _read_split(files["test images"], files["test labels"], is_lying)
    if train[0].shape[1:] != test[0].shape[1:]:
        raise InputError(
            f"{folder}: training and test images must have the same size, found "
            f"{list(train[0].shape[1:])} and {list(test[0].shape[1:])}: get them again"
        )
    num_classes = int(max(train[1].max(), test[1].max())) + 1
    return join_splits(train, test, num_classes)


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """Reads one array of unsigned bytes.

    The format: two zero bytes, a type code, the number of axes, each axis' length as a
    big-endian 32-bit integer, then the values, last axis fastest.

    Args:
        path: the file; gzip is recognised by content, not by name.
        ndim: how many axes the array must have.

    Returns:
        uint8 of `ndim` axes.

    Raises:
        InputError: missing, empty, cut off, or another format.
    """
    content = f"an idx{ndim} file of unsigned bytes"
    raw = read_unpacked(require_file(path, content), content)
    magic = bytes((0, 0, UNSIGNED_BYTES, ndim))
    if raw[:4] != magic:
        raise InputError(
            f"{path} must be {content}, which starts with {magic.hex()}, but starts "
            f"with {raw[:4].hex() or 'nothing'}: check the file's name"
        )
    header_size = 4 + 4 * ndim
    lengths = raw[4:header_size]
    if len(lengths) < 4 * ndim:
        raise InputError(
            f"{path} must be {content} with {header_size} bytes of header but has only "
            f"{len(raw)} bytes, it is cut off: get it again"
        )
    shape = struct.unpack(f">{ndim}I", lengths)
    found, needed = len(raw) - header_size, math.prod(shape)
    if found != needed:
        trouble = "cut off" if found < needed else "too long"
        raise InputError(
            f"{path} must hold {needed} bytes for shape {list(shape)} but holds "
            f"{found}, it is {trouble}: get it again"
        )
    return np.frombuffer(raw, np.uint8, offset=header_size).reshape(shape)


def _find_files(folder: Path) -> dict[str, dict[str, Path]]:
    """Files by data set (what names begin with) and by what they hold."""
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = _NAME.fullmatch(file.name)
        if match and file.is_file():
            split = "train" if match["split"] == "train" else "test"
            files = found.setdefault(match["dataset"], {})
            files.setdefault(f"{split} {match['kind']}", file)  # plain before .gz
    return found


def _read_split(images: Path, labels: Path, is_lying: bool) -> Split:
    x, y = read_idx(images, ndim=3), read_idx(labels, ndim=1)
    if is_lying:
        x = np.ascontiguousarray(x.swapaxes(1, 2))
    names = (images.name, labels.name)
    return check_split(
        x, y, str(images.parent), names, INT32_LIMIT - 1, shape=x.shape[1:]
    )
