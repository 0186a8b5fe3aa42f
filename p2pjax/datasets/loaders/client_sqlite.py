"""Clients of the sqlite files of TensorFlow Federated (its `SqlClientData`).

A table `examples` with a row per example: `split_name`, `client_id` and
`serialized_example_proto`, a `tf.train.Example`. The file may be packed by lzma, as it
is offered for download. Nothing in it is trusted: it is opened for reading only, rows
have a largest size, and no more is read than the file's own size allows.
"""

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from p2pjax.datasets.loaders.example_proto import Feature, parse_example
from p2pjax.datasets.loaders.files import (
    listed,
    read_start,
    reading,
    require_file,
    shown,
)
from p2pjax.datasets.loaders.packed import LZMA_STARTS, unpacked_file
from p2pjax.types import InputError

SQLITE_STARTS = (b"SQLite format 3\x00", *LZMA_STARTS)


CONTENT = "a sqlite file of TensorFlow Federated with a table examples"


COLUMNS = ("split_name", "client_id", "serialized_example_proto")


# Training and test part, the first of these that is there. The first is EMNIST, which
# has its digits a second time as digits_only_*; then all others, then CelebA.
SPLITS = (
    ("all_train", "all_test"),
    ("train", "test"),
    ("split_by_examples_train", "split_by_examples_test"),
)


MAX_ROW = 2**24  # bytes; an image of 84 x 84 x 3 pixels has 40 kB


_BAD = (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError)


_STEPS = 10**6  # of sqlite's machine between two looks at how far it is


class Row(NamedTuple):
    """One example."""

    client: str
    features: dict[str, Feature]
    source: str  # where it is, for messages


class Database:
    """An open file; made by `open_database`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, size: int):
        self.path = path
        self._connection = connection
        self._bytes_left = size

    def splits(self, wanted: Sequence[str] | None = None) -> list[str]:
        """The names of the parts to read: training, and test where there is one.

        Args:
            wanted: these, in place of those in `SPLITS`.

        Raises:
            InputError: one of them is not there, or none that is known.
        """
        if wanted is not None:
            missing = [name for name in wanted if not self._has(name)]
            if missing or not wanted:
                raise InputError(
                    f"{self.path}: the splits {', '.join(wanted) or 'to read'} are "
                    f"needed, found {self._found()}: name some of these"
                )
            return list(wanted)
        for pair in SPLITS:
            if self._has(pair[0]):
                return [name for name in pair if self._has(name)]
        names = self._some_splits()
        if len(names) == 1:  # "N/A" in files that TensorFlow Federated was asked for
            return names
        known = " or ".join(" and ".join(pair) for pair in SPLITS)
        raise InputError(
            f"{self.path}: splits {known} are needed, found {self._found()}: name "
            "the training and the test split to read"
        )

    def clients(self, split: str, max_users: int) -> list[str]:
        """The first names of clients in a split, in alphabetical order."""
        rows = self._connection.execute(
            "SELECT DISTINCT client_id FROM examples WHERE split_name = ? "
            "ORDER BY client_id LIMIT ?",
            (split, max_users),
        )
        return [self._name(client) for (client,) in rows]

    def rows(self, split: str, clients: Sequence[str] | None = None) -> Iterator[Row]:
        """The examples of a split, those of a client in the order of the file.

        Args:
            split: its name.
            clients: of these only; None is all.
        """
        query = "SELECT client_id, serialized_example_proto FROM examples "
        if clients is None:
            # In the order of the file: faster than by its index.
            found = self._connection.execute(
                f"{query} NOT INDEXED WHERE split_name = ?", (split,)
            )
        else:
            found = self._connection.execute(
                f"{query} WHERE split_name = ? "
                "AND client_id IN (SELECT value FROM json_each(?))",
                (split, json.dumps(list(clients))),
            )
        for number, (client, raw) in enumerate(found):
            source = f"{self.path}, {shown(split)} example {number}"
            if not isinstance(raw, bytes):
                raise InputError(
                    f"{source}: serialized_example_proto must be bytes, found "
                    f"{type(raw).__name__}: get the file again"
                )
            self._bytes_left -= len(raw) + 1
            if self._bytes_left < 0:
                raise InputError(
                    f"{self.path} must be {CONTENT} but its rows are larger than the "
                    "file, it is damaged: get it again"
                )
            try:
                features = parse_example(raw)
            except ValueError as error:
                raise InputError(
                    f"{source}: serialized_example_proto must be a tf.train.Example, "
                    f"found something else ({error}): get the file again"
                ) from error
            yield Row(self._name(client), features, source)

    def _name(self, client: object) -> str:
        if isinstance(client, str):
            return client
        raise InputError(
            f"{self.path}: client_id must be a text, found "
            f"{type(client).__name__}: get the file again"
        )

    def _has(self, split: str) -> bool:
        query = "SELECT 1 FROM examples WHERE split_name = ? LIMIT 1"
        return self._connection.execute(query, (split,)).fetchone() is not None

    def _some_splits(self) -> list[str]:
        query = "SELECT DISTINCT split_name FROM examples LIMIT 9"
        return [str(name) for (name,) in self._connection.execute(query)]

    def _found(self) -> str:
        return listed(self._some_splits()) or "no examples"


@contextlib.contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Opens a file, unpacked first where it is packed, for as long as the context.

    Raises:
        InputError: it is something else, or cannot be read, also later on.
    """
    require_file(path, CONTENT)
    with unpacked_file(path, CONTENT) as plain:
        if read_start(plain, 16) != SQLITE_STARTS[0]:
            raise InputError(
                f"{path} must be {CONTENT} but is of another format: name a .sqlite "
                "or .sqlite.lzma file"
            )
        size = plain.stat().st_size
        _check_complete(plain, size, path)
        with (
            reading(path, CONTENT, *_BAD),
            contextlib.closing(_connect(plain, size)) as connection,
        ):
            _check_table(connection, path)
            yield Database(path, connection, size)


def find_database(path: Path, stem: str) -> Path | None:
    """The file `stem`.sqlite, or the same packed, of a folder; None without."""
    for name in (f"{stem}.sqlite", f"{stem}.sqlite.lzma", f"{stem}.sqlite.xz"):
        if (path / name).is_file():
            return path / name
    return None


def _connect(path: Path, size: int) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    steps_left = _max_steps(size)

    def has_gone_too_far() -> bool:
        nonlocal steps_left
        steps_left -= _STEPS
        return steps_left < 0

    connection.set_progress_handler(has_gone_too_far, _STEPS)
    return connection


def _max_steps(size: int) -> int:
    """Steps of sqlite's machine that a file of so many bytes can need.

    A damaged tree of pages can lead through the same rows over and over. A row takes
    about ten steps and ten bytes at least, and some queries go through all rows.
    """
    return 10**8 + 100 * size


def _check_complete(plain: Path, size: int, path: Path) -> None:
    """Refuses a file that is shorter than it says; sqlite would fill it with zeros."""
    header = read_start(plain, 100)
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    needed = page * int.from_bytes(header[28:32], "big")
    if size < max(needed, 100):
        raise InputError(
            f"{path} must be {CONTENT} of {needed} bytes but has {size}, it is cut "
            "off: get it again"
        )


def _check_table(connection: sqlite3.Connection, path: Path) -> None:
    query = "SELECT type, sql FROM sqlite_master WHERE name = 'examples'"
    found = connection.execute(query).fetchone()
    if found is None or found[0] != "table" or "virtual" in str(found[1]).lower():
        tables = connection.execute("SELECT name FROM sqlite_master LIMIT 9")
        names = listed(str(name) for (name,) in tables) or "nothing"
        raise InputError(
            f"{path} must be {CONTENT} but holds {names}: name a file that TensorFlow "
            "Federated offers"
        )
    columns = [row[1] for row in connection.execute("PRAGMA table_info(examples)")]
    if not set(COLUMNS) <= set(columns):
        raise InputError(
            f"{path}: the table examples must have {', '.join(COLUMNS)}, found "
            f"{listed(map(str, columns))}: get the file again"
        )
