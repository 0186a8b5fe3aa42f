"""A dataset published as a training and a test part of labelled images."""

import numpy as np

from p2pjax.datasets.loaders.arrays import as_images, as_labels, check_lengths
from p2pjax.datasets.stacking import Examples

Split = tuple[np.ndarray, np.ndarray]  # x uint8 [E, ...], y int32 [E]


def join_splits(train: Split, test: Split, num_classes: int) -> Examples:
    """Training examples first, all of user 0."""
    x, y = (np.concatenate(parts) for parts in zip(train, test, strict=True))
    is_test = np.arange(len(y)) >= len(train[1])
    return Examples(x, y, np.zeros_like(y), num_classes, is_test)


def check_split(
    x: np.ndarray,
    y: np.ndarray,
    source: str,
    names: tuple[str, str],
    num_classes: int,
    shape: tuple[int, ...] = (28, 28),
) -> Split:
    """Checks images and labels, called `names` in `source`, and returns them."""
    x = as_images(x, source, names[0], shape)
    y = as_labels(y, num_classes, source, names[1])
    check_lengths(source, **{names[0]: x, names[1]: y})
    return x, y
