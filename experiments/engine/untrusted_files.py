"""Files that may be unfinished, damaged or someone else's: text, JSON, lines of JSON.

They are opened as ordinary files, not as links, pipes or devices, are bounded in bytes,
and their numbers are finite. What cannot be read is refused in one sentence that names
the file, the line and what to do.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from experiments.engine import own_files
from p2pjax.types import InputError

MOST_BYTES = 2**30  # of a file of lines
MOST_OF_A_LINE = 2**26
MOST_OF_A_DOCUMENT = 2**26  # a file of one value
_LARGEST = 1e100  # of a number: its square is finite
_MOST_DIGITS = 18  # of an integer that 64 bits hold
_REMEDY = "put back what the run wrote there, or choose another folder"


class MissingFileError(InputError):
    """There is no such file."""


def refusal(
    path: Path, needed: str, found: str, line: int | None = None, remedy: str = _REMEDY
) -> InputError:
    """The one way to refuse a file.

    Args:
      path: of the file.
      needed: what should be there.
      found: what the file, or the line, is or has instead.
      line: its number from 1, where one line is wrong.
      remedy: what to do.
    """
    where = shown(path) if line is None else f"line {line} of {shown(path)}"
    return InputError(f"Need {needed}, but {where} {found}: {remedy}.")


def shown(path: object) -> str:
    """A path for a person: not too long, nothing that a terminal would obey."""
    text = escaped(str(path))
    return text if len(text) <= 500 else f"{text[:200]}...{text[-200:]}"


def escaped(text: str) -> str:
    r"""The text with escapes in the place of what cannot be printed.

    >>> escaped("Größe\x1b[1m\n")
    'Größe\\x1b[1m\\n'
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )


def text_of(
    path: Path, needed: str, most: int = MOST_OF_A_DOCUMENT, remedy: str = _REMEDY
) -> str:
    """The text of a file.

    Args:
      path: of the file.
      needed: what should be there, such as "the work folder of a run".
      most: bytes that it may have.
      remedy: what to do about one that cannot be read.

    Raises:
      MissingFileError: there is none.
      InputError: it cannot be read.
    """
    with _opened(path, needed, most, remedy) as file:
        content = file.read(most)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise refusal(path, needed, "is broken (no text)", remedy=remedy) from error


def document_of(path: Path, needed: str) -> Any:
    """The value of a JSON file; the errors are those of `text_of`."""
    text = text_of(path, needed)
    try:
        return _value_of(text)
    except ValueError as error:
        raise refusal(path, needed, f"is broken ({error})") from error


def lines_of(
    path: Path, needed: str, content: str, may_be_cut: bool
) -> Iterator[tuple[int, Any]]:
    """Number and value of each line of a JSON-lines file.

    Args:
      path: of the file.
      needed: what its folder should be.
      content: what each of its lines should be.
      may_be_cut: whether the last line counts only if it is complete, because it may
        be being written; else it has to be.

    Raises:
      MissingFileError: there is none.
      InputError: it cannot be read.
    """
    with _opened(path, needed, MOST_BYTES) as file:
        number = 0
        while line := file.readline(MOST_OF_A_LINE):
            number += 1
            is_cut = not line.endswith(b"\n")
            if is_cut and len(line) == MOST_OF_A_LINE:
                raise refusal(path, content, "is too long", number)
            try:
                value = _value_of(line.decode())
            except ValueError as error:
                if is_cut and may_be_cut:
                    return
                reason = "no text" if isinstance(error, UnicodeError) else error
                found = f"is broken ({reason})"
                raise refusal(path, content, found, number) from error
            yield number, value


@contextlib.contextmanager
def _opened(
    path: Path, needed: str, most: int, remedy: str = _REMEDY
) -> Iterator[BinaryIO]:
    try:
        with os.fdopen(own_files.open_file(path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                found = f"has {size} bytes, more than {most}"
                raise refusal(path, needed, found, remedy=remedy)
            yield file
    except (FileNotFoundError, NotADirectoryError) as error:
        folder = shown(path.parent)
        found = f"has no {shown(path.name)}" if path.parent.is_dir() else "is no folder"
        raise MissingFileError(
            f"Need {needed}, but {folder} {found}: {remedy}."
        ) from error
    except InputError:
        raise
    except (OSError, ValueError) as error:  # a ValueError of what is no path at all
        reason = getattr(error, "strerror", None) or str(error)
        found = f"cannot be read ({reason})"
        raise refusal(path, needed, found, remedy=remedy) from error


def _value_of(text: str) -> Any:
    """A value in JSON; a ValueError says why it is none."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError("no JSON") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _integer(digits: str) -> int | float:
    """Rows of models that diverge have integers that only a float can hold."""
    return int(digits) if len(digits) <= _MOST_DIGITS else _decimal(digits)


def _decimal(digits: str) -> float:
    value = float(digits)
    if not abs(value) <= _LARGEST:
        raise ValueError(f"a number beyond {_LARGEST:g}")
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


_DECODER = json.JSONDecoder(
    parse_int=_integer,
    parse_float=_decimal,
    parse_constant=_constant,
    object_pairs_hook=_object,
)
