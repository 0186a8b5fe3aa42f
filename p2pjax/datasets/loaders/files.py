"""Finding and opening the files of a dataset, with errors that say what to change."""

import contextlib
import os
import reprlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from p2pjax import ordinary_files
from p2pjax.types import InputError

_MOST_NAMES = 8


def require_file(path: Path, content: str) -> Path:
    """Checks that an ordinary file is there and holds something.

    Args:
        path: the file, or a link to it.
        content: what it should hold, for the message, e.g. "an npz archive".

    Returns:
        The same path.

    Raises:
        InputError: nothing there, a folder, a pipe or a device, an empty file or no
            permission.
    """
    if not path.exists():
        raise InputError(f"{path} must be {content} but is missing: check the path")
    if not path.is_file():
        kind = ordinary_files.kind_of(path.stat().st_mode)
        raise InputError(f"{path} must be {content} but is {kind}: name the file")
    if not read_start(path, 1):
        raise InputError(f"{path} must be {content} but is empty: get it again")
    return path


def open_file(path: Path, content: str) -> BinaryIO:
    """Opens an ordinary file to read its bytes."""
    with reading(path, content):
        return os.fdopen(ordinary_files.open_file(path), "rb")


def read_start(path: Path, size: int) -> bytes:
    """Reads the first bytes, which tell most formats apart."""
    content = "a file that can be read"
    with reading(path, content), open_file(path, content) as file:
        return file.read(size)


@contextlib.contextmanager
def reading(path: Path, content: str, *errors: type[Exception]) -> Iterator[None]:
    """Makes one sentence about the file of what its reader raises meanwhile.

    Args:
        path: the file.
        content: what it should hold, for the message.
        errors: what the reader raises for a file that it cannot read, beside what all
            of them may raise.

    Raises:
        InputError: in place of these errors.
    """
    bad: tuple[type[Exception], ...] = (OSError, EOFError, RecursionError, *errors)
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(
            f"{path} must be {content} but takes more memory than is left: read a "
            "smaller part of the data, or use a larger machine"
        ) from error
    except bad as error:
        raise unreadable(path, content, error) from error


def unreadable(path: Path, content: str, error: BaseException) -> InputError:
    """The error for a file that a reader gave up on: cut off, corrupt, forbidden."""
    reason = shown(" ".join(str(error).split()), 300) or type(error).__name__
    return InputError(
        f"{path} must be {content} but cannot be read, it may be cut off "
        f"({reason}): get it again"
    )


def shown(value: object, size: int = 40) -> str:
    """The beginning of what was found in a file, on one line."""
    text = value if isinstance(value, str) else reprlib.repr(value)
    start = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:size])
    return f"{start}..." if len(text) > size else start


def listed(names: Iterable[object]) -> str:
    """The first of some names found in a file."""
    every = list(names)
    more = ", ..." if len(every) > _MOST_NAMES else ""
    return ", ".join(map(shown, every[:_MOST_NAMES])) + more


def not_found(folder: Path, wanted: Iterable[str], dataset: str) -> InputError:
    """The error for a folder (or missing path) without the files of a dataset."""
    if folder.is_dir():
        names = sorted(entry.name for entry in folder.iterdir())
        found = f"holds {listed(names)}" if names else "is an empty folder"
    elif folder.exists():
        found = f"is {ordinary_files.kind_of(folder.stat().st_mode)}"
    else:
        found = "does not exist"
    return InputError(
        f"{dataset} needs {' or '.join(wanted)} in {folder}, which {found}: "
        "see data/README.md for how to get the files, or name another folder"
    )


def find_archive(path: Path, pattern: str, dataset: str) -> Path:
    """The file itself, or the only one in a folder whose name fits the pattern."""
    if path.is_file():
        return path
    found = sorted(path.glob(pattern)) if path.is_dir() else []
    if not found:
        raise not_found(path, [f"one {pattern}"], dataset)
    if len(found) > 1:
        raise InputError(
            f"{dataset} needs one {pattern} in {path}, found "
            f"{', '.join(file.name for file in found)}: name the file"
        )
    return found[0]
