"""Posts in chat rooms by user: the NPS Chat Corpus (Forsyth and Martell 2007).

The corpus numbers users anew in every session, so a user is one of one session.
"""

import re
from pathlib import Path
from typing import Any

from p2pjax.datasets.loaders.files import not_found, shown
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.loaders.text_files import read_json
from p2pjax.types import InputError

FILES = ("nps_chat.json.gz", "nps_chat.json")


CONTENT = "JSON with a list of [session, user, act, post]"


SYSTEM = "System"  # the act of what the chat room, not a person, says


# The corpus replaces names: 10-19-20sUser7. Looked for once in what has no spaces.
_MENTION = re.compile(r"(?<!\S)\S*User\d+")


def load(data_dir: str | Path) -> Documents:
    """Loads the posts of each user in the order of the file.

    Posts of the system (who joined or left) are left out. The corpus hides names
    behind the session and a number; in a post they become the word "user".

    Args:
        data_dir: a folder with nps_chat.json.gz or nps_chat.json, or such a file of
            any name: a list of [session, user, act, post], all strings.

    Returns:
        The texts, one per post. There is no test part.

    Raises:
        InputError: nothing found, or the file cannot be used.
    """
    path = Path(data_dir)
    if not path.is_file():
        there = [path / name for name in FILES if (path / name).exists()]
        if not there:
            raise not_found(path, FILES, "NPS Chat")
        path = there[0]
    rows = read_json(path, CONTENT)
    if not isinstance(rows, list):
        raise InputError(
            f"{path} must be {CONTENT} but holds {type(rows).__name__}: write it as "
            "data/README.md says"
        )
    texts: dict[str, list[str]] = {}
    for number, row in enumerate(rows):
        _check_row(row, f"{path}, row {number}")
        _, user, act, post = row
        if act != SYSTEM:
            texts.setdefault(user, []).append(_MENTION.sub(" user ", post))
    if not texts:
        raise InputError(
            f"{path}: at least one post of a person is needed, found none among "
            f"{len(rows)}: get the file again"
        )
    return Documents(list(texts), list(texts.values()))


def _check_row(row: Any, source: str) -> None:
    strings = isinstance(row, list) and all(isinstance(value, str) for value in row)
    if not strings or len(row) != 4:
        raise InputError(
            f"{source}: must be four strings, session, user, act and post, found "
            f"{shown(row)}: write it as data/README.md says"
        )
