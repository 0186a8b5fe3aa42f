"""StackOverflow posts by user, in the formats of TensorFlow Federated."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from p2pjax.datasets.loaders import tff
from p2pjax.datasets.loaders.client_sqlite import SQLITE_STARTS, find_database
from p2pjax.datasets.loaders.files import not_found, read_start
from p2pjax.datasets.loaders.hdf5 import read_strings
from p2pjax.datasets.loaders.text import Documents
from p2pjax.types import InputError

FILE = "stackoverflow_train.h5"


SQLITE = "stackoverflow"  # the name of the newer file without its ending


def load(data_dir: str | Path, max_users: int | None = None) -> Documents:
    """Loads the sentences of each user, lower-cased and without HTML by the source.

    Only the training part is read: its users are split in themselves, into blocks of
    their samples, as in the experiments on peer-to-peer next-word prediction. The
    file's other fields (title, tags, score, type, creation date) are not used.

    Args:
        data_dir: a folder with stackoverflow_train.h5, or any file of its format,
            groups examples/<client> with tokens [n], strings; or the newer
            stackoverflow.sqlite[.lzma], or any file of its format.
        max_users: the first so many only; the file has 342477. None is all.

    Returns:
        The texts, one per sentence.

    Raises:
        InputError: nothing found, h5py is not installed, or the file cannot be used.
    """
    path = Path(data_dir)
    if not path.is_file():
        found = path / FILE
        path = found if found.exists() else find_database(path, SQLITE) or found
        if not path.exists():
            wanted = (FILE, f"{SQLITE}.sqlite (or .lzma)")
            raise not_found(Path(data_dir), wanted, "StackOverflow")
    if read_start(path, 16).startswith(SQLITE_STARTS):
        return tff.load_texts(path, "tokens", max_users)
    clients = dict(islice(read_texts(path, "tokens", FILE), max_users))
    if not clients:
        raise InputError(
            f"{path}: at least one user is needed, found none: get the file again or "
            "raise max_users"
        )
    return Documents(list(clients), list(clients.values()))


def read_texts(path: Path, field: str, example: str) -> Iterator[tuple[str, list[str]]]:
    """Yields (name, texts) of each client of one file of TensorFlow Federated.

    Args:
        path: one file with groups examples/<client>, each with strings [n].
        field: what the strings are called, e.g. "tokens".
        example: name of a file of this format, for the message.

    Raises:
        InputError: h5py is not installed, or the file cannot be used.
    """
    for name, (texts,), _ in read_strings(path, field, example):
        yield name, [text.decode(errors="replace") for text in texts]
