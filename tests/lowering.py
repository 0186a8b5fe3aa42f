"""Rounds lower for accelerators, though none is here to run them."""

import jax
import jax.numpy as jnp
import numpy as np


def assert_lowers(method, world, platform):
    """The jitted round of a method, without a call back to the host in it."""
    inputs = method.plan(np.random.default_rng(0), world, 2)
    lowered = (
        jax.jit(method.round)
        .trace(
            jax.random.key(0),
            jnp.int32(0),
            jax.tree.map(lambda leaf: leaf[0], inputs),
            jax.eval_shape(method.init, jax.random.key(0), world),
            world,
        )
        .lower(lowering_platforms=(platform,))
    )
    text = lowered.as_text()
    assert "stablehlo" in text
    assert "callback" not in text
