"""A CNN with batch norm as users write it, in Linen and in NNX.

The twins of `p2pjax.nn.BatchNormCNN`, with nothing of this package in them.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
from flax import nnx

from experiments.bench.inputs import NUM_CLASSES, Network
from p2pjax.nn import BatchNormCNN
from p2pjax.types import Array

KERNEL_SIZE = (3, 3)


class LinenCNN(nn.Module):
    """Convolution, batch norm, ReLU and pooling, repeated; dense layers; logits."""

    channels: Sequence[int]
    dense: Sequence[int]

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        """Logits of images `[B, H, W, channels]`."""
        for channels in self.channels:
            x = nn.Conv(channels, KERNEL_SIZE)(x)
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        for units in self.dense:
            x = nn.relu(nn.Dense(units)(x))
        return nn.Dense(NUM_CLASSES)(x)


class NNXCNN(nnx.Module):
    """The same."""

    def __init__(self, network: Network, rngs: nnx.Rngs):
        height, width, before = network["image"]
        convolutions, norms = [], []
        for channels in network["channels"]:
            convolutions.append(nnx.Conv(before, channels, KERNEL_SIZE, rngs=rngs))
            norms.append(nnx.BatchNorm(channels, momentum=0.9, rngs=rngs))
            height, width, before = height // 2, width // 2, channels
        widths = [height * width * before, *network["dense"], NUM_CLASSES]
        dense = [
            nnx.Linear(inputs, outputs, rngs=rngs)
            for inputs, outputs in itertools.pairwise(widths)
        ]
        self.convolutions, self.norms = nnx.List(convolutions), nnx.List(norms)
        self.dense = nnx.List(dense)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits of images `[B, H, W, channels]`."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = nnx.max_pool(nnx.relu(norm(convolution(x))), (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        *hidden, last = self.dense
        for layer in hidden:
            x = nnx.relu(layer(x))
        return last(x)


# By the name in `network["written"]`.
WRITTEN: dict[str, Callable[[Network], Any]] = {
    "package": lambda network: BatchNormCNN(
        network["channels"], network["dense"], NUM_CLASSES
    ),
    "linen": lambda network: LinenCNN(network["channels"], network["dense"]),
    "nnx": lambda network: lambda rngs: NNXCNN(network, rngs),
}
