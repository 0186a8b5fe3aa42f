"""Texts and JSON out of files, packed by gzip or lzma or not."""

import json
from pathlib import Path
from typing import Any

from p2pjax.datasets.loaders.files import reading, require_file
from p2pjax.datasets.loaders.packed import check_memory, read_unpacked

# Bytes of memory, at most, that each of these needs in what is read.
_COSTS = {b"{": 240, b"[": 90, b",": 40, b'"': 30}


def read_text(path: Path, content: str, encoding: str = "utf-8") -> str:
    """Reads a whole text.

    Args:
        path: the file.
        content: what it should hold, for the message.
        encoding: of the text.

    Raises:
        InputError: missing, empty, too large, or no such text.
    """
    raw = read_unpacked(require_file(path, content), content)
    with reading(path, content, UnicodeDecodeError):
        return raw.decode(encoding)


def read_json(path: Path, content: str) -> Any:
    """Reads a JSON file.

    Args:
        path: the file.
        content: what it should hold, for the message.

    Raises:
        InputError: missing, empty, too large, nested too deeply, or no JSON.
    """
    raw = read_unpacked(require_file(path, content), content)
    needed = sum(cost * raw.count(mark) for mark, cost in _COSTS.items())
    check_memory(path, needed, content)
    with reading(path, content, ValueError):
        return json.loads(raw)
