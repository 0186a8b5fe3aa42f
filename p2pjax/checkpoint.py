"""Save and resume, exactly.

A checkpoint is a folder `<number>` with the state (orbax), the position (JSON) and the
checksums of all its files. It is written under a temporary name, put on the disk and
renamed, so one that has its name is complete; one that was damaged later is passed over
for the one before it. A checkpoint consists of ordinary files and folders, of bounded
sizes: no link in it is followed.

Of several processes each writes and reads its own agents, in a folder that all of them
can reach; process 0 does the rest. How many there are may change between the two.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from p2pjax import host_memory
from p2pjax.types import InputError, PyTree

Position = dict[str, Any]  # plain JSON: where the run stood


_TEMPORARY = "incomplete-"
_MOST_JSON = 2**30  # bytes of position.json; other JSON files are smaller
_MOST_DIGITS = 18  # of a number
_CHUNK = 2**20  # bytes that are read at once


class DifferentRunError(InputError):
    """A checkpoint is sound, but of a run whose state has other leaves or shapes."""


class Checkpoint(NamedTuple):
    """What was saved."""

    state: PyTree
    position: Position


def save_state(folder: str | Path, num_rounds: int, state: PyTree) -> None:
    """Saves a state of a loop of one's own; the two newest are kept.

    Args:
      folder: of the checkpoints.
      num_rounds: done so far.
      state: of any method.

    Example:
      >>> import tempfile, jax.numpy as jnp
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     for num_rounds in (1, 2, 3):
      ...         save_state(folder, num_rounds, {"x": jnp.ones(2)})
      ...     numbers(Path(folder))  # the two newest
      [2, 3]
    """
    save(Path(folder), num_rounds, Checkpoint(state, {"num_rounds": num_rounds}))


def load_state(folder: str | Path, like: PyTree) -> tuple[PyTree, int]:
    """The newest state that `save_state` saved, and the rounds done by then.

    Args:
      folder: of the checkpoints.
      like: a state of the same shapes, such as `method.init(key, data)`.

    >>> import tempfile, jax.numpy as jnp
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_state(folder, 3, {"x": jnp.ones(2)})
    ...     state, num_rounds = load_state(folder, {"x": jnp.zeros(2)})
    >>> state["x"].tolist(), num_rounds
    ([1.0, 1.0], 3)
    """
    found = numbers(Path(folder))
    if not found:
        raise InputError(f"Need a folder with a saved state, but {folder} has none.")
    return load(Path(folder), found[-1], like).state, found[-1]


def save(folder: Path, number: int, checkpoint: Checkpoint, keep: int = 2) -> None:
    """Writes checkpoint `number`, then removes all but the newest `keep`.

    Args:
      folder: of the checkpoints.
      number: of this one.
      checkpoint: state and position.
      keep: how many stay.

    Raises:
      OSError: it could not be written; those before are as they were.
    """
    folder = folder.resolve()
    is_first = jax.process_index() == 0
    secret = np.zeros(2, np.uint32)
    if is_first:
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder, keep)
        secret = _new_secret()
        _temporary(folder, secret).mkdir()
    temporary = _temporary(folder, _of_first(secret))  # all wait for the folder
    try:
        _write_state(temporary / "state", checkpoint.state)
        if is_first:
            _complete(folder, temporary, number, checkpoint)
            tidy(folder, keep)
    except BaseException:
        if is_first:
            shutil.rmtree(temporary, ignore_errors=True)  # it takes room
        raise
    finally:
        host_memory.give_back()
    _meet(f"checkpoint {number} is made")


def _write_state(path: Path, state: PyTree) -> None:
    import orbax.checkpoint as ocp

    try:
        with ocp.StandardCheckpointer() as writer:
            writer.save(path, _without_keys(state))
    except Exception as error:
        # What the system says is somewhere in the text of another kind of error.
        code = re.search(r"os_error_code='(\d+)'|OS error (\d+)", str(error))
        if code is None or isinstance(error, OSError):
            raise
        number = int(code[1] or code[2])
        raise OSError(number, os.strerror(number), str(path.parents[1])) from error


def _new_secret() -> np.ndarray:
    return np.frombuffer(secrets.token_bytes(8), np.uint32)


def _temporary(folder: Path, secret: np.ndarray) -> Path:
    return folder / f"{_TEMPORARY}{secret.tobytes().hex()}"


def _complete(
    folder: Path, temporary: Path, number: int, checkpoint: Checkpoint
) -> None:
    (temporary / "position.json").write_text(json.dumps(checkpoint.position))
    description = json.dumps(_description(checkpoint.state))
    (temporary / "description.json").write_text(description)
    (temporary / "checksums.json").write_text(json.dumps(_checksums(temporary)))
    for path in (*temporary.rglob("*"), temporary):
        _sync(path)
    final = folder / str(number)
    _remove(final)
    temporary.rename(final)
    _sync(folder)


def tidy(folder: Path, keep: int = 2) -> None:
    """Removes all but the newest checkpoints, and what killed processes have left.

    Args:
      folder: of the checkpoints; no other process must be writing there.
      keep: how many stay.
    """
    for left in folder.glob(f"{_TEMPORARY}*"):
        _remove(left)
    for old in numbers(folder)[:-keep]:
        _remove(folder / str(old))


def _sync(path: Path) -> None:
    """Puts a file or the names of a folder on the disk."""
    found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(found)
    finally:
        os.close(found)


def _remove(path: Path) -> None:
    """Whatever it is, if it is there; not what a link leads to.

    A folder loses its name first: no half of it is ever taken for a checkpoint.
    """
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        unnamed = _temporary(path.parent, _new_secret())
        path.rename(unnamed)
        shutil.rmtree(unnamed, ignore_errors=True)


def load(folder: Path, number: int, like: PyTree) -> Checkpoint:
    """Reads checkpoint `number`.

    Args:
      folder: where `save` wrote.
      number: of the checkpoint.
      like: a state of the same structure, shapes and placement, such as a new one.

    Raises:
      InputError: it is incomplete, damaged, or of another run.
    """
    path = folder.resolve() / str(number)
    if jax.process_index() == 0:
        check(folder, number, like)
    _meet(f"reading checkpoint {number}")
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        _without_keys(like),
    )
    state = _read_state(path, template)
    position = _read_json(path / "position.json")
    return Checkpoint(_with_keys(state, like), position)


def _read_state(path: Path, template: PyTree) -> PyTree:
    import orbax.checkpoint as ocp

    try:
        with ocp.StandardCheckpointer() as reader:
            return reader.restore(path / "state", template)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
    ) as error:
        raise InputError(
            f"Checkpoint {path} is damaged: {type(error).__name__} while reading its "
            "state."
        ) from error


def check(folder: Path, number: int, like: PyTree) -> Position:
    """Reads the position of checkpoint `number` if `load` would read all of it.

    Of `like` shapes are enough. Raises the errors of `load`.
    """
    path = folder.resolve() / str(number)
    try:
        _check_size(path, like)
        expected = _read_json(path / "checksums.json")
        found = _checksums(path)
        position = _read_json(path / "position.json")
        description = _read_json(path / "description.json")
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"Checkpoint {path} is incomplete: {type(error).__name__} while reading it."
        ) from error
    if found != expected:
        raise InputError(f"Checkpoint {path} is damaged: its checksums differ.")
    if description != _description(like):
        raise DifferentRunError(
            f"Checkpoint {path} belongs to a different run: its state has other leaves "
            "or shapes."
        )
    return position


def _check_size(path: Path, like: PyTree) -> None:
    """Before anything is read: what is larger than the state could be is foreign."""
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(like))
    most = 4 * held + _MOST_JSON
    found = sum(file.lstat().st_size for file in _files(path))
    if found > most:
        raise InputError(
            f"Checkpoint {path} is damaged: it has {found} bytes, {most} at most are "
            "those of such a state."
        )


def _read_json(path: Path) -> Any:
    found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(found, "rb") as file:
        text = file.read(_MOST_JSON + 1)
    if len(text) > _MOST_JSON:
        raise ValueError(f"more than {_MOST_JSON} bytes")
    return json.loads(text)


def _of_first(value: np.ndarray) -> np.ndarray:
    """What process 0 has; all processes wait for it here."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.broadcast_one_to_all(value))


def _meet(name: str) -> None:
    """All processes wait for each other here."""
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)


def numbers(folder: Path) -> list[int]:
    """Complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if _is_complete(path))


def _is_complete(path: Path) -> bool:
    """Whether it is a folder whose name is a number, as `save` writes it."""
    name = path.name
    is_number = name.isascii() and name.isdecimal() and len(name) <= _MOST_DIGITS
    return is_number and name == str(int(name)) and stat.S_ISDIR(path.lstat().st_mode)


def _checksums(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): _sha256(path)
        for path in _files(folder)
        if path != folder / "checksums.json"
    }


def _files(folder: Path) -> list[Path]:
    """All files below a folder, sorted; refuses links, pipes and devices."""
    found = []
    for path in sorted(folder.rglob("*")):
        kind = path.lstat().st_mode
        if stat.S_ISREG(kind):
            found.append(path)
        elif not stat.S_ISDIR(kind):
            raise ValueError(f"{path} is neither a file nor a folder")
    return found


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _description(state: PyTree) -> list[list]:
    """Path, shape and dtype of every leaf."""
    return [
        [jax.tree_util.keystr(path), list(leaf.shape), str(leaf.dtype)]
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    ]


def _without_keys(state: PyTree) -> PyTree:
    """Typed keys as plain integers, which is what can be written."""
    return jax.tree.map(
        lambda x: jax.random.key_data(x) if _is_key(x) else jax.numpy.asarray(x), state
    )


def _with_keys(state: PyTree, like: PyTree) -> PyTree:
    def restored(x: jax.Array, old: jax.Array) -> jax.Array:
        if _is_key(old):
            return jax.random.wrap_key_data(x, impl=jax.random.key_impl(old))
        return x

    return jax.tree.map(restored, state, like)


def _is_key(x: jax.Array) -> bool:
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
