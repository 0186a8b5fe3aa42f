"""Multilayer perceptron whose layers are parts of interchangeable cells."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax.numpy as jnp

from p2pjax.types import Array, PyTree

ABSENT_LOGIT = -30.0  # an output cell that an agent lacks never wins nor learns


class MLP(nn.Module):
    """Dense layers `layer_1` .. `layer_L`; the last one gives logits.

    Agents with fewer cells than the stacked arrays hold carry a collection `cells`
    (`slices.cell_masks`): per layer the mask of the cells they have and whether they
    have the layer at all. A cell that is absent outputs zero, so none of its weights
    ever changes; a layer that is absent passes its input on.

    Attributes:
      features: cells of every layer, without the input.
      activation: of the hidden cells.
    """

    features: Sequence[int]
    activation: Callable[[Array], Array] = nn.sigmoid

    @nn.compact
    def __call__(self, x: Array) -> Array:
        hidden = x.reshape(x.shape[0], -1)
        for layer, features in enumerate(self.features, start=1):
            output = nn.Dense(
                features,
                kernel_init=nn.initializers.glorot_uniform(),
                name=f"layer_{layer}",
            )(hidden)
            is_last = layer == len(self.features)
            if not is_last:
                output = self.activation(output)
            if self.has_variable("cells", f"layer_{layer}"):
                cells: PyTree = self.get_variable("cells", f"layer_{layer}")
                missing = ABSENT_LOGIT if is_last else 0.0
                output = jnp.where(cells["mask"][None], output, missing)
                if not is_last:
                    output = jnp.where(cells["present"], output, _fit(hidden, features))
            hidden = output
        return hidden


def wiring(num_layers: int) -> dict[str, tuple[int | None, ...]]:
    """Which part's cells lie along which axis of which leaf; part 0 is the input."""
    return {
        f"layer_{layer}/{leaf}": parts
        for layer in range(1, num_layers + 1)
        for leaf, parts in (("kernel", (layer - 1, layer)), ("bias", (layer,)))
    }


def _fit(x: Array, width: int) -> Array:
    """Pads or cuts the last axis; `slices.align` leaves room for all cells in use."""
    return jnp.pad(x[:, :width], ((0, 0), (0, max(0, width - x.shape[1]))))
