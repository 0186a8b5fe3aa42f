"""Strings of any length in HDF5, which its library may read for ever if damaged.

A string takes 16 bytes of an array: its length, the address of a heap, and the number
of an object there. A heap is its size and then objects, each with its number and its
size (HDF5 file format specification 3.0, section III.E). HDF5 2.0 never comes past an
object that says to have no size at all.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

GZIP, SHUFFLE = 1, 2  # filters by their numbers; strings can have no others


_PLACE = struct.Struct("<IQI")  # length, address of the heap, number of the object


_HEAP = struct.Struct("<4sB3xQ")  # magic bytes, version, size of all


_OBJECT = struct.Struct("<H6xQ")  # number, size


_NUM_HEAPS = 64  # that are kept: strings of one array are in few of them


Heap = dict[int, bytes]  # objects by number


class Strings:
    """The strings of one file.

    Args:
        file: the file, opened for reading.
        add: told how many bytes are read next, to refuse them.
    """

    def __init__(self, file: BinaryIO, add: Callable[[int], None]):
        self._file, self._add = file, add
        self._heaps: dict[int, Heap] = {}

    def read(self, dataset: Any) -> list[bytes]:
        """All strings [n] of a dataset, which is not packed by lzf.

        Raises:
            ValueError: they are damaged.
        """
        layout = dataset.file.id.get_create_plist()
        if layout.get_sizes() != (8, 8) or layout.get_userblock():
            raise ValueError("its addresses are not of the usual kind")
        found = []
        for raw in self._places(dataset):
            self._add(int(np.frombuffer(raw, "<u4")[::4].sum(dtype=np.int64)))
            for length, address, number in _PLACE.iter_unpack(raw):
                value = self._heap(address).get(number, b"") if length else b""
                if len(value) < length:
                    raise ValueError("a string is longer than what is stored of it")
                found.append(value[:length].partition(b"\0")[0])
        return found

    def _places(self, dataset: Any) -> Iterator[bytes]:
        """16 bytes of each string, in one piece or chunk by chunk."""
        if dataset.chunks is None:
            yield self._bytes(dataset.id.get_offset(), len(dataset) * _PLACE.size)
            return
        layout = dataset.id.get_create_plist()
        filters = [layout.get_filter(n)[0] for n in range(layout.get_nfilters())]
        (side,) = dataset.chunks
        for start in range(0, len(dataset), side):
            skipped, raw = dataset.id.read_direct_chunk((start,))
            used = [f for n, f in enumerate(filters) if not skipped >> n & 1]
            raw = _unfiltered(raw, used, side * _PLACE.size)
            yield raw[: (len(dataset) - start) * _PLACE.size]

    def _heap(self, address: int) -> Heap:
        if address not in self._heaps:
            magic, version, size = _HEAP.unpack(self._bytes(address, _HEAP.size))
            if (magic, version) != (b"GCOL", 1):
                raise ValueError("a string is in no heap")
            self._add(size)
            if len(self._heaps) == _NUM_HEAPS:
                self._heaps.pop(next(iter(self._heaps)))  # the oldest
            self._heaps[address] = _objects(self._bytes(address, size))
        return self._heaps[address]

    def _bytes(self, start: int | None, size: int) -> bytes:
        if start is None:  # stored with what describes it, if at all
            if not size:
                return b""
            raise ValueError("its strings are stored in an unusual way")
        self._file.seek(start)
        raw = self._file.read(size)
        if len(raw) < size:
            raise ValueError("it ends before its strings do")
        return raw


def _objects(raw: bytes) -> Heap:
    found: Heap = {}
    at = _HEAP.size
    while at + _OBJECT.size <= len(raw):
        number, size = _OBJECT.unpack_from(raw, at)
        if number == 0:  # the rest is free
            break
        at += _OBJECT.size
        if size > len(raw) - at:
            raise ValueError("an object is larger than its heap")
        found[number] = raw[at : at + size]
        at += size + -size % 8
    return found


def _unfiltered(raw: bytes, filters: list[int], size: int) -> bytes:
    """A chunk of so many bytes as it was before the filters."""
    for number in reversed(filters):
        if number == GZIP:
            raw = zlib.decompressobj().decompress(raw, size + 1)
        elif number == SHUFFLE:
            columns = np.frombuffer(raw, np.uint8).reshape(_PLACE.size, -1)
            raw = columns.T.tobytes()
        else:
            raise ValueError("it is packed by something else than gzip")
    if len(raw) != size:
        raise ValueError("a chunk is not as large as it says")
    return raw
