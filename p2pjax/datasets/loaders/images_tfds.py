"""Labelled images of any data set of TensorFlow Datasets, without TensorFlow."""

from pathlib import Path
from typing import Any

import numpy as np

from p2pjax.datasets.loaders.packed import check_folder
from p2pjax.datasets.loaders.splits import Split, check_split, join_splits
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError


def load_tfds(
    name: str = "mnist",
    data_dir: str | Path | None = None,
    download: bool = False,
    image_shape: tuple[int, int, int] | None = None,
) -> Examples:
    """Loads any data set of images and labels through TensorFlow Datasets.

    Reading needs no TensorFlow; preparing (`download`) does, once, on some machine.
    TensorFlow Datasets shuffled the examples when it prepared them.

    Args:
        name: a dataset, such as "mnist", "cifar100" or "emnist/letters", whose
            examples have image, all of one size, and label, a class; what else they
            have is not read.
        data_dir: where datasets are prepared; ~/tensorflow_datasets unless given.
        download: whether to download and prepare it where it is not on disk.
        image_shape: height, width and channels that every image must have; None takes
            those that there are.

    Returns:
        x uint8 [E, height, width, channels], a single channel left out, training
        examples first; all belong to user 0. Test examples are those of the split test
        or, where there is none, validation; `is_test` is not set without both.

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
    if data_dir is not None:
        check_folder(Path(data_dir) / name.partition(":")[0], source)
    builder = _find_builder(tfds, name, data_dir, source)
    if not builder.is_prepared():
        if not download:
            raise InputError(
                f"{source} must be prepared in {builder.data_dir} but is not there: "
                "pass download=True (--download of experiments) to get it, or read its "
                "own files with load()"
            )
        _prepare(builder, source)
    found, num_classes = _check_features(builder, image_shape, source)
    # Mocked data sets do not tell their splits, and have any that is asked for.
    splits = list(builder.info.splits) or ["train", "test"]
    if "train" not in splits:
        raise InputError(
            f"{source}: a split train is needed, found {', '.join(splits) or 'none'}: "
            "choose another dataset"
        )
    train = _read_prepared(builder, "train", found, num_classes, source)
    for held_out in ("test", "validation"):
        if held_out in splits:
            test = _read_prepared(builder, held_out, found, num_classes, source)
            return join_splits(train, test, num_classes)
    x, y = train
    return Examples(x, y, np.zeros_like(y), num_classes)


def _check_features(
    builder: Any, image_shape: tuple[int, int, int] | None, source: str
) -> tuple[tuple[int, int, int], int]:
    """The shape of all images, and the number of classes."""
    features = dict(builder.info.features.items())
    image, label = features.get("image"), features.get("label")
    shape: Any = getattr(image, "shape", None) or ()
    num_classes = getattr(label, "num_classes", None)
    wanted = "" if image_shape is None else f" {list(image_shape)}"
    is_bytes = getattr(image, "np_dtype", None) == np.uint8
    fits = image_shape is None or shape == image_shape
    if len(shape) != 3 or not is_bytes or not fits or num_classes is None:
        all_found = [f"{key} {list(f.shape or ())}" for key, f in features.items()]
        raise InputError(
            f"{source}: image{wanted} and label (a class) are needed, "
            f"found {', '.join(all_found)}: choose another dataset"
        )
    if None in shape:
        raise InputError(
            f"{source}: images of one size are needed, found sizes that differ, "
            f"{list(shape)}: choose another dataset, or resize the images and save "
            "them as npz"
        )
    return shape, num_classes


def _find_builder(
    tfds: Any, name: str, data_dir: str | Path | None, source: str
) -> Any:
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise InputError(
            f"{source}: a dataset of that name is needed, found none: check the name"
        ) from error
    except Exception as error:  # its files on disk are damaged, in any way
        raise InputError(
            f"{source} must be readable in {data_dir or 'its folder'} but is "
            f"not ({_reason(error)}): delete its folder and prepare it again"
        ) from error


def _prepare(builder: Any, source: str) -> None:
    try:
        builder.download_and_prepare(file_format="array_record")
    except Exception as error:  # network, disk, checksums, TensorFlow missing ...
        raise InputError(
            f"{source} must be downloaded and prepared in {builder.data_dir} but that "
            f"failed ({_reason(error)}): preparing needs a network and TensorFlow "
            "(pip install tensorflow), or use load() instead"
        ) from error


def _read_prepared(
    builder: Any,
    split: str,
    image_shape: tuple[int, int, int],
    num_classes: int,
    source: str,
) -> Split:
    try:
        examples = builder.as_data_source(split=split)
        x = np.empty((len(examples), *image_shape), np.uint8)
        y = np.empty(len(examples), np.int64)
        for number, example in enumerate(examples):
            x[number], y[number] = example["image"], example["label"]
    except (
        Exception
    ) as error:  # cut off, tfrecord instead of array_record, no split ...
        raise InputError(
            f"{source}: split {split} must be readable as array_record in "
            f"{builder.data_dir} but is not ({_reason(error)}): "
            "delete that folder and prepare it again with download=True"
        ) from error
    shape: tuple[int, ...] = image_shape
    if image_shape[2] == 1:
        x, shape = x[..., 0], image_shape[:2]
    names = ("image", "label")
    return check_split(x, y, f"{source} {split}", names, num_classes, shape)


def _reason(error: BaseException) -> str:
    """The error in one short line; those of TensorFlow Datasets can fill pages."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"
