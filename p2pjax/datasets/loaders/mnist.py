"""MNIST: handwritten digits, from the published files or from TensorFlow Datasets."""

from pathlib import Path

import numpy as np

from p2pjax.datasets.loaders import images_tfds
from p2pjax.datasets.loaders.arrays import as_users
from p2pjax.datasets.loaders.files import not_found
from p2pjax.datasets.loaders.idx import read_idx
from p2pjax.datasets.loaders.npz import read_arrays
from p2pjax.datasets.loaders.splits import Split, check_split, join_splits
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError

NUM_CLASSES = 10


ARCHIVE = "mnist.npz"


WRITERS = "mnist_writer_ids.npz"


# split -> (images, labels); spelled train-images-idx3-ubyte or train-images.idx3-ubyte
IDX_NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def load(data_dir: str | Path) -> Examples:
    """Loads MNIST, training examples first, each split in its original order.

    Args:
        data_dir: a folder with the four idx files, gzipped or not, or with mnist.npz
            as Keras has it (or that file itself). With mnist_writer_ids.npz (w_train,
            w_test) beside them, users are the writers, else there is one user, 0.

    Returns:
        x uint8 [E, 28, 28], ink 255; test writers are numbered after training writers.

    Raises:
        InputError: nothing found, or a file cannot be used.
    """
    path = Path(data_dir)
    folder = path.parent if path.is_file() else path
    idx_files, missing = _find_idx_files(folder)
    if path.is_file() or (missing and (folder / ARCHIVE).exists()):
        splits = _read_keras(path if path.is_file() else folder / ARCHIVE)
    elif not missing:
        splits = {
            split: _read_split(idx_files[images], idx_files[labels])
            for split, (images, labels) in IDX_NAMES.items()
        }
    else:
        raise not_found(folder, (f"{', '.join(missing)} (or .gz)", ARCHIVE), "MNIST")
    examples = join_splits(splits["train"], splits["test"], NUM_CLASSES)
    if (folder / WRITERS).exists():
        return examples._replace(user=_read_writers(folder / WRITERS, examples))
    return examples


def load_tfds(
    name: str = "mnist", data_dir: str | Path | None = None, download: bool = False
) -> Examples:
    """Loads it, or a dataset just like it, through TensorFlow Datasets.

    See `images_tfds.load_tfds`, which takes images of any size.
    """
    return images_tfds.load_tfds(name, data_dir, download, (28, 28, 1))


def _find_idx_files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The idx files by published name, and the names of which there is no file."""
    found, missing = {}, []
    for name in (name for names in IDX_NAMES.values() for name in names):
        spellings = (name, name.replace("-idx", ".idx"))
        candidates = [folder / f"{s}{end}" for s in spellings for end in ("", ".gz")]
        there = [file for file in candidates if file.is_file()]
        if there:
            found[name] = there[0]
        else:
            missing.append(name)
    return found, missing


def _read_split(images: Path, labels: Path) -> Split:
    x, y = read_idx(images, ndim=3), read_idx(labels, ndim=1)
    names = (images.name, labels.name)
    return check_split(x, y, str(images.parent), names, NUM_CLASSES)


def _read_keras(path: Path) -> dict[str, Split]:
    arrays = read_arrays(path, ("x_train", "y_train", "x_test", "y_test"))
    return {
        split: check_split(
            arrays[f"x_{split}"],
            arrays[f"y_{split}"],
            str(path),
            (f"x_{split}", f"y_{split}"),
            NUM_CLASSES,
        )
        for split in ("train", "test")
    }


def _read_writers(path: Path, examples: Examples) -> np.ndarray:
    """Writer ids [E]; the two splits' ids never meet."""
    arrays = read_arrays(path, ("w_train", "w_test"))
    w_train, w_test = (
        as_users(arrays[name], str(path), name) for name in ("w_train", "w_test")
    )
    num_test = np.count_nonzero(np.asarray(examples.is_test))
    needed = (len(examples.y) - num_test, num_test)
    if (len(w_train), len(w_test)) != needed:
        raise InputError(
            f"{path}: w_train and w_test must have one id per image, {needed[0]} and "
            f"{needed[1]}, found {len(w_train)} and {len(w_test)}: remove the file or "
            "write it for these images"
        )
    after_train = w_test.astype(np.int64) + w_train.max() + 1
    return as_users(np.concatenate((w_train, after_train)), str(path), "w_test")
