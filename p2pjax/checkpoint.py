"""Save and resume, exactly.

A checkpoint is a folder `<number>` with the state (orbax), the position (JSON) and the
checksums of all its files. It is written under a temporary name and renamed, so one
that has its name is complete; one that was damaged later is passed over for the one
before it.

Of several processes each writes and reads its own agents, in a folder that all of them
can reach; process 0 does the rest. How many there are may change between the two.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax

from p2pjax.types import InputError, PyTree

Position = dict[str, Any]  # plain JSON: where the run stood


_TEMPORARY = "incomplete-"


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
    """
    folder = folder.resolve()
    temporary = folder / f"{_TEMPORARY}{number}"
    is_first = jax.process_index() == 0
    if is_first:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    _meet(f"making checkpoint {number}")
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as writer:
        writer.save(temporary / "state", _without_keys(checkpoint.state))
    if is_first:
        _complete(folder, number, checkpoint, keep)
    _meet(f"checkpoint {number} is made")


def _complete(folder: Path, number: int, checkpoint: Checkpoint, keep: int) -> None:
    temporary = folder / f"{_TEMPORARY}{number}"
    (temporary / "position.json").write_text(json.dumps(checkpoint.position))
    description = json.dumps(_description(checkpoint.state))
    (temporary / "description.json").write_text(description)
    (temporary / "checksums.json").write_text(json.dumps(_checksums(temporary)))
    final = folder / str(number)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for old in numbers(folder)[:-keep]:
        shutil.rmtree(folder / str(old), ignore_errors=True)


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
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as reader:
        state = reader.restore(path / "state", template)
    position = json.loads((path / "position.json").read_text())
    return Checkpoint(_with_keys(state, like), position)


def check(folder: Path, number: int, like: PyTree) -> Position:
    """Reads the position of checkpoint `number` if `load` would read all of it.

    Of `like` shapes are enough. Raises the errors of `load`.
    """
    path = folder.resolve() / str(number)
    try:
        expected = json.loads((path / "checksums.json").read_text())
        found = _checksums(path)
        position = json.loads((path / "position.json").read_text())
        description = json.loads((path / "description.json").read_text())
    except (OSError, ValueError) as error:
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


def _meet(name: str) -> None:
    """All processes wait for each other here."""
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices(name)


def numbers(folder: Path) -> list[int]:
    """Complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _checksums(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / "checksums.json"
    }


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
