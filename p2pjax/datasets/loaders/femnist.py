"""FEMNIST: handwritten digits and letters by writer, in any of its public formats."""

from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np

from p2pjax.datasets.loaders import femnist_hdf5, leaf, tff
from p2pjax.datasets.loaders.arrays import (
    as_images,
    as_labels,
    as_users,
    check_lengths,
    number_names,
)
from p2pjax.datasets.loaders.client_sqlite import SQLITE_STARTS, find_database
from p2pjax.datasets.loaders.files import not_found, read_start, require_file
from p2pjax.datasets.loaders.leaf import File
from p2pjax.datasets.loaders.npz import ZIP_STARTS, read_arrays
from p2pjax.datasets.loaders.users import merge_users
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError

CLASSES = digits + ascii_uppercase + ascii_lowercase  # the class id is the position


SAME_IN_BOTH_CASES = "CIJKLMOPSUVWXYZ"  # merged by variant "m"


VARIANTS = ("a", "m", "d")


HDF5_START = b"\x89HDF"


HDF5_FILES = ("fed_emnist_train.h5", "fed_emnist_test.h5")


SQLITE = "emnist_all"  # the name of the newer file without its ending


WANTED = (
    "one femnist*.npz",
    " and ".join(HDF5_FILES),
    f"{SQLITE}.sqlite (or .lzma)",
    *leaf.WANTED,
)


def load(data_dir: str | Path) -> Examples:
    """Loads FEMNIST with all 62 classes, from whichever format is there.

    Args:
        data_dir: a folder, or one file of it, with an npz archive of x (uint8
            [E, 28, 28], ink 255), y and user; or TensorFlow Federated's HDF5 files, or
            its newer emnist_all.sqlite[.lzma]; or LEAF's JSON files. Within a folder
            they are looked for in this order.

    Returns:
        The examples; a writer of both training and test files is one user, whose
        images count once (see `users.merge_users`). Users are numbered as they appear
        (sqlite and names in npz: in alphabetical order; npz: as numbered there).

    Raises:
        InputError: nothing found, or a file cannot be used.
    """
    files = _find_files(Path(data_dir))
    first = files[0].path
    start = read_start(require_file(first, "a file of FEMNIST"), 16)
    if start.startswith(ZIP_STARTS):
        return _load_npz(first)
    if start.startswith(SQLITE_STARTS):
        return _load_sqlite(first)
    reader = femnist_hdf5 if start.startswith(HDF5_START) else leaf
    writers = (
        writer for file in files for writer in reader.read_writers(file, len(CLASSES))
    )
    merged = merge_users(writers, source=str(data_dir))
    return Examples(merged.x, merged.y, merged.user, len(CLASSES))


def variant(examples: Examples, name: str) -> Examples:
    """Chooses the classes of 62-class examples.

    Args:
        examples: digits 0-9, upper case 10-35, lower case 36-61. Examples of 10
            classes are taken to be digits: variant "d" leaves them as they are.
        name: "a", all 62; "m", 47 with upper and lower case merged for the letters
            that look the same in both (C I J K L M O P S U V W X Y Z), ids 36-46 are
            a b d e f g h n q r t; "d", the 10 digits only, others are dropped.

    Returns:
        The examples with the labels, and the number of classes, of the variant.

    Raises:
        InputError: no such variant, other classes, or no digits to keep.
    """
    if name not in VARIANTS:
        raise InputError(
            f"The FEMNIST variant must be one of {', '.join(VARIANTS)}, found "
            f"{name!r}: choose a (62 classes), m (47, cases merged) or d (10 digits)"
        )
    if name == "d" and examples.num_classes == len(digits):
        return examples
    if examples.num_classes != len(CLASSES):
        raise InputError(
            f"FEMNIST variant {name!r} needs examples of {len(CLASSES)} classes, found "
            f"{examples.num_classes} classes: give it FEMNIST or glyphs as loaded"
        )
    if name == "a":
        return examples
    if name == "m":
        merged = _merged_ids()
        y = merged[examples.y]
        return examples._replace(y=y, num_classes=int(merged.max()) + 1)
    is_digit = examples.y < len(digits)  # [E]
    if not is_digit.any():
        raise InputError(
            f"FEMNIST variant 'd' needs digits, found none among {len(is_digit)} "
            "examples: choose variant a or m"
        )
    is_test = None if examples.is_test is None else examples.is_test[is_digit]
    return Examples(
        examples.x[is_digit],
        examples.y[is_digit],
        examples.user[is_digit],
        len(digits),
        is_test,
    )


def _merged_ids() -> np.ndarray:
    """The class of variant "m" for each of the 62 classes, [62] int32."""
    apart = [c for c in ascii_lowercase if c.upper() not in SAME_IN_BOTH_CASES]
    classes = digits + ascii_uppercase + "".join(apart)
    target = [c if c in classes else c.upper() for c in CLASSES]
    return np.array([classes.index(c) for c in target], np.int32)


def _find_files(path: Path) -> list[File]:
    """The files to read, all of one format."""
    if path.is_file():
        return [File(path, is_test=False)]
    archives = sorted(path.glob("femnist*.npz"))
    if len(archives) > 1:
        names = ", ".join(file.name for file in archives)
        raise InputError(
            f"FEMNIST needs one femnist*.npz in {path}, found {names}: name the file"
        )
    if archives:
        return [File(archives[0], is_test=False)]
    there = [name for name in HDF5_FILES if (path / name).exists()]
    if len(there) == 1:
        (missing,) = set(HDF5_FILES) - set(there)
        raise InputError(
            f"FEMNIST needs {' and '.join(HDF5_FILES)} in {path}, found only "
            f"{there[0]}: add {missing}, or name what is there instead of the folder"
        )
    if there:
        return [File(path / name, name == HDF5_FILES[1]) for name in HDF5_FILES]
    if database := find_database(path, SQLITE):
        return [File(database, is_test=False)]
    if not any(path.glob("*.json")) and not any(path.glob("t*/*.json")):
        raise not_found(path, WANTED, "FEMNIST")
    return leaf.find_files(path, "FEMNIST")


def _load_npz(path: Path) -> Examples:
    arrays = read_arrays(path, ("x", "y", "user"))
    x = as_images(arrays["x"], str(path))
    y = as_labels(arrays["y"], len(CLASSES), str(path))
    user = number_names(arrays["user"], str(path), "user")
    user = as_users(user, str(path))
    check_lengths(str(path), x=x, y=y, user=user)
    return Examples(x, y, user, len(CLASSES))


def _load_sqlite(path: Path) -> Examples:
    examples = tff.load(path)
    x = as_images(examples.x, str(path), "pixels")
    y = as_labels(examples.y, len(CLASSES), str(path), "label")
    return Examples(x, y, examples.user, len(CLASSES))
