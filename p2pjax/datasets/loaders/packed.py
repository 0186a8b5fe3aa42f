"""Files, packed by gzip or lzma or not, never read further than an honest one goes.

A few kilobytes can unpack to gigabytes, and so can a file of holes, or one that says
how large its arrays are. What has no more than `ALWAYS_ALLOWED` bytes is read; beyond
that a file may have `MAX_RATIO` times what is stored of it, several times what the
public data sets of this room have. Nothing is read that memory cannot hold.
"""

import contextlib
import gzip
import lzma
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from p2pjax.datasets.loaders.files import open_file, read_start, reading
from p2pjax.host_memory import free_bytes
from p2pjax.types import InputError

ALWAYS_ALLOWED = 2**30  # bytes


MAX_RATIO = 200


GZIP_START = b"\x1f\x8b"


LZMA_STARTS = (b"\xfd7zXZ\x00", b"\x5d\x00\x00")  # .xz and the older .lzma


_CHUNK = 2**20  # bytes


_LZMA_MEMORY = 2**28  # bytes; xz -9 needs 65 MiB to unpack


_BAD = (zlib.error, lzma.LZMAError)


_BLOCK = 512  # bytes, in which systems say how much of a file is stored


def max_size(path: Path) -> int:
    """How many bytes a file may unpack to."""
    return max(ALWAYS_ALLOWED, MAX_RATIO * stored_size(path))


def stored_size(path: Path) -> int:
    """Bytes of a file without its holes, where the system tells."""
    found = path.stat()
    return min(found.st_size, _BLOCK * getattr(found, "st_blocks", 0) or found.st_size)


def check_size(path: Path, size: int, content: str) -> None:
    """Refuses a file that unpacks to `size` bytes or more, if that is too much.

    Args:
        path: the packed file.
        size: bytes that it says it holds, or that came out of it so far.
        content: what it should hold, for the message.
    """
    if size > max_size(path):
        raise InputError(
            f"{path} must be {content} but unpacks to more than {max_size(path)} "
            f"bytes from {stored_size(path)}, as no such file does: get it again, or "
            "unpack it yourself if you trust it"
        )


def check_holes(path: Path, content: str) -> None:
    """Refuses a file that is far larger than what is stored of it."""
    check_size(path, path.stat().st_size, content)


def check_memory(path: Path, size: int, content: str) -> None:
    """Refuses to read so many bytes of a file, or out of it, as memory cannot hold."""
    left = free_bytes()
    if left is not None and size > left:
        raise InputError(
            f"{path} must be {content} but takes {size} bytes of memory, of which "
            f"{left} are left: read a smaller part of the data, or use a larger machine"
        )


def read_unpacked(path: Path, content: str) -> bytearray:
    """The content of a file, packed (known by its first bytes) or not.

    Args:
        path: the file.
        content: what it should hold, for the message.

    Raises:
        InputError: it cannot be read, or unpacks to too much.
    """
    check_memory(path, path.stat().st_size, content)
    whole = bytearray()
    with reading(path, content):
        for chunk in _chunks(path, content):
            whole += chunk
            check_memory(path, len(whole), content)  # to make something of it
    return whole


def check_folder(folder: Path, content: str) -> None:
    """Refuses a folder with pipes, devices or files of holes, for others to read.

    Args:
        folder: with all that is below; there may be none.
        content: what it should hold, for the message.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            check_holes(path, content)
        elif not path.is_dir():
            raise InputError(
                f"{path} must be a file of {content} but is neither a file nor a "
                "folder: remove it"
            )


@contextlib.contextmanager
def unpacked_file(path: Path, content: str) -> Iterator[Path]:
    """The file itself or, while the context lasts, an unpacked copy of it.

    For readers that need a file. The copy is in the system's folder for temporary
    files (`TMPDIR`).
    """
    if not _kind(path):
        check_holes(path, content)
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
    check_holes(path, content)
    with reading(path, content, *_BAD), open_file(path, content) as packed:
        chunks = _unpack_lzma(packed) if kind == "lzma" else _read(packed, kind)
        for chunk in chunks:
            size += len(chunk)
            check_size(path, size, content)
            yield chunk


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
