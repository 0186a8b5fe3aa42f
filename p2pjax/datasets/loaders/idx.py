"""Reads idx files, the format that MNIST is published in, plain or gzipped."""

import math
import struct
from pathlib import Path

import numpy as np

from p2pjax.datasets.loaders.files import require_file
from p2pjax.datasets.loaders.packed import read_unpacked
from p2pjax.types import InputError

UNSIGNED_BYTES = 0x08  # the type code that MNIST uses


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """Reads one array of unsigned bytes.

    The format: two zero bytes, a type code, the number of axes, each axis' length as a
    big-endian 32-bit integer, then the values, last axis fastest.

    Args:
        path: the file; gzip is recognised by content, not by name.
        ndim: how many axes the array must have.

    Returns:
        uint8 of `ndim` axes.

    Raises:
        InputError: missing, empty, cut off, or another format.
    """
    content = f"an idx{ndim} file of unsigned bytes"
    raw = read_unpacked(require_file(path, content), content)
    magic = bytes((0, 0, UNSIGNED_BYTES, ndim))
    if raw[:4] != magic:
        raise InputError(
            f"{path} must be {content}, which starts with {magic.hex()}, but starts "
            f"with {raw[:4].hex() or 'nothing'}: check the file's name"
        )
    header_size = 4 + 4 * ndim
    lengths = raw[4:header_size]
    if len(lengths) < 4 * ndim:
        raise InputError(
            f"{path} must be {content} with {header_size} bytes of header but has only "
            f"{len(raw)} bytes, it is cut off: get it again"
        )
    shape = struct.unpack(f">{ndim}I", lengths)
    found, needed = len(raw) - header_size, math.prod(shape)
    if found != needed:
        trouble = "cut off" if found < needed else "too long"
        raise InputError(
            f"{path} must hold {needed} bytes for shape {list(shape)} but holds "
            f"{found}, it is {trouble}: get it again"
        )
    return np.frombuffer(raw, np.uint8, offset=header_size).reshape(shape)
