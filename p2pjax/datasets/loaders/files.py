"""Finding and opening the files of a dataset, with errors that say what to change."""

from collections.abc import Iterable
from pathlib import Path

from p2pjax.types import InputError


def require_file(path: Path, content: str) -> Path:
    """Checks that a file is there and holds something.

    Args:
        path: the file.
        content: what it should hold, for the message, e.g. "an npz archive".

    Returns:
        The same path.

    Raises:
        InputError: nothing there, a folder, an empty file or no permission.
    """
    if not path.exists():
        raise InputError(f"{path} must be {content} but is missing: check the path")
    if not path.is_file():
        raise InputError(f"{path} must be {content} but is a folder: name the file")
    if not read_start(path, 1):
        raise InputError(f"{path} must be {content} but is empty: get it again")
    return path


def read_start(path: Path, size: int) -> bytes:
    """Reads the first bytes, which tell most formats apart."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise unreadable(path, "a file that can be read", error) from error


def unreadable(path: Path, content: str, error: BaseException) -> InputError:
    """The error for a file that a reader gave up on: cut off, corrupt, forbidden."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(
        f"{path} must be {content} but cannot be read, it may be cut off "
        f"({reason}): get it again"
    )


def not_found(folder: Path, wanted: Iterable[str], dataset: str) -> InputError:
    """The error for a folder (or missing path) without the files of a dataset."""
    if folder.is_dir():
        names = sorted(entry.name for entry in folder.iterdir())
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        found = f"holds {shown}" if names else "is an empty folder"
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
