"""Dense layers as one product of matrices, with fast gradients of the weights on CPUs.

Without it XLA:CPU transposes the weights of layers with several axes in every step, and
batches of sequences have slower gradients. The gradient of weights is the product of
transposed inputs and what comes back; of few rows XLA:CPU has its fast kernel for it
only if the inputs were transposed before.
"""

import math
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.types import Array

# From here on transposing before costs more than it saves. Milliseconds of the gradient
# of 784 x 50 weights on one core, as it is and transposed before: 50 rows .10 and .09,
# 256 rows .38 and .39, 1024 rows 1.7 and 2.5. Where the inputs come from GELU, as in
# BERT-Tiny, a transpose that XLA fused with it took 5 to 12 ms in a trace under load,
# the product 1.3; a whole step takes a tenth less CPU time without it.
MANY_ROWS = 256


def as_matrices(
    x: Array,
    kernel: Array,
    dimension_numbers: tuple[Any, Any],
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: jax.typing.DTypeLike | None = None,
) -> Array:
    """`lax.dot_general` of `x` `[..., in]` and a kernel `[in, ...]`.

    Inputs may have several axes, in both of them.
    """
    (summed, of_kernel), (batch, _) = dimension_numbers
    num_rows = x.ndim - len(summed)
    assert tuple(summed) == tuple(range(num_rows, x.ndim)), "the last axes"
    assert tuple(of_kernel) == tuple(range(len(summed))) and not batch
    # Not `asarray`: under vmap, jax 0.10 refuses constants of numpy in `custom_jvp`.
    x, kernel = jnp.array(x), jnp.array(kernel)
    rows, outputs = x.shape[:num_rows], kernel.shape[len(summed) :]
    width = math.prod(x.shape[num_rows:])
    product = _product(
        x.reshape(math.prod(rows), width),
        kernel.reshape(width, math.prod(outputs)),
        precision,
        preferred_element_type,
    )
    return product.reshape(*rows, *outputs)


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _product(
    x: Array,
    kernel: Array,
    precision: jax.lax.PrecisionLike,
    dtype: jax.typing.DTypeLike | None,
) -> Array:
    return jnp.matmul(x, kernel, precision=precision, preferred_element_type=dtype)


@_product.defjvp
def _derivative(
    precision: jax.lax.PrecisionLike,
    dtype: jax.typing.DTypeLike | None,
    primals: tuple[Array, Array],
    tangents: tuple[Array, Array],
) -> tuple[Array, Array]:
    (x, kernel), (x_dot, kernel_dot) = primals, tangents
    product = partial(
        jax.lax.dot_general, precision=precision, preferred_element_type=dtype
    )
    by_rows, by_columns = (((1,), (0,)), ((), ())), (((0,), (0,)), ((), ()))
    # A single example's gradient is no product: XLA fuses it with the update.
    if x.shape[0] == 1 or x.shape[0] >= MANY_ROWS:
        of_kernel = product(x, kernel_dot, by_rows)
    else:
        of_kernel = product(_transposed(x), kernel_dot, by_columns)
    return product(x, kernel, by_rows), product(x_dot, kernel, by_rows) + of_kernel


def _transposed(x: Array) -> Array:
    """In memory, on CPUs; elsewhere it is part of the product."""
    return jax.lax.platform_dependent(
        x,
        cpu=lambda x: jax.lax.optimization_barrier(x.T),
        default=lambda x: x.T,
    )


Dense = partial(nn.Dense, dot_general=as_matrices)


DenseGeneral = partial(nn.DenseGeneral, dot_general=as_matrices)
