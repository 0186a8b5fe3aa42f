"""A convolution and the maximum pooling after it, in one layer.

Where channels are few, XLA:CPU's convolutions have little to do per pixel. There, and
on CPUs only, the layer is a matrix product: blocks of `pool` x `pool` pixels become
channels, before and after, and the surroundings of every block a column. So all results
of a pooling window lie in one column, channels come first, and elementwise work runs
along pixels, which are many. Gradients are autodiff's, in both directions.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.models.convolution import (
    Geometry,
    convolve,
    max_pool,
    plain_convolution,
    plain_pooling,
)
from p2pjax.types import Array

# Up to so many features a pooling by two is faster as a matrix product on a CPU. A step
# of 6 and 16 channels and 120 cells on 32 images of 32 x 32 x 3, in turns on one core:
# 3.7 ms, and 5.0 by XLA's convolutions of the same blocks, which had taken 5.4 where
# plain ones took 10. From 32 channels on plain ones are faster.
FEW_CHANNELS = 16
NEVER_FALLING = (nn.relu, nn.sigmoid, nn.tanh)  # the largest stays so under these


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
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        is_small = self.features <= FEW_CHANNELS and self.pool == 2

        def in_products(x: Array, kernel: Array, bias: Array) -> Array:
            windows, sizes = in_windows(x.transpose(3, 0, 1, 2), kernel, self.pool)
            best = self.activation(window_max(windows) + bias.reshape(-1, 1))
            return best.reshape(-1, len(x), *sizes).transpose(1, 2, 3, 0)

        def plainly(x: Array, kernel: Array, bias: Array) -> Array:
            out = plain_convolution(x, kernel, Geometry()) + bias.reshape(1, 1, 1, -1)
            return plain_pooling(self.activation(out), self.pool, self.pool)

        if is_small and self.activation in NEVER_FALLING:
            return jax.lax.platform_dependent(
                x, kernel, bias, cpu=in_products, default=plainly
            )
        out = convolve(x, kernel, Geometry()) + bias.reshape(1, 1, 1, -1)
        return max_pool(self.activation(out), self.pool, self.pool)


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
    out = _of_windows(kernel, pool, spans) @ columns
    return out.reshape(pool * pool, kernel.shape[3], -1), sizes


def _blocks(x: Array, size: int) -> Array:
    """`[C, B, H, W]` to `[size * size * C, B, H / size, W / size]`."""
    channels, batch, height, width = x.shape
    x = x.reshape(channels, batch, height // size, size, width // size, size)
    x = x.transpose(3, 5, 0, 1, 2, 4)
    return x.reshape(-1, batch, height // size, width // size)


def _surroundings(x: Array, height: int, width: int) -> Array:
    """`[C, B, H, W]` to `[width * height * C, B * H' * W']`."""
    rows, columns = x.shape[2] - height + 1, x.shape[3] - width + 1
    x = jnp.concatenate([x[:, :, i : i + rows] for i in range(height)])
    x = jnp.concatenate([x[..., j : j + columns] for j in range(width)])
    return x.reshape(len(x), -1)


def _of_windows(kernel: Array, pool: int, spans: list[int]) -> Array:
    """Weights `[pool * pool * out, width * height * pool * pool * in]` of blocks.

    The kernel at every place of a window, with zeros around it.
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
    return split.transpose(0, 6, 3, 1, 2, 4, 5).reshape(pool * pool * num_out, -1)


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
