"""Convolutional networks whose weights are normal, with a server's column or without.

The layers of `nn.cnn.CNN`; equation 4 of Corinzia, Buhmann (2019), "Variational
federated multi-task learning", with convolutions in the place of products and a gate
per channel. Signs of flipout are of channels (Wen et al. 2018, 3.1).
"""

from collections.abc import Sequence

import flax.linen as nn

from p2pjax.nn.cnn import as_images
from p2pjax.nn.kernels.convolution import max_pool
from p2pjax.nn.variational import GATES, Dense, LateralDense, Weights, gates_between
from p2pjax.types import Array, InputError


class Convolution(Weights):
    """A convolution without its activation.

    Attributes:
      features: channels of the result.
      size: height and width of the kernel; no padding.
    """

    features: int
    size: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        output = self.convolution("kernel", x, self.features, self.size)
        bias = self.vector("bias", nn.initializers.zeros, self.features)
        return output + bias[None, None, None]


class LateralConvolution(Weights):
    """A client's convolution, which reads the same layer of the server as its own.

    Attributes:
      features: channels of the result.
      size: height and width of the kernels; no padding.
      gates: between which gates start.
    """

    features: int
    size: int
    gates: tuple[float, float] = GATES

    @nn.compact
    def __call__(self, client: Array, server: Array) -> Array:
        zeros = nn.initializers.zeros
        shift = self.vector("lateral_bias", zeros, server.shape[-1])
        read = nn.relu(server + shift[None, None, None])
        lateral = self.convolution("lateral", read, self.features, self.size)
        gate = self.vector("gate", gates_between(self.gates), self.features)
        own = self.convolution("kernel", client, self.features, self.size)
        bias = self.vector("bias", zeros, self.features)
        return own + gate[None, None, None] * lateral + bias[None, None, None]


class VariationalCNN(nn.Module):
    """Convolutions with pooling, dense layers, logits: `layer_1` .. `layer_L`.

    Attributes:
      conv_features: channels of every convolution.
      dense_features: cells of every dense layer, the logits last.
      kernel_size: height and width of every kernel; no padding.
      pool: height, width and stride of the maximum after every convolution.
    """

    conv_features: Sequence[int]
    dense_features: Sequence[int]
    kernel_size: int = 5
    pool: int = 2

    @nn.compact
    def __call__(self, x: Array) -> Array:
        hidden, layer = as_images(x), 0
        for features in self.conv_features:
            layer += 1
            check_positions(hidden, self.kernel_size, self.pool)
            made = Convolution(features, self.kernel_size, name=f"layer_{layer}")
            hidden = pooled(made(hidden), self.pool)
        hidden = hidden.reshape(len(hidden), -1)
        for number, features in enumerate(self.dense_features, start=1):
            hidden = Dense(features, name=f"layer_{layer + number}")(hidden)
            if number < len(self.dense_features):
                hidden = nn.relu(hidden)
        return hidden


class ColumnsCNN(nn.Module):
    """A server's column and a client's beside it, which alone gives logits.

    As `variational.Columns`: a client's layer reads the server's layer below it.

    Attributes:
      conv_features: channels of every convolution.
      dense_features: cells of every dense layer, the logits last.
      kernel_size: height and width of every kernel; no padding.
      pool: height, width and stride of the maximum after every convolution.
      gates: between which the gates of what clients read start, uniformly.
    """

    conv_features: Sequence[int]
    dense_features: Sequence[int]
    kernel_size: int = 5
    pool: int = 2
    gates: tuple[float, float] = GATES

    @nn.compact
    def __call__(self, x: Array) -> Array:
        sizes = (
            self.conv_features,
            self.dense_features,
            self.kernel_size,
            self.pool,
        )
        heights = _ServerCNN(*sizes, name="server")(as_images(x))
        return _ClientCNN(*sizes, self.gates, name="client")(heights)


class _ServerCNN(nn.Module):
    """All heights below the logits; the input first."""

    conv_features: Sequence[int]
    dense_features: Sequence[int]
    kernel_size: int
    pool: int

    @nn.compact
    def __call__(self, x: Array) -> list[Array]:
        heights = [x]
        for layer, features in enumerate(self.conv_features, start=1):
            check_positions(heights[-1], self.kernel_size, self.pool)
            made = Convolution(features, self.kernel_size, name=f"layer_{layer}")
            heights.append(pooled(made(heights[-1]), self.pool))
        layer = len(self.conv_features)
        for number, features in enumerate(self.dense_features[:-1], start=1):
            made_dense = Dense(features, name=f"layer_{layer + number}")
            below = heights[-1].reshape(len(x), -1)
            heights.append(nn.relu(made_dense(below)))
        return heights


class _ClientCNN(nn.Module):
    """A client's network beside all heights of the server's."""

    conv_features: Sequence[int]
    dense_features: Sequence[int]
    kernel_size: int
    pool: int
    gates: tuple[float, float]

    @nn.compact
    def __call__(self, server: Sequence[Array]) -> Array:
        hidden = server[0]
        for layer, features in enumerate(self.conv_features, start=1):
            made = LateralConvolution(
                features, self.kernel_size, self.gates, name=f"layer_{layer}"
            )
            hidden = pooled(made(hidden, server[layer - 1]), self.pool)
        layer = len(self.conv_features)
        hidden = hidden.reshape(len(hidden), -1)
        for number, features in enumerate(self.dense_features, start=1):
            read = server[layer + number - 1].reshape(len(hidden), -1)
            dense = LateralDense(features, self.gates, name=f"layer_{layer + number}")
            hidden = dense(hidden, read)
            if number < len(self.dense_features):
                hidden = nn.relu(hidden)
        return hidden


def check_positions(x: Array, kernel_size: int, pool: int) -> None:
    """Refuses images that leave nothing to pool.

    Args:
      x: `[B, H, W, channels]` before a convolution.
      kernel_size: of its kernel.
      pool: of the maximum after it.
    """
    smallest = kernel_size + pool - 1
    if min(x.shape[1:3]) < smallest:
        raise InputError(
            f"Need at least {smallest} x {smallest} positions before a convolution, "
            f"got {x.shape[1]} x {x.shape[2]}: use larger images or fewer convolutions."
        )


def pooled(x: Array, pool: int) -> Array:
    """ReLU and the maximum over windows.

    Args:
      x: `[B, H, W, channels]`.
      pool: height, width and stride of the windows.
    """
    return max_pool(nn.relu(x), (pool, pool), (pool, pool))
