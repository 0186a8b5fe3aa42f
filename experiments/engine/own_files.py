"""Files that a run writes: opened without following links, complete before they count.

A run folder may come from someone else: a link in it must not lead a run to write or
cut files elsewhere.
"""

import contextlib
import errno
import os
import secrets
from pathlib import Path

from p2pjax import ordinary_files


def open_file(path: Path, flags: int) -> int:
    """The descriptor of an ordinary file, which no link, pipe or device stands for.

    Args:
      path: of the file; links among its folders are followed.
      flags: of `os.open`.
    """
    try:
        return ordinary_files.open_file(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "Is a link", str(path)) from error
        raise


def append(path: Path, text: str) -> None:
    """Adds to a file, which is on the disk after that."""
    with os.fdopen(
        open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a"
    ) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def cut(path: Path, num_bytes: int) -> None:
    """Leaves the first bytes of a file; there may be no file for none."""
    try:
        found = open_file(path, os.O_WRONLY)
    except FileNotFoundError:
        if num_bytes == 0:
            return
        raise
    try:
        os.ftruncate(found, num_bytes)
        os.fsync(found)
    finally:
        os.close(found)


def write_new(path: Path, text: str) -> None:
    """Writes a file that must not be there; a failure leaves none."""
    found = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with os.fdopen(found, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """Writes or replaces a file: it is either complete or as before."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    write_new(temporary, text)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Puts the names of a folder's files on the disk, where the system can."""
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot
            os.fsync(found)
    finally:
        os.close(found)
