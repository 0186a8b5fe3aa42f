"""Writes tiny files in MNIST's idx format, for tests."""

import gzip
import struct
from pathlib import Path

import numpy as np

NAMES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def tiny() -> dict[str, np.ndarray]:
    """Three training and two test images, all pixels of the data set distinct-ish."""
    pixels = (np.arange(5 * 784) % 251).astype(np.uint8).reshape(5, 28, 28)
    labels = np.array([3, 0, 9, 1, 7], np.uint8)
    return {
        "x_train": pixels[:3],
        "y_train": labels[:3],
        "x_test": pixels[3:],
        "y_test": labels[3:],
    }


def idx_bytes(array: np.ndarray) -> bytes:
    """The idx format as published: magic, lengths (big-endian), bytes."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def write(
    folder: Path,
    prefix: str = "",
    packed: bool = False,
    test: str = "t10k",
    **changes: np.ndarray,
) -> Path:
    """The four files of `tiny`, some arrays of which may be changed."""
    folder.mkdir(exist_ok=True)
    for key, array in {**tiny(), **changes}.items():
        name = prefix + NAMES[key].replace("t10k", test)
        raw = idx_bytes(array)
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(raw) if packed else raw)
    return folder
