"""What tasks make of their examples, however many are evaluated at once."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from p2pjax.nn import cnn, mlp
from p2pjax.tasks import _classification, losses
from p2pjax.tasks._classification import BLOCK, classification


@cache
def values_and_gradient(block):
    """Traced while `BLOCK` is `block`, compiled once for all numbers of examples."""
    module = cnn.CNN((3,), (4,), 3, kernel_size=3)
    task = classification(module, (8, 8, 1), losses.softmax_cross_entropy)

    def loss(variables, batch):
        sums = task.evaluate(variables, batch)
        return sums["loss"].total, sums

    return jax.jit(task.init), jax.jit(jax.value_and_grad(loss, has_aux=True))


def evaluated(num_examples, num_valid, block, monkeypatch):
    """Sums over the valid examples, and the gradient of the loss."""
    monkeypatch.setattr(_classification, "BLOCK", block)
    init, value_and_gradient = values_and_gradient(block)
    rng = np.random.default_rng(0)
    batch = {
        "x": rng.normal(size=(num_examples, 8, 8, 1)).astype(np.float32),
        "y": rng.integers(0, 3, num_examples),
        "valid": np.arange(num_examples) < num_valid,
    }
    batch["x"][num_valid:] = 1e3  # must not count
    (_, sums), gradient = value_and_gradient(init(jax.random.key(0)), batch)
    return sums, gradient


@pytest.mark.parametrize("block, num_valid", [(4, 11), (4, 4), (10, 11), (10, 0)])
def test_blocks_give_what_all_examples_give(block, num_valid, monkeypatch):
    """Also where the last block is not full, and where others are padding alone."""
    whole, gradient = evaluated(11, num_valid, 100, monkeypatch)
    sums, same_gradient = evaluated(11, num_valid, block, monkeypatch)
    assert sums["accuracy"].weight == num_valid
    for found, wanted in zip(
        jax.tree.leaves((sums, same_gradient)),
        jax.tree.leaves((whole, gradient)),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "module, in_blocks",
    [(cnn.CNN((17,), (4,), 3, kernel_size=3), True), (mlp.MLP((4, 3)), False)],
)
def test_only_convolutions_are_evaluated_in_blocks(module, in_blocks):
    task = classification(module, (8, 8, 1), losses.softmax_cross_entropy)
    variables = jax.eval_shape(task.init, jax.random.key(0))
    size = BLOCK + 1
    batch = {
        "x": jnp.zeros((size, 8, 8, 1)),
        "y": jnp.zeros(size, int),
        "valid": jnp.ones(size, bool),
    }
    jaxpr = str(jax.make_jaxpr(task.evaluate)(variables, batch))
    assert ("scan" in jaxpr) == in_blocks
