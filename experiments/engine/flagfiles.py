"""Flags in files: one flag per line, comments after #, other flagfiles inside.

Later flags override earlier ones, so that a study overrides its base, and a command
line its flagfile.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from p2pjax.types import InputError

_MOST = 2**20  # bytes
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
        if argument == "--":
            yield argument
            yield from rest
        elif name not in _NAMES:
            yield argument
        else:
            path = Path(value if equals else next(rest, "")).expanduser()
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
        # Without waiting for whoever writes into a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"Need a file for --flagfile, but {path} is none.")
            found = file.read(_MOST + 1)
    except (OSError, ValueError) as error:  # a ValueError of what is no path at all
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"Need a flagfile that can be read, got '{path}' ({why})."
        ) from error
    try:
        text = found.decode()
    except UnicodeDecodeError:
        text = "\0"
    if len(found) > _MOST or "\0" in text:
        raise InputError(f"Need a flagfile with a flag per line, but {path} is none.")
    return text
