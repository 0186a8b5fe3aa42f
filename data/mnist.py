"""MNIST: handwritten digits, from the published files or from TensorFlow Datasets."""

from pathlib import Path

import numpy as np

from data.arrays import as_images, as_labels, as_users, check_lengths
from data.files import not_found
from data.idx import read_idx
from data.npz import read_arrays
from p2pjax.data import Examples
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
    idx_files = _find_idx_files(folder)
    missing = [name for name, file in idx_files.items() if file is None]
    if path.is_file() or (missing and (folder / ARCHIVE).exists()):
        splits = _read_keras(path if path.is_file() else folder / ARCHIVE)
    elif not missing:
        splits = {
            split: _read_split(idx_files[images], idx_files[labels])
            for split, (images, labels) in IDX_NAMES.items()
        }
    else:
        raise not_found(folder, (f"{', '.join(missing)} (or .gz)", ARCHIVE), "MNIST")
    (x_train, y_train), (x_test, y_test) = splits["train"], splits["test"]
    user = _read_writers(folder / WRITERS, len(y_train), len(y_test))
    return _join(x_train, y_train, x_test, y_test, NUM_CLASSES)._replace(user=user)


def load_tfds(
    name: str = "mnist", data_dir: str | Path | None = None, download: bool = False
) -> Examples:
    """Loads MNIST, or a dataset just like it, through TensorFlow Datasets.

    Reading needs no TensorFlow; preparing (`download`) does, once, on some machine.
    TensorFlow Datasets shuffled the examples when it prepared them.

    Args:
        name: a dataset with splits train and test of image [28, 28, 1] and label.
        data_dir: where datasets are prepared; ~/tensorflow_datasets unless given.
        download: whether to download and prepare it where it is not on disk.

    Returns:
        x uint8 [E, 28, 28], training examples first; all belong to user 0.

    Raises:
        InputError: not installed, not prepared, or another kind of dataset.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise InputError(
            f"load_tfds({name!r}) needs tensorflow-datasets, which is not installed "
            f"({error}): pip install 'p2pjax[tfds]'"
        ) from error
    source = f"TensorFlow Datasets {name!r}"
    try:
        builder = tfds.builder(name, data_dir=None if data_dir is None else data_dir)
    except ValueError as error:  # DatasetNotFoundError is one
        raise InputError(
            f"{source}: a dataset of that name is needed, found none: check the name"
        ) from error
    if not builder.is_prepared():
        if not download:
            raise InputError(
                f"{source} must be prepared in {builder.data_dir} but is not there: "
                "pass download=True to get it, or load MNIST's own files with load()"
            )
        _prepare(builder, source)
    x_train, y_train = _read_source(builder, "train", source)
    x_test, y_test = _read_source(builder, "test", source)
    num_classes = builder.info.features["label"].num_classes
    return _join(x_train, y_train, x_test, y_test, num_classes)
