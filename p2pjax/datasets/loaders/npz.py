"""Your own data in one npz archive, and the safe way to open an npz archive."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from p2pjax.datasets.loaders import packed
from p2pjax.datasets.loaders.arrays import (
    INT32_LIMIT,
    as_labels,
    as_users,
    check_lengths,
    finite_floats,
    number_names,
)
from p2pjax.datasets.loaders.files import (
    listed,
    open_file,
    read_start,
    reading,
    require_file,
)
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError

ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")  # with and without members


_PLAIN, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED  # numpy writes no others


def load(path: str | Path, *, needs_user: bool = True) -> Examples:
    """Loads x, y, user and, where present, split and num_classes.

    Args:
        path: an npz archive with
            x: numbers [E, ...]; uint8 (pixels) and float32 are kept as they are, other
                floats and booleans become float32, other whole numbers int32;
            y: whole numbers [E] from 0, or names of classes, which are numbered in
                sorted order (`np.unique(y)` has them);
            user: whole numbers [E] from 0, or names, numbered in sorted order;
            split: optional [E], 0 / 1, booleans or "train" / "test";
            num_classes: optional, y.max() + 1 unless given.
        needs_user: whether the archive must have users; where it need not and does not,
            all examples are of user 0.

    Returns:
        The examples; `is_test` is set where there is a split.

    Raises:
        InputError: the file or an array cannot be used.
    """
    path = Path(path)
    required, optional = ["x", "y"], ["split", "num_classes"]
    (required if needs_user else optional).append("user")
    arrays = read_arrays(path, required, optional)
    source = str(path)
    x = _as_inputs(arrays["x"], source)
    y = as_labels(number_names(arrays["y"], source, "y"), INT32_LIMIT - 1, source)
    user = np.zeros_like(y)
    if "user" in arrays:
        user = as_users(number_names(arrays["user"], source, "user"), source)
    check_lengths(source, x=x, y=y, user=user)
    num_classes = int(y.max()) + 1
    if "num_classes" in arrays:
        num_classes = _as_num_classes(arrays["num_classes"], source)
        y = as_labels(y, num_classes, source)
    elif num_classes > len(y):
        raise InputError(
            f"{source}: y must number the classes from 0, found {y.max()} among "
            f"{len(y)} examples: renumber the labels or save num_classes"
        )
    if "split" not in arrays:
        return Examples(x, y, user, num_classes)
    is_test = _as_is_test(arrays["split"], source)
    check_lengths(source, x=x, split=is_test)
    return Examples(x, y, user, num_classes, is_test)


def read_arrays(
    path: str | Path, required: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Reads arrays out of an npz archive and never unpickles anything.

    Args:
        path: the npz archive.
        required: names of arrays that must be there.
        optional: names of arrays that are read where they are there.

    Returns:
        The arrays by name; optional ones only where they were there.

    Raises:
        InputError: missing, empty, cut off, not npz, without a required array, or
            with pickled objects in an array that was asked for.
    """
    content = f"an npz archive with {', '.join(required)}"
    path = require_file(Path(path), content)
    if read_start(path, 4) not in ZIP_STARTS:
        raise InputError(
            f"{path} must be {content} but is of another format or cut off: "
            "write it with numpy.savez"
        )
    with (
        reading(path, content, Exception),  # a damaged archive can raise anything
        open_file(path, content) as file,
        zipfile.ZipFile(file) as archive,
    ):
        members = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
        missing = [name for name in required if name not in members]
        if missing:
            raise InputError(
                f"{path} must be {content} but has only "
                f"{listed(members) or 'nothing'}: "
                f"add {', '.join(missing)} with numpy.savez"
            )
        wanted = {
            name: members[name] for name in (*required, *optional) if name in members
        }
        size = sum(member.file_size for member in wanted.values())
        packed.check_size(path, size, content)
        packed.check_memory(path, size, content)
        return {
            name: _read_array(archive, member, f"{path} must be {content} but {name}")
            for name, member in wanted.items()
        }


def _read_array(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, source: str
) -> np.ndarray:
    start = np.lib.format.MAGIC_PREFIX
    with archive.open(member) as file:
        is_array = member.compress_type in (_PLAIN, _DEFLATED)
        if not is_array or file.read(len(start)) != start:
            raise InputError(f"{source} is no array: write it with numpy.savez")
        file.seek(0)
        try:
            array = np.lib.format.read_array(file, allow_pickle=False)
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            raise InputError(
                f"{source} holds pickled objects, which are never loaded: save it as "
                "plain arrays of numbers or strings"
            ) from error
        if file.read(1):
            raise InputError(
                f"{source} has more bytes than its shape {list(array.shape)} says: "
                "write it with numpy.savez"
            )
    if array.dtype.kind == "V" or (array.size and not array.dtype.itemsize):
        raise InputError(
            f"{source} is of a dtype that is neither numbers nor strings: save it as "
            "plain arrays"
        )
    return array


def _as_inputs(x: np.ndarray, source: str) -> np.ndarray:
    if x.dtype.kind not in "buif" or x.ndim == 0 or x.size == 0:
        raise InputError(
            f"{source}: x must be numbers of shape [examples, ...], at least one "
            f"example, found {x.dtype} {list(x.shape)}: save plain numbers"
        )
    if x.dtype.kind == "f":
        return finite_floats(x, source)
    if x.dtype == np.bool_:
        return x.astype(np.float32)  # bytes would be taken for pixels of 0 .. 255
    if x.dtype == np.uint8:
        return x
    if x.min() < -INT32_LIMIT or x.max() >= INT32_LIMIT:
        raise InputError(
            f"{source}: x of whole numbers must fit int32, found "
            f"{x.min()}..{x.max()}: save it as float32"
        )
    return x.astype(np.int32)


def _as_num_classes(value: np.ndarray, source: str) -> int:
    whole = value.size == 1 and value.dtype.kind in "ui"
    if not whole or not 0 < int(value.item()) < INT32_LIMIT:
        raise InputError(
            f"{source}: num_classes must be one whole number above 0, found "
            f"{value.dtype} {value.tolist()}: save e.g. num_classes=10"
        )
    return int(value.item())


def _as_is_test(split: np.ndarray, source: str) -> np.ndarray:
    """Booleans [E] out of 0 / 1, booleans, or "train" / "test"."""
    if split.ndim == 1 and split.dtype.kind in "bui" and np.isin(split, (0, 1)).all():
        return split.astype(bool)
    names = np.char.decode(split, "latin-1") if split.dtype.kind == "S" else split
    if names.ndim == 1 and names.dtype.kind == "U":
        is_test = names == "test"
        if (is_test | (names == "train")).all():
            return is_test
    raise InputError(
        f"{source}: split must be [examples] of 0 / 1, booleans or 'train' / 'test', "
        f"found {split.dtype} {list(split.shape)} with {split.reshape(-1)[:3].tolist()}"
        ": save one of these per example"
    )
