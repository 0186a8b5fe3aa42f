"""Shakespeare's plays by role, and your own texts by user in one JSON file.

McMahan et al. (2017), arXiv:1602.05629; the snippets of TensorFlow Federated.
"""

from pathlib import Path
from typing import Any

import numpy as np

from p2pjax.datasets.loaders import tff
from p2pjax.datasets.loaders.client_sqlite import SQLITE_STARTS, find_database
from p2pjax.datasets.loaders.files import listed, not_found, read_start, shown
from p2pjax.datasets.loaders.stackoverflow import read_texts
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.loaders.text_files import read_json
from p2pjax.types import InputError

HDF5_START = b"\x89HDF"


HDF5_FILES = ("shakespeare_train.h5", "shakespeare_test.h5")


SQLITE = "shakespeare"  # the name of the newer file without its ending


WANTED = (
    " and ".join(HDF5_FILES),
    f"{SQLITE}.sqlite (or .lzma)",
    "one shakespeare*.json or shakespeare*.json.gz",
)


# As TensorFlow Federated names roles: after the first of several plays, in the order of
# the collected works, to which it attributes all of them.
PLAYS = (
    "ALL_S_WELL_THAT_ENDS_WELL",  # also Antony, As You Like It, Coriolanus, Cymbeline
    "MUCH_ADO_ABOUT_NOTHING",  # also Othello
    "PERICLES__PRINCE_OF_TYRE",  # also Richard II and III
    "THE_FIRST_PART_OF_KING_HENRY_THE_FOURTH",  # also other kings' histories
    "THE_TAMING_OF_THE_SHREW",  # also Tempest, Timon, Titus
    "THE_TRAGEDY_OF_KING_LEAR",  # also Macbeth and comedies from L to M
)


CONTENT = "JSON with train and, where there is one, test: {user: [texts]} each"


def load(data_dir: str | Path) -> Documents:
    """Loads what every role says, with the source's own test part.

    Args:
        data_dir: a folder with TensorFlow Federated's shakespeare_train.h5 and
            shakespeare_test.h5 (groups examples/<role> with snippets [n]), or with its
            newer shakespeare.sqlite[.lzma], or with one shakespeare*.json[.gz],
            {"train": {role: [snippets]}, "test": {...}}; or one such sqlite or JSON
            file of any name, where "test" may be left out. Within a folder they are
            looked for in this order.

    Returns:
        The texts, one per snippet. Users are those of the training part.

    Raises:
        InputError: nothing found, h5py is not installed, or a file cannot be used.
    """
    files = _find_files(Path(data_dir))
    if len(files) == 2:
        train, test = (dict(read_texts(f, "snippets", f.name)) for f in files)
        return _documents(train, test, str(data_dir))
    if read_start(files[0], 16).startswith(SQLITE_STARTS):
        return tff.load_texts(files[0], "snippets")
    content = read_json(files[0], CONTENT)
    parts = content if isinstance(content, dict) else {}
    if "train" not in parts:
        found = listed(parts) or type(content).__name__
        raise InputError(
            f"{files[0]} must be {CONTENT} but holds {found}: write it as "
            "data/README.md says"
        )
    for name in {"train", "test"} & set(parts):
        _check_part(parts[name], f"{files[0]}, {name}")
    return _documents(parts["train"], parts.get("test"), str(files[0]))


def by_play(documents: Documents) -> Documents:
    """The same roles, those of the same plays in one group, numbered as in `PLAYS`.

    Raises:
        InputError: some user's name does not begin with one of these.
    """

    def place(user: str) -> int:
        for number, title in enumerate(PLAYS):
            if user.startswith(f"{title}_"):
                return number
        raise InputError(
            f"Need names of roles that begin with one of {', '.join(PLAYS)}, found "
            f"{user}: take the roles of TensorFlow Federated"
        )

    group = np.array([place(user) for user in documents.users], np.int32)
    return documents._replace(group=group)


def _documents(
    train: dict[str, list[str]], test: dict[str, list[str]] | None, source: str
) -> Documents:
    if not train:
        raise InputError(
            f"{source}: at least one user is needed, found none to train on: get the "
            "file again"
        )
    own_test = None if test is None else [test.get(user, []) for user in train]
    return Documents(list(train), list(train.values()), test=own_test)


def _find_files(path: Path) -> list[Path]:
    if path.is_file():
        if read_start(path, 4) == HDF5_START:
            raise InputError(
                f"Shakespeare in HDF5 needs {WANTED[0]}, found the one file {path}: "
                "name their folder"
            )
        return [path]
    hdf5 = [path / name for name in HDF5_FILES]
    there = [file.name for file in hdf5 if file.exists()]
    if len(there) == 1:
        raise InputError(
            f"Shakespeare needs {WANTED[0]} in {path}, found only {there[0]}: add the "
            "other from the same archive"
        )
    if there:
        return hdf5
    if database := find_database(path, SQLITE):
        return [database]
    found = sorted(
        [*path.glob("shakespeare*.json"), *path.glob("shakespeare*.json.gz")]
    )
    if not found:
        raise not_found(path, WANTED, "Shakespeare")
    if len(found) > 1:
        raise InputError(
            f"Shakespeare needs {WANTED[-1]} in {path}, found "
            f"{', '.join(file.name for file in found)}: name the file"
        )
    return found


def _check_part(part: Any, source: str) -> None:
    if not isinstance(part, dict):
        raise InputError(
            f"{source}: must be an object {{user: [texts]}}, found "
            f"{type(part).__name__}: write it as data/README.md says"
        )
    for user, texts in part.items():
        if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
            raise InputError(
                f"{source}, user {shown(user)}: must be a list of strings, found "
                f"{shown(texts)}: write it as data/README.md says"
            )
