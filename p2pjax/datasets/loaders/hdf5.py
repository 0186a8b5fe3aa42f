"""Clients of the HDF5 files that TensorFlow Federated offers.

Nothing in them is trusted: nothing outside of the file is read, and no more than a file
of its size can hold.
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil, prod
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from p2pjax.datasets.loaders import packed
from p2pjax.datasets.loaders.files import (
    listed,
    open_file,
    reading,
    require_file,
    shown,
)
from p2pjax.datasets.loaders.hdf5_strings import GZIP, SHUFFLE, Strings
from p2pjax.types import InputError

Values = TypeVar("Values")


_CHECKSUM, _LZF = 3, 32000  # more filters by their numbers


_STEP = 2**24  # bytes after which memory is looked at again, which takes its time


_UNPACKED = 1032  # bytes, at most, that a byte packed by gzip stands for


def read_numbers(
    path: Path, fields: Sequence[str], example: str
) -> Iterator[tuple[str, list[np.ndarray], str]]:
    """Yields (name, arrays, where they are, for messages) of each client of one file.

    Args:
        path: one file with groups examples/<client>.
        fields: names of the arrays that each group must have.
        example: name of a file of this format, for the message.

    Raises:
        InputError: h5py is not installed, or the file cannot be used.
    """
    return _read_clients(path, fields, example, _numbers)


def read_strings(
    path: Path, field: str, example: str
) -> Iterator[tuple[str, list[list[bytes]], str]]:
    """As `read_numbers`, of one array of strings [n], yielded as a list."""
    return _read_clients(path, [field], example, _strings)


class _Source:
    """A file, how much was read of it, and how much may be."""

    def __init__(self, path: Path, content: str, file: BinaryIO):
        self._path, self._content = path, content
        self._total, self._most = 0, packed.max_size(path)
        self.strings = Strings(file, self.add)

    def add(self, size: int, passing: int = 0) -> None:
        """Refuses so many bytes, together with those before, if these are too many.

        Args:
            size: that will be kept.
            passing: that are needed meanwhile.
        """
        before, self._total = self._total, self._total + size
        if self._total + passing > self._most:
            packed.check_size(self._path, self._total + passing, self._content)
        if (self._total + passing) // _STEP > before // _STEP:
            packed.check_memory(self._path, size + passing, self._content)


def _read_clients(
    path: Path,
    fields: Sequence[str],
    example: str,
    read: Callable[[Any, str, _Source], Values],
) -> Iterator[tuple[str, list[Values], str]]:
    try:
        import h5py
    except ImportError as error:
        raise InputError(
            f"{path} is HDF5, which needs h5py, and h5py is not installed: "
            "pip install 'p2pjax[hdf5]'"
        ) from error
    content = f"HDF5 with examples/<client>/{' and '.join(fields)}"
    packed.check_holes(require_file(path, content), content)
    with (
        reading(path, content, Exception),  # a damaged file can raise anything
        open_file(path, content) as plain,
        h5py.File(path, "r") as file,
    ):
        opened = _Source(path, content, plain)
        clients = _member(file, "examples", str(path)) if "examples" in file else None
        if not isinstance(clients, h5py.Group):
            raise InputError(
                f"{path} must be {content} but has {listed(file) or 'nothing'} "
                f"instead of the group examples: name {example}"
            )
        for name in clients:
            source = f"{path}, client {shown(name)}"
            client = _member(clients, name, source)
            found = list(client) if isinstance(client, h5py.Group) else []
            if not set(fields) <= set(found):
                raise InputError(
                    f"{source}: {' and '.join(fields)} needed, found "
                    f"{listed(found) or 'nothing'}: get the file again"
                )
            values = []
            for field in fields:
                dataset = _member(client, field, source)
                values.append(read(dataset, f"{source}: {field}", opened))
            yield name, values, source


def _member(group: Any, name: str, source: str) -> Any:
    """A group or dataset that is in the file itself."""
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise InputError(
            f"{source}: {shown(name)} must be in the file itself, found a link: write "
            "a copy of the file without links"
        )
    return group[name]


def _numbers(dataset: Any, source: str, opened: _Source) -> np.ndarray:
    if not getattr(dataset, "shape", None) or dataset.dtype.kind not in "uif":
        raise InputError(
            f"{source} must be an array of numbers, found {_described(dataset)}: get "
            "the file again"
        )
    _check_storage(dataset, source, opened)
    return np.asarray(dataset[()])


def _strings(dataset: Any, source: str, opened: _Source) -> list[bytes]:
    import h5py

    is_array = len(getattr(dataset, "shape", None) or ()) == 1
    kind = h5py.check_string_dtype(dataset.dtype) if is_array else None
    if kind is None:
        raise InputError(
            f"{source} must be strings [n], found {_described(dataset)}: get the file "
            "again"
        )
    _check_storage(dataset, source, opened)
    if kind.length is None:  # of any length
        return opened.strings.read(dataset)
    return dataset[()].tolist()


def _check_storage(dataset: Any, source: str, opened: _Source) -> None:
    """Refuses what is not in the file, and what takes too much to be unpacked."""
    if dataset.external or dataset.is_virtual:
        raise InputError(
            f"{source} must be in the file itself, found in another: write a copy of "
            "the file that holds everything"
        )
    item = dataset.id.get_type().get_size()
    stored = dataset.id.get_storage_size() // item
    needed, passing = dataset.size, 0
    if dataset.chunks is not None:
        passing = prod(dataset.chunks) * item + _unpacked(dataset, source)
        sides = zip(dataset.shape, dataset.chunks, strict=True)
        needed = prod(ceil(length / side) for length, side in sides)
        stored = dataset.id.get_num_chunks()
    opened.add(dataset.size * item, passing)
    if stored < needed:
        raise InputError(
            f"{source} must be {list(dataset.shape)} numbers or strings, found places "
            "that were never written: get the file again"
        )


def _unpacked(dataset: Any, source: str) -> int:
    """Bytes, at most, that the largest packed chunk unpacks to."""
    layout = dataset.id.get_create_plist()
    filters = [layout.get_filter(n)[0] for n in range(layout.get_nfilters())]
    if set(filters) - {GZIP, SHUFFLE, _CHECKSUM, _LZF} or filters.count(GZIP) > 1:
        raise InputError(
            f"{source} must be packed by gzip, by lzf or not at all, found the filters "
            f"{listed(filters)} of HDF5: write it anew without them"
        )
    sizes = [0]
    if {GZIP, _LZF} & set(filters):
        dataset.id.chunk_iter(lambda chunk: sizes.append(chunk.size))
    return max(sizes) * _UNPACKED


def _described(dataset: Any) -> str:
    if not hasattr(dataset, "dtype"):
        return "a group"
    return f"{shown(str(dataset.dtype))} {list(getattr(dataset, 'shape', None) or ())}"
