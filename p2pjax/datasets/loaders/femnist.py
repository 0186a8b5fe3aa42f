"""FEMNIST: handwritten digits and letters by writer, in any of its public formats."""

import re
from collections.abc import Iterable
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np

from p2pjax.datasets.loaders import femnist_hdf5, femnist_json
from p2pjax.datasets.loaders.arrays import as_images, as_labels, as_users, check_lengths
from p2pjax.datasets.loaders.files import not_found, read_start, require_file
from p2pjax.datasets.loaders.npz import ZIP_STARTS, read_arrays
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError

CLASSES = digits + ascii_uppercase + ascii_lowercase  # the class id is the position


SAME_IN_BOTH_CASES = "CIJKLMOPSUVWXYZ"  # merged by variant "m"


VARIANTS = ("a", "m", "d")


HDF5_START = b"\x89HDF"


HDF5_FILES = ("fed_emnist_train.h5", "fed_emnist_test.h5")


WANTED = (
    "one femnist*.npz",
    " and ".join(HDF5_FILES),
    "LEAF's train/*.json and test/*.json",
    "LEAF's all_data*.json",
)


def load(data_dir: str | Path) -> Examples:
    """Loads FEMNIST with all 62 classes, from whichever format is there.

    Args:
        data_dir: a folder, or one file of it, with an npz archive of x (uint8
            [E, 28, 28], ink 255), y and user; or TensorFlow Federated's HDF5 files;
            or LEAF's JSON files. Within a folder they are looked for in this order.

    Returns:
        The examples; a writer of both training and test files is one user, and users
        are numbered as they appear (npz: as they are numbered there).

    Raises:
        InputError: nothing found, or a file cannot be used.
    """
    files = _find_files(Path(data_dir))
    start = read_start(require_file(files[0], "a file of FEMNIST"), 4)
    if start in ZIP_STARTS:
        return _load_npz(files[0])
    reader = femnist_hdf5 if start == HDF5_START else femnist_json
    writers = (
        writer for file in files for writer in reader.read_writers(file, len(CLASSES))
    )
    return _merge_writers(writers, source=str(data_dir))


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


def _find_files(path: Path) -> list[Path]:
    """The files to read, all of one format."""
    if path.is_file():
        return [path]
    archives = sorted(path.glob("femnist*.npz"))
    if len(archives) > 1:
        names = ", ".join(file.name for file in archives)
        raise InputError(
            f"FEMNIST needs one femnist*.npz in {path}, found {names}: name the file"
        )
    if archives:
        return archives
    hdf5 = [path / name for name in HDF5_FILES]
    if any(file.exists() for file in hdf5):
        return _both(hdf5[:1], hdf5[1:], path, HDF5_FILES)
    train, test = (_json_files(path / split, "*.json") for split in ("train", "test"))
    if train or test:
        return _both(train, test, path, ("train/*.json", "test/*.json"))
    files = _json_files(path, "all_data*.json") or _json_files(path, "*.json")
    if not files:
        raise not_found(path, WANTED, "FEMNIST")
    return files


def _both(
    train: list[Path], test: list[Path], path: Path, names: tuple[str, str]
) -> list[Path]:
    for files, missing, there in ((train, *names), (test, *names[::-1])):
        if not files or not files[0].exists():
            raise InputError(
                f"FEMNIST needs {names[0]} and {names[1]} in {path}, found only "
                f"{there}: add {missing}, or name what is there instead of the folder"
            )
    return train + test


def _json_files(folder: Path, pattern: str) -> list[Path]:
    """Files in the order in which LEAF numbered them: all_data_2 before all_data_10."""
    parts = {file: re.split(r"(\d+)", file.name) for file in folder.glob(pattern)}
    return sorted(
        parts, key=lambda file: [int(p) if p.isdecimal() else p for p in parts[file]]
    )


def _load_npz(path: Path) -> Examples:
    arrays = read_arrays(path, ("x", "y", "user"))
    x = as_images(arrays["x"], str(path))
    y = as_labels(arrays["y"], len(CLASSES), str(path))
    user = as_users(arrays["user"], str(path))
    check_lengths(str(path), x=x, y=y, user=user)
    return Examples(x, y, user, len(CLASSES))


def _merge_writers(
    writers: Iterable[tuple[str, np.ndarray, np.ndarray]], source: str
) -> Examples:
    ids: dict[str, int] = {}
    xs, ys, users = [], [], []
    for name, x, y in writers:
        xs.append(x)
        ys.append(y)
        users.append(np.full(len(y), ids.setdefault(name, len(ids)), np.int32))
    if not ids:
        raise InputError(
            f"{source}: at least one example is needed, found no writer with any: "
            "get the files again"
        )
    x, y, user = (np.concatenate(parts) for parts in (xs, ys, users))
    return Examples(x, y, user, len(CLASSES))
