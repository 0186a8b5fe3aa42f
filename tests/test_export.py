"""Exported models predict what the agent predicted."""

import flax.serialization
import jax
import numpy as np
import pytest

from p2pjax import export
from p2pjax.nn import mlp
from p2pjax.types import InputError, Variables

MODULE = mlp.MLP((4, 3))
X = np.ones((2, 5), np.float32)


@pytest.fixture(scope="module")
def models():
    keys = jax.random.split(jax.random.key(0), 3)
    return Variables(jax.vmap(lambda key: MODULE.init(key, X)["params"])(keys), {})


def output(models, agent):
    params = jax.tree.map(lambda leaf: leaf[agent], models.params)
    return MODULE.apply({"params": params}, X)


def test_msgpack(models, tmp_path):
    path = tmp_path / "one.msgpack"
    export.save_msgpack(path, models, 1)
    restored = flax.serialization.msgpack_restore(path.read_bytes())
    np.testing.assert_array_equal(MODULE.apply(restored, X), output(models, 1))


def test_npz(models, tmp_path):
    path = tmp_path / "one.model"  # any name is kept as it is
    export.save_npz(path, models, 2)
    with np.load(path, allow_pickle=False) as arrays:
        assert set(arrays) == {
            f"params/layer_{layer}/{leaf}"
            for layer in (1, 2)
            for leaf in ("kernel", "bias")
        }
        np.testing.assert_array_equal(
            arrays["params/layer_1/kernel"], models.params["layer_1"]["kernel"][2]
        )


def test_agents_that_do_not_exist(models, tmp_path):
    for agent in (-1, 3):
        with pytest.raises(InputError, match="an agent from 0 to 2"):
            export.save_npz(tmp_path / "none.npz", models, agent)
    assert list(tmp_path.iterdir()) == []
