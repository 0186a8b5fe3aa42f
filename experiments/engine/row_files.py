"""Files of rows with a running checksum, which every checkpoint keeps.

The checksum is of what was written, not of what is found later: a resumed run goes on
only from rows that are still what the run wrote.
"""

import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

from experiments.engine import own_files, run_folder
from experiments.engine.run_folder import Row
from p2pjax.types import InputError

NAMES = ("metrics.jsonl", "links.jsonl")
_CHUNK = 2**20  # bytes


class ChangedRowsError(InputError):
    """A file no longer begins with the rows that a run has written."""


class Mark(NamedTuple):
    """How far a file of rows was written."""

    num_bytes: int
    sha256: str  # of these bytes


class RowFiles:
    """The files of rows of a run that goes on from what they hold."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._sums = {name: _Sum(folder, name) for name in NAMES}

    def append(self, name: str, row: Row) -> None:
        """Adds one row to a file."""
        run_folder.append(self._folder, name, row)
        self._sums[name].add(run_folder.line_of(row).encode())

    def marks(self) -> dict[str, Mark]:
        """Of all files, as they should be by now."""
        return {name: each.mark() for name, each in self._sums.items()}


class _Sum:
    """Length and checksum of what was written to a file."""

    def __init__(self, folder: Path, name: str):
        self._num_bytes = run_folder.size(folder, name)
        self._sha256 = _sha256_of(folder, name, self._num_bytes)

    def add(self, written: bytes) -> None:
        self._num_bytes += len(written)
        self._sha256.update(written)

    def mark(self) -> Mark:
        return Mark(self._num_bytes, self._sha256.hexdigest())


def check(folder: Path, name: str, mark: Mark) -> None:
    """Refuses a file that does not begin with the rows of the mark."""
    size = run_folder.size(folder, name)
    if size < mark.num_bytes:
        raise ChangedRowsError(
            f"{folder / name} is shorter than its checkpoint says ({size} bytes "
            f"instead of {mark.num_bytes})."
        )
    if _sha256_of(folder, name, mark.num_bytes).hexdigest() != mark.sha256:
        raise ChangedRowsError(
            f"{folder / name} was changed: its first {mark.num_bytes} bytes are not "
            "what the run wrote."
        )


def _sha256_of(folder: Path, name: str, num_bytes: int) -> Any:
    """Of the first bytes of a file; there may be no file for none."""
    found = hashlib.sha256()
    if num_bytes:
        found_file = own_files.open_file(folder / name, os.O_RDONLY)
        with os.fdopen(found_file, "rb") as file:
            while num_bytes and (chunk := file.read(min(num_bytes, _CHUNK))):
                found.update(chunk)
                num_bytes -= len(chunk)
    return found
