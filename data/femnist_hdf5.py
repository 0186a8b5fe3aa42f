"""Reads the HDF5 files that TensorFlow Federated offers, writer by writer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from data.arrays import as_labels, check_lengths, ink_from_paper
from data.files import require_file, unreadable
from p2pjax.types import InputError

CONTENT = "HDF5 with examples/<client>/pixels and label"


def read_writers(
    path: Path, num_classes: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yields (name, x uint8 [n, 28, 28], y int32 [n]) of each writer of one file.

    Args:
        path: one file with groups examples/<client>, each with pixels [n, 28, 28],
            paper is 1.0 and ink 0.0, and label [n] (or [n, 1]).
        num_classes: labels must lie below.

    Raises:
        InputError: h5py is not installed, or the file cannot be used.
    """
    try:
        import h5py
    except ImportError as error:
        raise InputError(
            f"{path} is HDF5, which needs h5py, and h5py is not installed: "
            "pip install 'p2pjax[hdf5]'"
        ) from error
    require_file(path, CONTENT)
    try:
        with h5py.File(path, "r") as file:
            clients = file.get("examples")
            if not isinstance(clients, h5py.Group):
                raise InputError(
                    f"{path} must be {CONTENT} but has {', '.join(file) or 'nothing'} "
                    "instead of the group examples: name fed_emnist_train.h5"
                )
            for name in clients:
                source = f"{path}, client {name}"
                x, y = _read_client(clients[name], source)
                pixels = ink_from_paper(x, source, "pixels")
                labels = as_labels(y, num_classes, source, name="label")
                if len(pixels) or len(labels):
                    check_lengths(source, pixels=pixels, label=labels)
                    yield name, pixels, labels
    except InputError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise unreadable(path, CONTENT, error) from error


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
