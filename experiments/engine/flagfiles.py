"""Flagfiles, looked at before they are read: ordinary texts, of no great size."""

import os
from collections.abc import Sequence
from pathlib import Path

from p2pjax.datasets.loaders.files import shown
from p2pjax.ordinary_files import open_file
from p2pjax.types import InputError

_MOST_BYTES = 2**20


_LONGEST_NAME = 100  # characters; absl would look for similar ones, without end


_FLAGS = ("--flagfile", "-flagfile")


def check(arguments: Sequence[str], around: tuple[Path, ...] = ()) -> None:
    """Refuses what absl could not read: flagfiles, also those named in flagfiles.

    Args:
      arguments: of a command line, or the lines of a flagfile.
      around: the flagfiles that these lines are in.
    """
    for number, argument in enumerate(arguments):
        flag, equals, name = argument.partition("=")
        if flag.startswith("-") and len(flag) > _LONGEST_NAME:
            raise InputError(f"Need the name of a flag, got '{shown(flag)}'.")
        if flag in _FLAGS and not equals:  # the name comes next
            name = "".join(arguments[number + 1 : number + 2])
        if flag in _FLAGS and name.strip():
            _check_file(Path(name.strip()).expanduser(), around)


def _check_file(path: Path, around: tuple[Path, ...]) -> None:
    if path in around:
        raise InputError(f"Need flagfiles that do not name themselves, got {path}.")
    try:
        with os.fdopen(open_file(path), "rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        lines = raw.decode().splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(
            f"Need a flagfile that can be read, got {path} ({reason}): name a text "
            "file with a flag on each line."
        ) from error
    if len(raw) > _MOST_BYTES:
        raise InputError(
            f"Need a flagfile of at most {_MOST_BYTES} bytes, got {path}, which has "
            "more: name a text file with a flag on each line."
        )
    check(lines, (*around, path))
