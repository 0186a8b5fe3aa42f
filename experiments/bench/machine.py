"""What the machine can do at most: matrix products, and reading and writing memory."""

from collections.abc import Callable

import numpy as np


def jax_product(size: int) -> Callable[[], float]:
    """GFLOP of a product of square matrices, by XLA on one device."""
    import jax
    import jax.numpy as jnp

    product = jax.jit(lambda a, b: a @ b)
    a = jnp.ones((size, size), jnp.float32)

    def run() -> float:
        jax.block_until_ready(product(a, a))
        return 2 * size**3 / 1e9

    return run


def numpy_product(size: int) -> Callable[[], float]:
    """The same by numpy's BLAS."""
    a = np.ones((size, size), np.float32)
    out = np.empty_like(a)

    def run() -> float:
        np.matmul(a, a, out=out)
        return 2 * size**3 / 1e9

    return run


def read_and_write(num_floats: int) -> Callable[[], float]:
    """GB read and written by a pass over an array, in place."""
    import jax
    import jax.numpy as jnp

    once = jax.jit(lambda x: x * 1.0001, donate_argnums=0)
    held = [jnp.ones(num_floats, jnp.float32)]

    def run() -> float:
        held[0] = jax.block_until_ready(once(held[0]))
        return 2 * 4 * num_floats / 1e9

    return run
