"""Networks as others write them, with nothing of this package in them."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from p2pjax.tasks import Network


class MnistCNN(nn.Module):
    """That of flax's MNIST example; it has 32, 64 and 256."""

    channels: tuple[int, int] = (32, 64)
    units: int = 256
    activation: Callable = nn.relu

    @nn.compact
    def __call__(self, x):
        for channels in self.channels:
            x = self.activation(nn.Conv(features=channels, kernel_size=(3, 3))(x))
            with jax.numpy_dtype_promotion("standard"):  # it divides by an int
                x = nn.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))  # flatten
        x = self.activation(nn.Dense(features=self.units)(x))
        return nn.Dense(features=10)(x)


class ResNet(nn.Module):
    """A stem, a block with identity and one with projection, as in flax's ImageNet."""

    width: int = 6

    @nn.compact
    def __call__(self, x, train: bool = False):
        def conv(features, size, strides=1):
            return nn.Conv(features, (size, size), (strides, strides), use_bias=False)

        def norm():
            return nn.BatchNorm(use_running_average=not train, momentum=0.9)

        x = nn.relu(norm()(conv(self.width, 3)(x)))
        for features, strides in ((self.width, 1), (2 * self.width, 2)):
            residual = x
            y = nn.relu(norm()(conv(features + 1, 3, strides)(x)))
            y = norm()(conv(features, 3)(y))
            if residual.shape != y.shape:
                residual = norm()(conv(features, 1, strides)(residual))
            x = nn.relu(residual + y)
        return nn.Dense(4)(jnp.mean(x, axis=(1, 2)))


class Transformer(nn.Module):
    """Embeddings and a pre-norm block of attention and feed-forward units."""

    width: int = 8
    heads: int = 3
    units: int = 10

    @nn.compact
    def __call__(self, tokens, train: bool = False):
        x = nn.Embed(11, self.width)(tokens)
        x = x + nn.Embed(32, self.width)(jnp.arange(tokens.shape[1]))[None]
        y = nn.LayerNorm()(x)
        y = nn.MultiHeadDotProductAttention(self.heads, qkv_features=self.heads * 4)(
            y, y, mask=nn.make_causal_mask(tokens)
        )
        x = x + nn.Dropout(0.1, deterministic=not train)(y)
        y = nn.gelu(nn.Dense(self.units)(nn.LayerNorm()(x)))
        x = x + nn.Dense(self.width)(y)
        return nn.Dense(5)(nn.LayerNorm()(x)[:, -1])


class LSTM(nn.Module):
    """Linen's own recurrence over vectors."""

    units: int = 6

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.RNN(nn.OptimizedLSTMCell(self.units))(x)[:, -1])


class NnxMLP(nnx.Module):
    """With batch norm and dropout, as in the NNX tutorial."""

    def __init__(self, rngs, units=(9, 7)):
        first, second = units
        self.linear_1 = nnx.Linear(5, first, rngs=rngs)
        self.norm = nnx.BatchNorm(first, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.linear_2 = nnx.Linear(first, second, rngs=rngs)
        self.linear_3 = nnx.Linear(second, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.dropout(self.norm(self.linear_1(x))))
        return self.linear_3(nnx.gelu(self.linear_2(x)))


class NnxLSTM(nnx.Module):
    """NNX keeps the four gates in one axis."""

    def __init__(self, rngs):
        self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(4, 6, rngs=rngs))
        self.linear = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.linear(self.rnn(x)[:, -1])


class Skipping(nn.Module):
    """A skip connection by concatenation, as in DenseNet and U-Net."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3))(x))
        y = nn.relu(nn.Conv(5, (3, 3))(x))
        z = nn.relu(nn.Conv(6, (1, 1))(jnp.concatenate([x, y], -1)))
        return nn.Dense(3)(z.mean((1, 2)))


class Fused(nn.Module):
    """Query, key and value of all heads in one axis, and a gated unit."""

    width: int = 8

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.width)(x)
        batch, length, _ = x.shape
        qkv = nn.Dense(3 * 2 * 4)(nn.RMSNorm()(x))
        q, k, v = (
            part.reshape(batch, length, 2, 4) for part in jnp.split(qkv, 3, axis=-1)
        )
        weights = nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        read = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, -1)
        x = x + nn.Dense(self.width)(read)
        gate, value = jnp.split(nn.Dense(2 * 5)(x), 2, axis=-1)
        return nn.Dense(3)((nn.silu(gate) * value).mean(1))


class PReluMLP(nn.Module):
    """One slope of all activations."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.PReLU()(nn.Dense(6)(x)))


class Normalised(nn.Module):
    """A layer norm over hidden units, and units that no mean runs over."""

    units: tuple[int, int] = (6, 5)

    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(nn.Dense(self.units[0])(x))
        return nn.Dense(3)(nn.sigmoid(nn.Dense(self.units[1])(x)))


def plain_mlp(sizes=(5, 6, 3)):
    """Functions of a list of weights."""

    def init(key):
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
        return [
            {"w": jax.random.normal(k, (m, n)), "b": jnp.zeros(n)} for k, m, n in pairs
        ]

    def apply(params, x):
        for layer in params[:-1]:
            x = jnp.tanh(x @ layer["w"] + layer["b"][None])
        return x @ params[-1]["w"] + params[-1]["b"][None]

    return Network(init, apply)
