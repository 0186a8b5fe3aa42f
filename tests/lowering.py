"""Rounds lower for accelerators, though none is here to run them."""

import jax
import jax.numpy as jnp
import numpy as np

PLATFORMS = ("tpu", "cuda")


def assert_lowers(method, world):
    """The jitted round of a method, without a call back to the host in it."""
    inputs = method.plan(np.random.default_rng(0), world, 2)
    traced = jax.jit(method.round).trace(
        jax.random.key(0),
        jnp.int32(0),
        jax.tree.map(lambda leaf: leaf[0], inputs),
        jax.eval_shape(method.init, jax.random.key(0), world),
        world,
    )
    text = traced.lower(lowering_platforms=PLATFORMS).as_text()  # for all in one module
    assert "stablehlo" in text
    assert "callback" not in text
