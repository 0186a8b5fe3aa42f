"""Checkpoints: exact, complete or absent, refused when damaged or foreign."""

import errno
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from p2pjax import checkpoint, sharding
from p2pjax.checkpoint import Checkpoint
from p2pjax.types import InputError


class State(NamedTuple):
    params: dict
    opt_state: tuple
    key: jax.Array
    empty: tuple = ()


def make_state(seed=0, num_agents=4):
    params = {"kernel": jax.random.normal(jax.random.key(seed), (num_agents, 3, 1))}
    return State(params, optax.adam(0.1).init(params), jax.random.key(seed))


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        assert a.dtype == b.dtype
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)


def test_save_and_load(tmp_path):
    state = make_state()
    position = {"round": 7, "metrics_bytes": 123}
    checkpoint.save(tmp_path / "c", 7, Checkpoint(state, position))
    loaded = checkpoint.load(tmp_path / "c", 7, make_state(1))
    assert_same(loaded.state, state)
    assert loaded.position == position


def test_keeps_the_newest_two(tmp_path):
    assert checkpoint.numbers(tmp_path / "c") == []
    for number in (5, 10, 15):
        saved = Checkpoint(make_state(number), {"round": number})
        checkpoint.save(tmp_path / "c", number, saved)
    assert checkpoint.numbers(tmp_path / "c") == [10, 15]
    loaded = checkpoint.load(tmp_path / "c", 10, make_state())
    assert_same(loaded.state, make_state(10))


def test_sharded_state_comes_back_sharded(tmp_path):
    with jax.set_mesh(sharding.agents_mesh(4)):
        params = sharding.place({"kernel": jnp.arange(8.0).reshape(4, 2)})
        checkpoint.save(tmp_path / "c", 1, Checkpoint(params, {}))
        like = jax.tree.map(jnp.zeros_like, params)
        loaded = checkpoint.load(tmp_path / "c", 1, like).state
    assert len(loaded["kernel"].sharding.device_set) == 4
    assert_same(loaded, params)


@pytest.mark.parametrize("victim", ["position.json", "checksums.json", "state"])
@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_damaged_checkpoints_are_refused(tmp_path, victim, damage):
    checkpoint.save(tmp_path / "c", 1, Checkpoint(make_state(), {}))
    path = tmp_path / "c" / "1" / victim
    if path.is_dir():
        path = max(
            (p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size
        )
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="is damaged|is incomplete"):
        checkpoint.load(tmp_path / "c", 1, make_state())


def test_foreign_checkpoints_are_refused(tmp_path):
    checkpoint.save(tmp_path / "c", 1, Checkpoint(make_state(), {}))
    for other in (make_state(num_agents=5), {"something": jnp.zeros(3)}):
        with pytest.raises(InputError, match="belongs to a different run"):
            checkpoint.load(tmp_path / "c", 1, other)


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    state = make_state()
    checkpoint.save(tmp_path / "c", 1, Checkpoint(state, {"round": 1}))

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ocp.StandardCheckpointer, "save", full)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.save(tmp_path / "c", 2, Checkpoint(make_state(2), {}))
    assert checkpoint.numbers(tmp_path / "c") == [1]
    assert_same(checkpoint.load(tmp_path / "c", 1, make_state(3)).state, state)
    checkpoint.save(tmp_path / "c", 2, Checkpoint(make_state(2), {}))
    assert checkpoint.numbers(tmp_path / "c") == [1, 2]
