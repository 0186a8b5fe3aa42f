"""Files packed by gzip or lzma, never unpacked further than an honest one would be.

A few kilobytes can unpack to gigabytes. What unpacks to no more than `ALWAYS_ALLOWED`
is read; beyond that a file may have `MAX_RATIO` times its own size, several times what
the public data sets of this room have.
"""

import contextlib
import gzip
import lzma
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from p2pjax.datasets.loaders.files import read_start, unreadable
from p2pjax.types import InputError

ALWAYS_ALLOWED = 2**30  # bytes


MAX_RATIO = 200


GZIP_START = b"\x1f\x8b"


LZMA_STARTS = (b"\xfd7zXZ\x00", b"\x5d\x00\x00")  # .xz and the older .lzma


_CHUNK = 2**20  # bytes


_LZMA_MEMORY = 2**28  # bytes; xz -9 needs 65 MiB to unpack


_BAD = (OSError, EOFError, zlib.error, lzma.LZMAError, MemoryError)


def max_size(path: Path) -> int:
    """How many bytes a packed file may unpack to."""
    return max(ALWAYS_ALLOWED, MAX_RATIO * path.stat().st_size)


def check_size(path: Path, size: int, content: str) -> None:
    """Refuses a packed file that unpacks to `size` bytes or more, if that is too much.

    Args:
        path: the packed file.
        size: bytes that it says it holds, or that came out of it so far.
        content: what it should hold, for the message.
    """
    if size > max_size(path):
        raise InputError(
            f"{path} must be {content} but unpacks to more than {max_size(path)} "
            f"bytes from {path.stat().st_size}, as no such file does: get it again, or "
            "unpack it yourself if you trust it"
        )


def read_unpacked(path: Path, content: str) -> bytearray:
    """The content of a file, packed (known by its first bytes) or not.

    Args:
        path: the file.
        content: what it should hold, for the message.

    Raises:
        InputError: it cannot be read, or unpacks to too much.
    """
    whole = bytearray()
    for chunk in _chunks(path, content):
        whole += chunk
    return whole


@contextlib.contextmanager
def unpacked_file(path: Path, content: str) -> Iterator[Path]:
    """The file itself or, while the context lasts, an unpacked copy of it.

    For readers that need a file. The copy is in the system's folder for temporary
    files (`TMPDIR`).
    """
    if not _kind(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="p2pjax-") as folder:
        copy = Path(folder, "unpacked")
        with copy.open("wb") as file:
            for chunk in _chunks(path, content):
                try:
                    file.write(chunk)
                except OSError as error:
                    raise InputError(
                        f"{path} must be unpacked in {tempfile.gettempdir()} but that "
                        f"failed ({error}): unpack it yourself and name the result"
                    ) from error
        yield copy


def _kind(path: Path) -> str:
    start = read_start(path, 6)
    if start[:2] == GZIP_START:
        return "gzip"
    return "lzma" if start.startswith(LZMA_STARTS) else ""


def _chunks(path: Path, content: str) -> Iterator[bytes]:
    kind, size = _kind(path), 0
    try:
        with path.open("rb") as packed:
            chunks = _unpack_lzma(packed) if kind == "lzma" else _read(packed, kind)
            for chunk in chunks:
                size += len(chunk)
                if kind:
                    check_size(path, size, content)
                yield chunk
    except _BAD as error:
        raise unreadable(path, content, error) from error


def _read(packed: BinaryIO, kind: str) -> Iterator[bytes]:
    file = gzip.GzipFile(fileobj=packed) if kind else packed
    while chunk := file.read(_CHUNK):
        yield chunk


def _unpack_lzma(packed: BinaryIO) -> Iterator[bytes]:
    """Streams one after the other, in limited memory, which `lzma.open` has not."""
    rest = b""
    while rest or (rest := packed.read(_CHUNK)):
        stream = lzma.LZMADecompressor(memlimit=_LZMA_MEMORY)
        chunk = stream.decompress(rest, _CHUNK)
        yield chunk
        while not stream.eof:
            more = packed.read(_CHUNK) if stream.needs_input else b""
            if stream.needs_input and not more:
                raise EOFError("the compressed data ends too early")
            yield stream.decompress(more, _CHUNK)
        rest = stream.unused_data
