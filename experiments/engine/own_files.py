"""Files that a run writes: opened without following links, complete before they count.

A run folder may come from someone else: a link in it must not lead a run to write or
cut files elsewhere.
"""

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from p2pjax import ordinary_files

# Of file systems that know no second name of a file, such as mounted clouds.
_WITHOUT_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")


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
    """Writes a file that must not be there: it is either complete or not there."""
    with _written(path, text) as temporary:
        try:
            os.link(temporary, path)  # which takes the place of nothing
        except OSError as error:
            if error.errno not in _WITHOUT_LINKS:
                raise
            if os.path.lexists(path):
                taken = os.strerror(errno.EEXIST)
                raise FileExistsError(errno.EEXIST, taken, str(path)) from error
            temporary.rename(path)


def write_whole(path: Path, text: str) -> None:
    """Writes or replaces a file: it is either complete or as before."""
    with _written(path, text) as temporary:
        temporary.replace(path)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is what a killed process may leave."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_temporaries(folder: Path) -> None:
    """Removes what killed processes have left; no other must be writing."""
    for path in folder.iterdir():
        if is_temporary(path.name):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _written(path: Path, text: str) -> Iterator[Path]:
    """A complete file of another name, for as long as it has not got its own."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with os.fdopen(open_file(temporary, flags), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Puts the names of a folder's files on the disk, where the system can."""
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot
            os.fsync(found)
    finally:
        os.close(found)
