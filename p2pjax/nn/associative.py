"""Associative network of binary cells, learned without gradients.

Bouchra Pilet, Frey, Taiani (2021), "Simple, efficient and convenient decentralized
multi-task learning for neural networks". A visible layer of n cells and a hidden layer
of H cells are linked both ways; a cell fires where the weights of its active links sum
to the threshold or more. From part of a vector the network recalls the whole: visible
-> hidden -> visible.

There are two parts of cells, visible 0 and hidden 1, and both weights of a link lie
between the same two cells. So a partial model of all visible and k hidden cells owns
the weights from and to these hidden cells, and the other hidden cells' weights are
local.
"""

import jax.numpy as jnp

from p2pjax.types import Array, PyTree, Variables, Wiring


def forward(params: PyTree, x: Array, threshold: float) -> Array:
    """What vectors `[..., n]` recall: bool `[..., n]`."""
    return hidden_and_visible(Variables(params, {}), as_bits(x), threshold)[1]


def wiring() -> Wiring:
    """Which part's cells lie along which axis of which leaf: visible 0, hidden 1."""
    return {"to_hidden/kernel": (0, 1), "to_visible/kernel": (1, 0)}


def hidden_and_visible(
    variables: Variables, visible: Array, threshold: float
) -> tuple[Array, Array]:
    """Active hidden cells `[..., H]`, then active visible cells `[..., n]`."""
    params = variables.params
    hidden = _fires(visible, params["to_hidden"], threshold)
    has = hidden_mask(variables)
    if has is not None:
        hidden = hidden & jnp.broadcast_to(has, hidden.shape)
    return hidden, _fires(hidden, params["to_visible"], threshold)


def _fires(source: Array, links: PyTree, threshold: float) -> Array:
    kernel = links["kernel"]  # [sources, targets]
    sums = jnp.matmul(source.astype(kernel.dtype), kernel, precision="highest")
    return sums >= float(threshold)


def compare(expected: Array, actual: Array) -> tuple[Array, Array]:
    """Cells active in both, and cells that differ, of vectors `[..., n]`."""
    both, differ = expected & actual, expected ^ actual
    return both.sum(-1).astype(jnp.float32), differ.sum(-1).astype(jnp.float32)


def as_bits(x: Array) -> Array:
    """Bits of any dtype; bytes are bits here, not pixels of 0 .. 255."""
    return jnp.asarray(x).astype(bool)


def hidden_mask(variables: Variables) -> Array | None:
    """`[H]`: hidden cells of an agent that has fewer than others (`cell_masks`)."""
    cells = variables.stats.get("cells")
    return None if cells is None else cells["layer_1"]["mask"]
