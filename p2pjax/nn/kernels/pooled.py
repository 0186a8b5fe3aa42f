"""A convolution and the maximum pooling after it, in one layer.

On CPUs, and there only, it is made of products of matrices, which are faster than
XLA:CPU's convolutions. Blocks of `pool` x `pool` pixels become channels, before and
after, and the surroundings of every block a column: all results of a pooling window lie
in one column, channels come first, and elementwise work runs along pixels, which are
many. Weights multiply such columns as they are, or, where channels are many, at the
points of `winograd`. Gradients are autodiff's, in both directions.

Milliseconds of forward pass and both gradients on 20 images, in turns on one core, by
height of the kernel, channels before and after, and height of the images:

                     5  3  32  32    5  8  16  14    5  32  64  14    3  32  64  14
 own convolution           5.2             2.1             16.6             6.5
 products of columns       3.4             1.4             17.7             7.6
 at points                 8.7             1.4             11.4             3.8
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.nn.kernels import winograd
from p2pjax.nn.kernels.convolution import (
    Geometry,
    convolve,
    max_pool,
    plain_convolution,
    plain_pooling,
)
from p2pjax.types import Array

MANY_CHANNELS = 8  # of the inputs: from here on points are as fast as columns


MONOTONE_ACTIVATIONS = (
    nn.relu,
    nn.sigmoid,
    nn.tanh,
)  # the largest stays so under these


class PooledConvolution(nn.Module):
    """A convolution without padding, a bias, an activation and maximum pooling.

    Attributes:
      features: channels of the result.
      kernel_size: height and width of the kernel.
      pool: height, width and stride of the windows of the maximum.
      activation: of its results.
      kernel_init: of the kernel.
    """

    features: int
    kernel_size: int
    pool: int
    activation: Callable[[Array], Array] = nn.relu
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Images `[B, H, W, channels]` to `[B, H', W', features]`."""
        shape = (self.kernel_size, self.kernel_size, x.shape[-1], self.features)
        window = self.pool, self.pool
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        as_matrices = self.pool == 2 and (
            x.shape[-1] < MANY_CHANNELS or _has_points(kernel, self.pool)
        )

        def in_products(x: Array, kernel: Array, bias: Array) -> Array:
            windows, sizes = in_windows(x.transpose(3, 0, 1, 2), kernel, self.pool)
            best = self.activation(window_max(windows) + bias.reshape(-1, 1))
            best = best.reshape(self.features, len(x), *sizes)
            return best.transpose(1, 2, 3, 0)

        def plainly(x: Array, kernel: Array, bias: Array) -> Array:
            out = plain_convolution(x, kernel, Geometry()) + bias.reshape(1, 1, 1, -1)
            return plain_pooling(self.activation(out), window, window)

        if as_matrices and self.activation in MONOTONE_ACTIVATIONS:
            return jax.lax.platform_dependent(
                x, kernel, bias, cpu=in_products, default=plainly
            )
        out = convolve(x, kernel, Geometry()) + bias.reshape(1, 1, 1, -1)
        return max_pool(self.activation(out), window, window)


def in_windows(x: Array, kernel: Array, pool: int) -> tuple[Array, list[int]]:
    """A convolution whose results are grouped as maximum pooling wants them.

    Args:
      x: images, channels first: `[in, B, H, W]`.
      kernel: `[height, width, in, out]`.
      pool: height, width and stride of the windows.

    Returns:
      All that fall into each of the windows, `[pool * pool, out, B * H' * W']`, and
      (H', W').
    """
    sizes = [(x.shape[2 + a] - kernel.shape[a] + 1) // pool for a in range(2)]
    spans = [-(-(kernel.shape[a] + pool - 1) // pool) for a in range(2)]  # in blocks
    needed = [(sizes[a] + spans[a] - 1) * pool for a in range(2)]
    x = x[:, :, : needed[0], : needed[1]]
    more = [(0, needed[a] - x.shape[2 + a]) for a in range(2)]
    x = jnp.pad(x, ((0, 0), (0, 0), *more))
    columns = _surroundings(_blocks(x, pool), spans[0], spans[1])
    many = kernel.shape[2] >= MANY_CHANNELS
    multiply = _at_points if many and _has_points(kernel, pool) else _directly
    out = multiply(columns, kernel, pool, spans)
    return out.reshape(pool * pool, kernel.shape[3], columns.shape[1]), sizes


def _blocks(x: Array, size: int) -> Array:
    """`[C, B, H, W]` to `[size * size * C, B, H / size, W / size]`."""
    channels, batch, height, width = x.shape
    x = x.reshape(channels, batch, height // size, size, width // size, size)
    x = x.transpose(3, 5, 0, 1, 2, 4)
    return x.reshape(size * size * channels, batch, height // size, width // size)


def _surroundings(x: Array, height: int, width: int) -> Array:
    """`[C, B, H, W]` to `[width * height * C, B * H' * W']`."""
    rows, columns = x.shape[2] - height + 1, x.shape[3] - width + 1
    x = jnp.concatenate([x[:, :, i : i + rows] for i in range(height)])
    x = jnp.concatenate([x[..., j : j + columns] for j in range(width)])
    return x.reshape(len(x), x.shape[1] * rows * columns)


def _has_points(kernel: Array, pool: int) -> bool:
    """Whether there are enough points; half precision has too few digits for them."""
    enough = all(winograd.has_points(pool, size) for size in kernel.shape[:2])
    return enough and kernel.dtype.itemsize >= 4


def _directly(columns: Array, kernel: Array, pool: int, spans: list[int]) -> Array:
    """Results of all windows, `[pool * pool * out, B * H' * W']`.

    The weights of a row are the kernel at one place of a window, with zeros around it.

    Args:
      columns: `[width * height * pool * pool * in, B * H' * W']`, in blocks.
      kernel: `[height, width, in, out]`.
      pool: height, width and stride of the windows.
      spans: height and width of a column, in blocks.
    """
    sides = [spans[a] * pool - kernel.shape[a] for a in range(2)]
    shifted = jnp.stack(
        [
            jnp.pad(kernel, ((i, sides[0] - i), (j, sides[1] - j), (0, 0), (0, 0)))
            for i in range(pool)
            for j in range(pool)
        ]
    )
    num_in, num_out = kernel.shape[2:]
    split = shifted.reshape(-1, spans[0], pool, spans[1], pool, num_in, num_out)
    weights = split.transpose(0, 6, 3, 1, 2, 4, 5)
    return weights.reshape(pool * pool * num_out, -1) @ columns


def _at_points(columns: Array, kernel: Array, pool: int, spans: list[int]) -> Array:
    """The same with fewer multiplications, see `winograd`."""
    axes = [winograd.transforms(pool, size) for size in kernel.shape[:2]]
    results, weights, inputs = (
        np.kron(down, across) for down, across in zip(*axes, strict=True)
    )
    inputs = _in_blocks(inputs, [len(axis.inputs) for axis in axes], pool, spans)
    num_points, num_places = inputs.shape
    num_in, num_out = kernel.shape[2:]
    num_windows = columns.shape[1]
    here = _product(inputs, columns.reshape(num_places, num_in * num_windows))
    there = _product(weights, kernel.reshape(weights.shape[1], -1))
    products = jnp.matmul(
        there.reshape(num_points, num_in, num_out).swapaxes(1, 2),
        here.reshape(num_points, num_in, num_windows),
    )
    return _product(results, products.reshape(num_points, num_out * num_windows))


def _in_blocks(
    matrix: np.ndarray, sizes: list[int], pool: int, spans: list[int]
) -> np.ndarray:
    """Sorts its columns, places `sizes`, as places lie in columns of blocks.

    Those of the last block that no window reaches are 0.
    """
    beyond = [spans[a] * pool - sizes[a] for a in range(2)]
    places = matrix.reshape(-1, *sizes)
    places = np.pad(places, ((0, 0), (0, beyond[0]), (0, beyond[1])))
    places = places.reshape(-1, spans[0], pool, spans[1], pool)
    return places.transpose(0, 3, 1, 2, 4).reshape(len(matrix), -1)


def _product(matrix: np.ndarray, x: Array) -> Array:
    return jnp.asarray(matrix, x.dtype) @ x


@jax.custom_jvp
def window_max(x: Array) -> Array:
    """Largest of `[W, ...]` over W; the gradient goes to the first of equal ones."""
    return x.max(0)


@window_max.defjvp
def _window_derivative(
    primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    places = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    is_first = places == x.argmax(0)[None].astype(jnp.int32)
    return x.max(0), jnp.where(is_first, tangent, 0).sum(0)
