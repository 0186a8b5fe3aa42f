"""Reads the HDF5 files that TensorFlow Federated offers, writer by writer."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from p2pjax.datasets.loaders.arrays import as_labels, check_lengths, ink_from_paper
from p2pjax.datasets.loaders.hdf5 import read_clients
from p2pjax.datasets.loaders.leaf import File
from p2pjax.datasets.loaders.users import Part
from p2pjax.types import InputError

CONTENT = "HDF5 with examples/<client>/pixels and label"


def read_writers(file: File, num_classes: int) -> Iterator[Part]:
    """Yields x uint8 [n, 28, 28] and y int32 [n] of each writer of one file.

    Args:
        file: one file with groups examples/<client>, each with pixels [n, 28, 28],
            paper is 1.0 and ink 0.0, and label [n] (or [n, 1]).
        num_classes: labels must lie below.

    Raises:
        InputError: h5py is not installed, or the file cannot be used.
    """
    for name, client, source in read_clients(file.path, CONTENT, "fed_emnist_train.h5"):
        x, y = _read_client(client, source)
        pixels = ink_from_paper(x, source, "pixels")
        labels = as_labels(y, num_classes, source, name="label")
        if len(pixels) or len(labels):
            check_lengths(source, pixels=pixels, label=labels)
            yield Part(name, pixels, labels, str(file.path), file.is_test)


def _read_client(client: Any, source: str) -> tuple[np.ndarray, np.ndarray]:
    """The raw pixels [n, 28, 28] and label [n] of one client's group."""
    names = list(client) if hasattr(client, "keys") else []
    if not {"pixels", "label"} <= set(names):
        raise InputError(
            f"{source}: pixels and label are needed, found "
            f"{', '.join(names) or 'neither'}: get the file again"
        )
    x, y = (client[name] for name in ("pixels", "label"))
    if not (getattr(x, "shape", None) and getattr(y, "shape", None)):
        raise InputError(
            f"{source}: pixels and label must be arrays, found a group or a single "
            "value: get the file again"
        )
    labels = np.asarray(y[()])
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    return np.asarray(x[()]), labels
