"""Dense layers of several axes as one product of matrices.

Otherwise XLA:CPU transposes their weights in every step, and batches of sequences have
slower gradients.
"""

import math
from functools import partial
from typing import Any

import flax.linen as nn
import jax

from p2pjax.types import Array


def as_matrices(
    x: Array,
    kernel: Array,
    dimension_numbers: tuple[Any, Any],
    precision: jax.lax.PrecisionLike = None,
    **options: Any,
) -> Array:
    """`lax.dot_general` of `x` `[..., in]` and a kernel `[in, ...]`.

    Inputs may have several axes, in both of them.
    """
    (summed, of_kernel), (batch, _) = dimension_numbers
    num_rows = x.ndim - len(summed)
    assert tuple(summed) == tuple(range(num_rows, x.ndim)), "the last axes"
    assert tuple(of_kernel) == tuple(range(len(summed))) and not batch
    rows, outputs = x.shape[:num_rows], kernel.shape[len(summed) :]
    width = math.prod(x.shape[num_rows:])
    product = jax.lax.dot_general(
        x.reshape(math.prod(rows), width),
        kernel.reshape(width, math.prod(outputs)),
        (((1,), (0,)), ((), ())),
        precision,
        **options,
    )
    return product.reshape(*rows, *outputs)


Dense = partial(nn.Dense, dot_general=as_matrices)
DenseGeneral = partial(nn.DenseGeneral, dot_general=as_matrices)
