"""Writes tiny files in TensorFlow Federated's sqlite format, for tests."""

import sqlite3
import struct
from pathlib import Path

from p2pjax.datasets.stacking import Examples


def varint(number: int) -> bytes:
    number %= 2**64
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(**features: object) -> bytes:
    """A `tf.train.Example` of strings, bytes, whole numbers or floats, or lists."""
    entries = []
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        if isinstance(values[0], str | bytes):
            raw = [v.encode() if isinstance(v, str) else v for v in values]
            feature = field(1, b"".join(field(1, v) for v in raw))
        elif isinstance(values[0], float):
            packed = struct.pack(f"<{len(values)}f", *values)
            feature = field(2, field(1, packed))
        else:
            feature = field(3, field(1, b"".join(varint(int(v)) for v in values)))
        entries.append(field(1, field(1, name.encode()) + field(2, feature)))
    return field(1, b"".join(entries))


def write_sqlite(
    path: Path, rows: list[tuple[str, str, object]], index: bool = False
) -> Path:
    """Rows of split, client and serialized example."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous = OFF")  # it need not survive a crash
    with connection:
        connection.execute(
            "CREATE TABLE examples (split_name TEXT NOT NULL, client_id TEXT NOT NULL, "
            "serialized_example_proto BLOB NOT NULL)"
        )
        connection.execute(
            "CREATE TABLE client_metadata (client_id TEXT NOT NULL, "
            "split_name TEXT NOT NULL, num_examples INTEGER NOT NULL)"
        )
        if index:
            connection.execute(
                "CREATE INDEX idx_examples_client_id_split "
                "ON examples (split_name, client_id)"
            )
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    connection.close()
    return path


def character(label: int) -> bytes:
    """An image as EMNIST has it: paper is 1, and the ink is at pixel `label`."""
    pixels = [1.0] * 784
    pixels[label] = 0.0
    return example(pixels=pixels, label=label)


def write_emnist(path: Path, train: dict, test: dict) -> Path:
    """Labels by writer; digits are there a second time, as in the real file."""
    rows = [
        (f"{prefix}_{split}", writer, character(label))
        for split, labels in (("train", train), ("test", test))
        for writer, own in labels.items()
        for label in own
        for prefix in (("all", "digits_only") if label < 10 else ("all",))
    ]
    return write_sqlite(path, rows, index=True)


def ink(examples: Examples) -> list[int]:
    """Where the one dark pixel of each image is."""
    flat = examples.x.reshape(len(examples.x), -1)
    assert (flat.max(1) == 255).all()
    assert ((flat > 0).sum(1) == 1).all()
    return flat.argmax(1).tolist()
