"""The package's convolution for flax networks: fast in loops over agents on CPUs.

Inside a loop XLA:CPU has no fast kernel for autodiff's weight gradient of a
convolution, which then takes 10 to 100 times as long as need be
(https://github.com/jax-ml/jax/issues/12868). A whole training step of two flax layers
`nn.Conv` of 16 and 32 channels with batch norm, on 20 images of 28 x 28 in the in-place
agent loop on one core: 46 ms as they are, 9 ms with `fast_conv`. Tasks use it for the
convolutions of every network (`fast_gradients`).
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from p2pjax.nn.kernels.convolution import Geometry, convolve
from p2pjax.types import Array


def fast_conv(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: jax.typing.DTypeLike | None = None,
    out_sharding: Any = None,
) -> Array:
    """`jax.lax.conv_general_dilated` with fast gradients in the agent loop on CPUs.

    Values and gradients are those of `jax.lax` up to rounding, on every platform.
    Convolutions over three axes, of groups of channels (`feature_group_count`), with a
    dilated input or with other dimension numbers than flax's are left to `jax.lax`, and
    so are their gradients. Forward-mode derivatives are not defined
    (`jax.custom_vjp`).

    >>> import flax.linen as nn, jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> layer = nn.Conv(16, (3, 3), conv_general_dilated=pj.nn.fast_conv)
    >>> images = jnp.ones((2, 8, 8, 1))
    >>> layer.init_with_output(jax.random.key(0), images)[0].shape
    (2, 8, 8, 16)

    An NNX layer takes it in the same way:
    `nnx.Conv(1, 16, (3, 3), conv_general_dilated=pj.nn.fast_conv, rngs=rngs)`.

    Args:
      lhs: images, `[B, H, W, in]` as flax has them, or sequences `[B, T, in]`.
      rhs: kernel, `[height, width, in, out]` as flax has it, or `[length, in, out]`.
      window_strides: of height and width, or of time.
      padding: "SAME", "SAME_LOWER", "VALID", or before and after height and width.
      lhs_dilation: of the images.
      rhs_dilation: of the kernel.
      dimension_numbers: see `jax.lax.conv_dimension_numbers`.
      feature_group_count: groups of channels.
      batch_group_count: groups of examples.
      precision: see `jax.lax.Precision`.
      preferred_element_type: dtype of the result.
      out_sharding: of the result.

    Returns:
      Images `[B, H', W', out]`.
    """

    def plainly(lhs: Array, rhs: Array) -> Array:
        return jax.lax.conv_general_dilated(
            jnp.asarray(lhs),
            jnp.asarray(rhs),
            window_strides,
            padding,
            lhs_dilation,
            rhs_dilation,
            dimension_numbers,
            feature_group_count,
            batch_group_count,
            precision,
            preferred_element_type,
            out_sharding,
        )

    axes = jax.lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
    num_axes = lhs.ndim - 2
    is_covered = (
        num_axes in (1, 2)
        and axes.lhs_spec == axes.out_spec == image_axes(num_axes)
        and axes.rhs_spec == kernel_axes(num_axes)
        and all(step == 1 for step in lhs_dilation or ())
        and feature_group_count == batch_group_count == 1
        and preferred_element_type is None
        and out_sharding is None
    )
    # lax also refuses shapes that do not fit, and has gradients of empty results.
    if not is_covered or jax.eval_shape(plainly, lhs, rhs).size == 0:
        return plainly(lhs, rhs)
    if num_axes == 1:  # an image of one row
        if not isinstance(padding, str):
            padding = [(0, 0), *padding]
        row = fast_conv(
            lhs[:, None],
            rhs[None],
            (1, *window_strides),
            padding,
            rhs_dilation=(1, *(rhs_dilation or (1,))),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision=precision,
        )
        return row[:, 0]
    stride, dilation = _pair(window_strides), _pair(rhs_dilation or (1, 1))
    if isinstance(padding, str):
        reach = [dilation[axis] * (rhs.shape[axis] - 1) + 1 for axis in range(2)]
        padding = jax.lax.padtype_to_pads(lhs.shape[1:3], reach, stride, padding)
    (top, bottom), (left, right) = padding
    sides = (int(top), int(bottom)), (int(left), int(right))
    return convolve(lhs, rhs, Geometry(stride, sides, dilation, precision))


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    height, width = numbers
    return int(height), int(width)


def image_axes(num_axes: int) -> tuple[int, ...]:
    """Examples, channels, places: where flax has them."""
    return 0, num_axes + 1, *range(1, num_axes + 1)


def kernel_axes(num_axes: int) -> tuple[int, ...]:
    """Outputs, inputs, places: where flax has them."""
    return num_axes + 1, num_axes, *range(num_axes)
