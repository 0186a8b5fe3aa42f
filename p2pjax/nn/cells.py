"""The cells an agent has, where its network is smaller than the stacked arrays.

Agents with fewer cells carry a flax collection `cells` (`placement.cell_masks`): per
part the mask of the cells they have and whether they have the part at all. A cell that
is absent outputs zero, so none of its weights ever changes.
"""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from p2pjax.types import Array, PyTree

ABSENT_LOGIT = -30.0  # an output cell that an agent lacks never wins nor learns


class CellMask(NamedTuple):
    """What one agent has of a part of n columns."""

    mask: Array  # [n] bool
    present: Array  # [] bool: has the part at all


def cell_mask(module: nn.Module, part: int) -> CellMask | None:
    """What the agent has of a part, None if all of it; ask in the outermost module."""
    name = f"layer_{part}"
    if not module.has_variable("cells", name):
        return None
    found: PyTree = module.get_variable("cells", name)
    return CellMask(found["mask"], found["present"])


def mask_absent(
    values: Array, cells: CellMask | None, *, axis: int = -1, missing: float = 0.0
) -> Array:
    """Replaces the outputs of absent cells, which lie along `axis`.

    Args:
      values: outputs of cells.
      cells: what the agent has; None if all.
      axis: along which the cells lie.
      missing: value of absent cells.
    """
    if cells is None:
        return values
    shape = [1] * values.ndim
    shape[axis] = -1
    return jnp.where(cells.mask.reshape(shape), values, missing)
