"""Clients of the HDF5 files that TensorFlow Federated offers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p2pjax.datasets.loaders.files import require_file, unreadable
from p2pjax.types import InputError


def read_clients(
    path: Path, content: str, example: str
) -> Iterator[tuple[str, Any, str]]:
    """Yields (name, group, where it is, for messages) of each client of one file.

    The groups can be read while the iteration goes on.

    Args:
        path: one file with groups examples/<client>.
        content: what it should hold, for the message.
        example: name of a file of this format, for the message.

    Raises:
        InputError: h5py is not installed, or the file cannot be used.
    """
    try:
        import h5py
    except ImportError as error:
        raise InputError(
            f"{path} is HDF5, which needs h5py, and h5py is not installed: "
            "pip install 'p2pjax[hdf5]'"
        ) from error
    require_file(path, content)
    try:
        with h5py.File(path, "r") as file:
            clients = file.get("examples")
            if not isinstance(clients, h5py.Group):
                raise InputError(
                    f"{path} must be {content} but has {', '.join(file) or 'nothing'} "
                    f"instead of the group examples: name {example}"
                )
            for name in clients:
                yield name, clients[name], f"{path}, client {name}"
    except InputError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise unreadable(path, content, error) from error
