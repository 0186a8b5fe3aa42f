"""Convolutional network whose sibling channels are cells.

The two networks for CIFAR-10 of Sajina (2025), "Deep Learning Personalization Methods
in Peer-to-peer Heterogeneous Systems": as in the authors' code and as in their table.
"""

from collections.abc import Callable, Sequence

import flax.linen as nn

from p2pjax.nn.cells import ABSENT_LOGIT, cell_mask, mask_absent
from p2pjax.nn.kernels.dense import Dense, DenseGeneral
from p2pjax.nn.kernels.pooled import PooledConvolution
from p2pjax.types import Array, InputError, Wiring


def as_images(x: Array) -> Array:
    """`[B, H, W, channels]`; images without channels have one.

    Args:
      x: `[B, H, W]` or `[B, H, W, channels]`.
    """
    if x.ndim not in (3, 4):
        raise InputError(
            f"Need images of height and width for convolutions, got examples of shape "
            f"{x.shape[1:]}: choose other data or another network."
        )
    return x[..., None] if x.ndim == 3 else x


class CNN(nn.Module):
    """Convolutions with pooling, dense layers, logits: `layer_1` .. `layer_L`.

    Part 0 are the channels of the image. The first layer after the convolutions keeps
    its kernel as `[positions, channels, features]`, so that a channel is one axis.
    Agents may have fewer cells than the stacked arrays hold (`nn.cells`), but at
    least one of every part.

    >>> import jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> network, images = pj.nn.CNN((6,), (20,), 10), jnp.ones((4, 28, 28, 1))
    >>> logits, _ = jax.jit(network.init_with_output)(jax.random.key(0), images)
    >>> logits.shape
    (4, 10)

    Attributes:
      conv_features: channels of every convolution.
      dense_features: cells of every hidden dense layer.
      num_classes: outputs.
      kernel_size: height and width of every kernel; no padding.
      pool: height, width and stride of the maximum after every convolution.
      activation: of the hidden cells.
    """

    conv_features: Sequence[int]
    dense_features: Sequence[int]
    num_classes: int
    kernel_size: int = 5
    pool: int = 2
    activation: Callable[[Array], Array] = nn.relu

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, num_classes]` of images `[B, H, W, channels]` or `[B, H, W]`."""
        init = nn.initializers.glorot_uniform()
        hidden = as_images(x)
        for layer, features in enumerate(self.conv_features, start=1):
            self._check_size(layer, hidden.shape)
            hidden = PooledConvolution(
                features,
                self.kernel_size,
                self.pool,
                self.activation,
                kernel_init=init,
                name=f"layer_{layer}",
            )(hidden)
            hidden = mask_absent(hidden, cell_mask(self, layer))
        batch_size, height, width, channels = hidden.shape
        hidden = hidden.reshape(batch_size, height * width, channels)
        axis: int | tuple[int, ...] = (1, 2)
        for layer, features in enumerate(
            (*self.dense_features, self.num_classes), start=len(self.conv_features) + 1
        ):
            output = DenseGeneral(
                features, axis=axis, kernel_init=init, name=f"layer_{layer}"
            )(hidden)
            cells = cell_mask(self, layer)
            if layer == _num_layers(self):
                return mask_absent(output, cells, missing=ABSENT_LOGIT)
            hidden, axis = mask_absent(self.activation(output), cells), -1
        return hidden

    def _check_size(self, layer: int, shape: tuple[int, ...]) -> None:
        smallest = self.kernel_size + self.pool - 1
        if min(shape[1:3]) < smallest:
            raise InputError(
                f"Need at least {smallest} x {smallest} positions before convolution "
                f"{layer}, got {shape[1]} x {shape[2]}: use larger images, a smaller "
                "kernel_size or pool, or fewer convolutions."
            )


class ImageModel(nn.Module):
    """An encoder of images and the head of a task, as subtrees `encoder` and `head`.

    Agents of different tasks share the encoder only (`multi_task`): what an image looks
    like, whatever it is that they have to say about it.

    >>> import jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> network = pj.nn.ImageModel(pj.nn.CNN((6,), (), 20), 10)
    >>> logits, variables = jax.jit(network.init_with_output)(
    ...     jax.random.key(0), jnp.ones((4, 28, 28, 1))
    ... )
    >>> logits.shape, sorted(variables["params"])
    ((4, 10), ['encoder', 'head'])

    Attributes:
      encoder: features `[B, n]` of images.
      num_classes: outputs of the head.
      activation: of the features.
    """

    encoder: nn.Module
    num_classes: int
    activation: Callable[[Array], Array] = nn.relu

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, num_classes]` of images, as the encoder takes them."""
        features = self.activation(self.encoder(x))
        init = nn.initializers.glorot_uniform()
        return Dense(self.num_classes, kernel_init=init, name="head")(features)


def cifar_cnn_code() -> CNN:
    """LeNet-like network for 32 x 32 x 3 images as the authors ran it.

    52,202 parameters.

    >>> import p2pjax as pj
    >>> pj.nn.cifar_cnn_code().dense_features
    (120,)
    """
    return CNN((6, 16), (120,), 10, kernel_size=5, pool=2)


def cifar_cnn_table() -> CNN:
    """The same network as printed in their table.

    6,338 parameters.

    >>> import jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> network, images = pj.nn.cifar_cnn_table(), jnp.ones((4, 32, 32, 3))
    >>> logits, _ = jax.eval_shape(network.init_with_output, jax.random.key(0), images)
    >>> logits.shape
    (4, 10)
    """
    return CNN((6, 16), (128,), 10, kernel_size=5, pool=3)


def wiring(module: CNN) -> Wiring:
    """Which part's cells lie along which axis; part 0 is the channels of the image."""
    num_convs = len(module.conv_features)
    leaves: Wiring = {}
    for layer in range(1, _num_layers(module) + 1):
        if layer <= num_convs:
            kernel: tuple[int | None, ...] = (None, None, layer - 1, layer)
        elif layer == num_convs + 1:
            kernel = (None, layer - 1, layer)
        else:
            kernel = (layer - 1, layer)
        leaves[f"layer_{layer}/kernel"] = kernel
        leaves[f"layer_{layer}/bias"] = (layer,)
    return leaves


def _num_layers(module: CNN) -> int:
    return len(module.conv_features) + len(module.dense_features) + 1
