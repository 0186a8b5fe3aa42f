"""CIFAR-10: small colour photographs of vehicles and animals.

Krizhevsky (2009), "Learning multiple layers of features from tiny images".
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from p2pjax.datasets.loaders import images_tfds
from p2pjax.datasets.loaders.files import not_found, reading, require_file
from p2pjax.datasets.loaders.npz import read_arrays
from p2pjax.datasets.loaders.packed import read_unpacked
from p2pjax.datasets.loaders.pickled_arrays import read_pickle
from p2pjax.datasets.loaders.splits import Split, check_split, join_splits
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError

NUM_CLASSES = 10


VEHICLES = (0, 1, 8, 9)  # airplane, automobile, ship, truck


ANIMALS = (2, 3, 4, 5, 6, 7)  # bird, cat, deer, dog, frog, horse


FOLDER = "cifar-10-batches-py"


BATCHES = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}


ARCHIVES = "cifar10*.npz"


_SHAPE = (32, 32, 3)


_CONTENT = "a batch of CIFAR-10's python version, with data and labels"


def load(data_dir: str | Path) -> Examples:
    """Loads CIFAR-10, training examples first.

    Args:
        data_dir: the folder cifar-10-batches-py, or the one that it is in, or a folder
            with one cifar10*.npz of x_train, y_train, x_test, y_test (or that file
            itself), which may hold a part of the examples.

    Returns:
        x uint8 [E, 32, 32, 3], all of user 0.

    Raises:
        InputError: nothing found, or a file cannot be used.
    """
    path = Path(data_dir)
    if path.is_file():
        splits = _read_npz(path)
    else:
        folder = path / FOLDER if (path / FOLDER).is_dir() else path
        archives = sorted(path.glob(ARCHIVES))
        if (folder / BATCHES["test"][0]).exists():
            splits = {
                split: _read_batches(folder, names) for split, names in BATCHES.items()
            }
        elif len(archives) == 1:
            splits = _read_npz(archives[0])
        elif archives:
            raise InputError(
                f"CIFAR-10 needs one {ARCHIVES} in {path}, found "
                f"{', '.join(file.name for file in archives)}: name the file"
            )
        else:
            raise not_found(path, (FOLDER, f"one {ARCHIVES}"), "CIFAR-10")
    return join_splits(splits["train"], splits["test"], NUM_CLASSES)


def load_tfds(data_dir: str | Path | None = None, download: bool = False) -> Examples:
    """Loads it through TensorFlow Datasets; see `images_tfds.load_tfds`."""
    return images_tfds.load_tfds("cifar10", data_dir, download, _SHAPE)


def _read_npz(path: Path) -> dict[str, Split]:
    arrays = read_arrays(path, ("x_train", "y_train", "x_test", "y_test"))
    return {
        split: check_split(
            arrays[f"x_{split}"],
            arrays[f"y_{split}"],
            str(path),
            (f"x_{split}", f"y_{split}"),
            NUM_CLASSES,
            _SHAPE,
        )
        for split in ("train", "test")
    }


def _read_batches(folder: Path, names: Sequence[str]) -> Split:
    batches = [_read_batch(folder / name) for name in names]
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return x, y


def _read_batch(path: Path) -> Split:
    raw = read_unpacked(require_file(path, _CONTENT), _CONTENT)
    with reading(path, _CONTENT, ValueError):
        batch = read_pickle(raw)
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= set(batch):
        raise InputError(
            f"{path} must be {_CONTENT} but holds something else: unpack "
            "cifar-10-python.tar.gz again"
        )
    pixels, labels = batch[b"data"], batch[b"labels"]
    if isinstance(labels, list) and set(map(type, labels)) <= {int}:
        labels = np.asarray(labels)
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, np.ndarray):
        raise InputError(
            f"{path} must be {_CONTENT} but has {type(pixels).__name__} and "
            f"{type(labels).__name__} as these: unpack cifar-10-python.tar.gz again"
        )
    if pixels.ndim == 2 and pixels.shape[1] == np.prod(_SHAPE):
        # Rows of all red, all green and all blue pixels.
        pixels = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    names = ("data", "labels")
    return check_split(pixels, labels, str(path), names, NUM_CLASSES, _SHAPE)
