"""Multilayer perceptron whose layers are parts of interchangeable cells."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax.numpy as jnp

from p2pjax.nn.cells import ABSENT_LOGIT, cell_mask, mask_absent
from p2pjax.nn.kernels.dense import Dense
from p2pjax.types import Array, Wiring


class MLP(nn.Module):
    """Dense layers `layer_1` .. `layer_L`; the last one gives logits.

    Agents may have fewer cells than the stacked arrays hold (`nn.cells`); a layer
    that is absent altogether passes its input on.

    >>> import jax, jax.numpy as jnp
    >>> import p2pjax as pj
    >>> network, x = pj.nn.MLP((32, 10)), jnp.ones((5, 8, 8))
    >>> network.apply(network.init(jax.random.key(0), x), x).shape
    (5, 10)

    Attributes:
      features: cells of every layer, without the input.
      activation: of the hidden cells.
      kernel_init: the law of initial weights.
      bias_init: that of initial biases.
    """

    features: Sequence[int]
    activation: Callable[[Array], Array] = nn.sigmoid
    kernel_init: nn.initializers.Initializer = nn.initializers.glorot_uniform()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Logits `[B, features[-1]]` of inputs `[B, ...]`, which are flattened."""
        hidden = x.reshape(x.shape[0], -1)
        for layer, features in enumerate(self.features, start=1):
            output = Dense(
                features,
                kernel_init=self.kernel_init,
                bias_init=self.bias_init,
                name=f"layer_{layer}",
            )(hidden)
            cells = cell_mask(self, layer)
            if layer == len(self.features):
                return mask_absent(output, cells, missing=ABSENT_LOGIT)
            output = mask_absent(self.activation(output), cells)
            if cells is not None:
                output = jnp.where(cells.present, output, _fit(hidden, features))
            hidden = output
        return hidden


def wiring(num_layers: int) -> Wiring:
    """Which part's cells lie along which axis of which leaf; part 0 is the input."""
    return {
        f"layer_{layer}/{leaf}": parts
        for layer in range(1, num_layers + 1)
        for leaf, parts in (("kernel", (layer - 1, layer)), ("bias", (layer,)))
    }


def _fit(x: Array, width: int) -> Array:
    """Pads or cuts the last axis; `placement.align` leaves room for all in use."""
    return jnp.pad(x[:, :width], ((0, 0), (0, max(0, width - x.shape[1]))))
