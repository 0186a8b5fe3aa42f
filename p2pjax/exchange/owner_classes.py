"""Owner classes: the parameters grouped by the agents that average them.

Columns of the stacked parameters whose owners agree in every agent form a class; a
class is a set of static rectangles of leaves, so mixing all classes costs about as
much as mixing everything once, however many partial models there are.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from p2pjax.paths import leaves_with_paths
from p2pjax.types import LOCAL, PyTree


class Block(NamedTuple):
    """A rectangle of one leaf, without the agents axis."""

    leaf: int  # position in `jax.tree.leaves`
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def size(self) -> int:
        """Parameters per agent."""
        return int(np.prod(np.subtract(self.stop, self.start)))


class OwnerClass(NamedTuple):
    """Parameters with the same owner in every agent."""

    owner: np.ndarray  # [N]; agents with equal values average, LOCAL keeps its own
    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """Parameters per agent."""
        return sum(block.size for block in self.blocks)

    @property
    def is_shared(self) -> bool:
        """Whether any agent averages these parameters."""
        return bool((self.owner != LOCAL).any())


class MixPlan(NamedTuple):
    """All parameters, each in exactly one class."""

    classes: tuple[OwnerClass, ...]  # [C]


def whole_model(num_agents: int, params: PyTree, local: Sequence[str] = ()) -> MixPlan:
    """All agents average every leaf, but for those that stay.

    Args:
      num_agents: N.
      params: one agent's tree, or its shapes.
      local: regular expressions; leaves whose whole path matches one stay local.
    """
    blocks: dict[bool, list[Block]] = {False: [], True: []}
    for index, (path, leaf) in enumerate(leaves_with_paths(params)):
        is_local = any(re.fullmatch(pattern, path) for pattern in local)
        block = Block(index, (0,) * len(leaf.shape), tuple(leaf.shape))
        blocks[is_local].append(block)
    return MixPlan(
        tuple(
            OwnerClass(np.full(num_agents, LOCAL if is_local else 0), tuple(same))
            for is_local, same in blocks.items()
            if same
        )
    )


def owner_arrays(plan: MixPlan, params: PyTree) -> PyTree:
    """Owner of every parameter, leaves `[N, ...]`: for inspection and small models."""
    leaves, structure = jax.tree.flatten(params)
    num_agents = len(plan.classes[0].owner)
    owners = [np.full((num_agents, *leaf.shape), LOCAL) for leaf in leaves]
    for owner, blocks in plan.classes:
        for block in blocks:
            where = (slice(None), *map(slice, block.start, block.stop))
            axes = (num_agents,) + (1,) * len(block.start)
            owners[block.leaf][where] = owner.reshape(axes)
    return jax.tree.unflatten(structure, owners)
