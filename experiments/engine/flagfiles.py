"""Flags in files: one flag per line, comments after #, other flagfiles inside.

Later flags override earlier ones, so that a study overrides its base, and a command
line its flagfile.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from p2pjax import ordinary_files
from p2pjax.datasets.loaders.files import shown
from p2pjax.types import InputError

_MOST_BYTES = 2**20
_LONGEST_NAME = 100  # characters; absl would look for similar ones, without end
_NAMES = ("--flagfile", "-flagfile")


def expanded(arguments: Sequence[str]) -> list[str]:
    """The arguments, with the lines of a flagfile in the place of `--flagfile=FILE`.

    Args:
      arguments: of a command line.

    Raises:
      InputError: a flagfile cannot be read, or contains itself.
    """
    return list(_expand(list(arguments), ()))


def _expand(arguments: Sequence[str], within: tuple[Path, ...]) -> Iterator[str]:
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name.startswith("-") and len(name) > _LONGEST_NAME:
            raise InputError(f"Need the name of a flag, got '{shown(name)}'.")
        if argument == "--":
            yield argument
            yield from rest
        elif name not in _NAMES:
            yield argument
        else:
            value = value if equals else next(rest, "")
            path = Path(value.strip()).expanduser()
            yield from _expand(_lines(path, within), (*within, _place(path)))


def _lines(path: Path, within: tuple[Path, ...]) -> list[str]:
    if _place(path) in within:
        raise InputError(
            f"Need flagfiles that do not contain themselves, but {path} does: see "
            f"{within[-1]}."
        )
    lines = [line.strip() for line in _text(path).splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "//"))]


def _place(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _text(path: Path) -> str:
    try:
        with os.fdopen(ordinary_files.open_file(path), "rb") as file:
            found = file.read(_MOST_BYTES + 1)
        text = found.decode()
    except (OSError, ValueError) as error:  # a ValueError of no text, or no path
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(
            f"Need a flagfile that can be read, got {path} ({reason}): name a text "
            "file with a flag on each line."
        ) from error
    if len(found) > _MOST_BYTES:
        raise InputError(
            f"Need a flagfile of at most {_MOST_BYTES} bytes, got {path}, which has "
            "more: name a text file with a flag on each line."
        )
    return text
