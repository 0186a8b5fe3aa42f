"""Convolution and maximum pooling whose gradients stay fast inside loops on a CPU.

Inside a loop over agents XLA:CPU has fast kernels for convolutions of images by height,
width and channels only. Autodiff's weight gradient is none of these and takes 10 to 100
times as long (jax-ml/jax 12868); its pooling gradient takes twice as long. Here both
gradients of a convolution are written as such convolutions, and that of the maximum as
selections. Accelerators keep autodiff's: which is used is decided when lowering.

`pooled` has something faster for windows of two and kernels of up to five. One step of
5x5x32, 5x5x64 and 512 cells on 20 images of 28 x 28, one core: autodiff
157 ms, own convolution 15, own pooling too 11. On 32 x 32 x 3: 257, 25 and 20.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.types import Array

Pair = tuple[int, int]  # of height and width, or of both sides of one of them


_IMAGES = ("NHWC", "HWIO", "NHWC")


class Geometry(NamedTuple):
    """How a kernel moves over an image and is multiplied; all of it static."""

    stride: Pair = (1, 1)
    padding: tuple[Pair, Pair] = ((0, 0), (0, 0))
    dilation: Pair = (1, 1)  # distance between neighbouring weights
    precision: jax.lax.PrecisionLike = None


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def convolve(x: Array, kernel: Array, geometry: Geometry) -> Array:
    """Images `[B, H, W, in]` and kernel `[height, width, in, out]` to images."""
    return plain_convolution(x, kernel, geometry)


def plain_convolution(
    x: Array, kernel: Array, geometry: Geometry, spread: Pair = (1, 1)
) -> Array:
    """XLA's own; `spread` puts the pixels of `x` that far apart.

    Args:
      x: images `[B, H, W, in]`.
      kernel: `[height, width, in, out]`.
      geometry: how the kernel moves.
      spread: distance between the pixels of `x`.
    """
    return jax.lax.conv_general_dilated(
        jnp.asarray(x),
        jnp.asarray(kernel),
        geometry.stride,
        geometry.padding,
        lhs_dilation=spread,
        rhs_dilation=geometry.dilation,
        dimension_numbers=_IMAGES,
        precision=geometry.precision,
    )


def _convolve_forward(
    x: Array, kernel: Array, geometry: Geometry
) -> tuple[Array, tuple[Array, Array]]:
    return plain_convolution(x, kernel, geometry), (x, kernel)


def _convolve_backward(
    geometry: Geometry, inputs: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    def own(x: Array, kernel: Array, gradient: Array) -> tuple[Array, Array]:
        return (
            _gradient_of_images(x, kernel, gradient, geometry),
            _gradient_of_kernel(x, kernel, gradient, geometry),
        )

    def autodiff(x: Array, kernel: Array, gradient: Array) -> tuple[Array, Array]:
        _, pull_back = jax.vjp(
            lambda x, k: plain_convolution(x, k, geometry), x, kernel
        )
        return pull_back(gradient)

    return jax.lax.platform_dependent(*inputs, gradient, cpu=own, default=autodiff)


convolve.defvjp(_convolve_forward, _convolve_backward)


def _gradient_of_images(
    x: Array, kernel: Array, gradient: Array, geometry: Geometry
) -> Array:
    """Row by row of the kernel.

    Moved over all of the image at once, it would often meet only the rows of zeros with
    which a smaller result is padded.
    """
    stride, ((top, _), (left, _)), dilation, precision = geometry
    height, width = x.shape[1:3]
    spans = [stride[a] * (gradient.shape[a + 1] - 1) + 1 for a in range(2)]
    reach = dilation[1] * (kernel.shape[1] - 1)
    sides = (reach - left, width - spans[1] + left)
    across = Geometry((1, 1), ((0, 0), sides), (1, dilation[1]), precision)
    mirrored = jnp.flip(kernel, 1).swapaxes(2, 3)
    total, zero, none = jnp.zeros_like(x), jnp.zeros((), x.dtype), (0, 0, 0)
    for row in range(kernel.shape[0]):
        one_row = mirrored[row : row + 1]
        reached = plain_convolution(gradient, one_row, across, spread=(1, stride[1]))
        first = row * dilation[0] - top
        rows = (first, height - spans[0] - first, stride[0] - 1)
        total = total + jax.lax.pad(reached, zero, (none, rows, none, none))
    return total


def _gradient_of_kernel(
    x: Array, kernel: Array, gradient: Array, geometry: Geometry
) -> Array:
    """The batch is summed over, so it takes the place of the channels."""
    stride, padding, dilation, precision = geometry
    after = []
    for axis, (low, _) in enumerate(padding):
        reach = dilation[axis] * (kernel.shape[axis] - 1)
        span = stride[axis] * (gradient.shape[axis + 1] - 1)
        after.append((low, reach + span + 1 - x.shape[axis + 1] - low))
    over = Geometry(dilation, (after[0], after[1]), stride, precision)
    found = plain_convolution(
        x.transpose(3, 1, 2, 0), gradient.transpose(1, 2, 0, 3), over
    )
    return found.transpose(1, 2, 0, 3)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def max_pool(x: Array, window: Pair, strides: Pair) -> Array:
    """Largest of the pixels in each window of images `[B, H, W, C]`, unpadded.

    The gradient goes to the first of equal pixels.
    """
    return plain_pooling(x, window, strides)


def plain_pooling(x: Array, window: Pair, strides: Pair) -> Array:
    """XLA's own maximum over windows."""
    sizes, steps = (1, *window, 1), (1, *strides, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, sizes, steps, "VALID")


def _pool_forward(x: Array, window: Pair, strides: Pair) -> tuple[Array, Array]:
    return plain_pooling(x, window, strides), x


def _pool_backward(
    window: Pair, strides: Pair, x: Array, gradient: Array
) -> tuple[Array]:
    def own(x: Array, gradient: Array) -> Array:
        down, across = strides
        spans = [(gradient.shape[a + 1] - 1) * strides[a] + 1 for a in range(2)]
        places = [(i, j) for i in range(window[0]) for j in range(window[1])]
        views = [
            x[:, i : i + spans[0] : down, j : j + spans[1] : across] for i, j in places
        ]
        best, winner = views[0], jnp.zeros(gradient.shape, jnp.int16)
        for number, view in enumerate(views[1:], start=1):
            winner = jnp.where(view > best, jnp.int16(number), winner)
            best = jnp.maximum(view, best)
        total, zero = jnp.zeros_like(x), jnp.zeros((), x.dtype)
        for number, (i, j) in enumerate(places):
            rows = (i, x.shape[1] - i - spans[0], down - 1)
            columns = (j, x.shape[2] - j - spans[1], across - 1)
            won = jnp.where(winner == number, gradient, 0)
            everywhere = ((0, 0, 0), rows, columns, (0, 0, 0))
            total = total + jax.lax.pad(won, zero, everywhere)
        return total

    def autodiff(x: Array, gradient: Array) -> Array:
        return jax.vjp(lambda x: plain_pooling(x, window, strides), x)[1](gradient)[0]

    return (jax.lax.platform_dependent(x, gradient, cpu=own, default=autodiff),)


max_pool.defvjp(_pool_forward, _pool_backward)
