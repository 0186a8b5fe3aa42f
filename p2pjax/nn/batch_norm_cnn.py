"""Convolutional network with batch norm after each convolution.

For methods that treat batch norm apart (P2P-BN, FedBN, SiloBN) on images. Ioffe,
Szegedy (2015), "Batch normalization", https://arxiv.org/abs/1502.03167.
"""

from collections.abc import Callable, Sequence

import flax.linen as nn

from p2pjax.nn.cells import ABSENT_LOGIT, cell_mask, mask_absent
from p2pjax.nn.cnn import as_images
from p2pjax.nn.fast_convolution import fast_conv
from p2pjax.nn.kernels.convolution import max_pool
from p2pjax.nn.kernels.dense import DenseGeneral
from p2pjax.types import Array, InputError, Wiring


class BatchNormCNN(nn.Module):
    """Convolution, batch norm, activation and pooling, repeated; dense layers; logits.

    The layers are `layer_1` .. `layer_L`, their norms `layer_1_norm` ..; the norms are
    flax's, with trainable scale and bias and running statistics in `batch_stats`. The
    first layer after the convolutions keeps its kernel as `[positions, channels,
    features]`, so that a channel is one axis. Agents may have fewer cells than the
    stacked arrays hold (`nn.cells`), but at least one of every part.

    >>> import jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> network, images = pj.nn.BatchNormCNN((8,), (), 10), jnp.ones((4, 8, 8, 1))
    >>> variables = jax.jit(network.init)(jax.random.key(0), images)
    >>> network.apply(variables, images).shape
    (4, 10)
    >>> logits, new = network.apply(
    ...     variables, images, train=True, mutable=["batch_stats"]
    ... )
    >>> sorted(new["batch_stats"])
    ['layer_1_norm']

    Attributes:
      conv_features: channels of each convolution.
      dense_features: cells of each hidden dense layer.
      num_classes: outputs.
      kernel_size: height and width of each kernel; zeros are padded so that the image
        keeps its size.
      pool: height, width and stride of the maximum after each convolution.
      activation: of the hidden cells.
      momentum: what the running statistics keep in a training step.
      epsilon: added to the variances.
    """

    conv_features: Sequence[int]
    dense_features: Sequence[int]
    num_classes: int
    kernel_size: int = 3
    pool: int = 2
    activation: Callable[[Array], Array] = nn.relu
    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        """Logits `[B, num_classes]`.

        Args:
          x: images `[B, H, W, channels]` or, of one channel, `[B, H, W]`.
          train: normalise by the batch and update the running statistics, which the
            call has to make mutable.
        """
        init = nn.initializers.glorot_uniform()
        hidden = as_images(x)
        self._check_size(hidden.shape)
        for layer, features in enumerate(self.conv_features, start=1):
            hidden = nn.Conv(
                features,
                (self.kernel_size, self.kernel_size),
                use_bias=False,  # batch norm would subtract it; it has its own
                kernel_init=init,
                conv_general_dilated=fast_conv,
                name=f"layer_{layer}",
            )(hidden)
            hidden = nn.BatchNorm(
                use_running_average=not train,
                momentum=self.momentum,
                epsilon=self.epsilon,
                name=f"layer_{layer}_norm",
            )(hidden)
            hidden = max_pool(
                self.activation(hidden), (self.pool,) * 2, (self.pool,) * 2
            )
            hidden = mask_absent(hidden, cell_mask(self, layer))
        batch_size, height, width, channels = hidden.shape
        hidden = hidden.reshape(batch_size, height * width, channels)
        axis: int | tuple[int, ...] = (1, 2)
        first = len(self.conv_features) + 1
        for layer, features in enumerate(self.dense_features, start=first):
            dense = DenseGeneral(
                features, axis=axis, kernel_init=init, name=f"layer_{layer}"
            )
            hidden = mask_absent(self.activation(dense(hidden)), cell_mask(self, layer))
            axis = -1
        last = first + len(self.dense_features)
        logits = DenseGeneral(
            self.num_classes, axis=axis, kernel_init=init, name=f"layer_{last}"
        )(hidden)
        return mask_absent(logits, cell_mask(self, last), missing=ABSENT_LOGIT)

    def _check_size(self, shape: tuple[int, ...]) -> None:
        smallest = self.pool ** len(self.conv_features)
        if min(shape[1:3]) < smallest:
            raise InputError(
                f"Need images [B, H, W, channels] of at least {smallest} x {smallest} "
                f"pixels for {len(self.conv_features)} convolutions with pooling, got "
                f"{list(shape)}: use larger images, a smaller pool or fewer "
                "convolutions."
            )


def wiring(module: BatchNormCNN) -> Wiring:
    """Which part's cells lie along which axis; part 0 is the channels of the image."""
    num_convs = len(module.conv_features)
    num_layers = num_convs + len(module.dense_features) + 1
    leaves: Wiring = {}
    for layer in range(1, num_layers + 1):
        if layer <= num_convs:
            leaves[f"layer_{layer}/kernel"] = (None, None, layer - 1, layer)
            leaves[f"layer_{layer}_norm/scale"] = (layer,)
            leaves[f"layer_{layer}_norm/bias"] = (layer,)
            continue
        positions = (None,) if layer == num_convs + 1 else ()
        leaves[f"layer_{layer}/kernel"] = (*positions, layer - 1, layer)
        leaves[f"layer_{layer}/bias"] = (layer,)
    return leaves
