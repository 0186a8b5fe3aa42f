"""How far each agent's partial models are from where it last exchanged them.

Dynamic averaging (Kamp et al. 2018, "Efficient decentralized deep learning by dynamic
model averaging", https://arxiv.org/abs/1807.03210) exchanges only what has drifted,
here model by model.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.owner_classes import Block, MixPlan
from p2pjax.types import LOCAL, Array, PyTree


def requests(
    params: PyTree, reference: PyTree, plan: MixPlan, threshold: float
) -> Callable[[np.ndarray], Array]:
    """Who asks for an exchange, model by model.

    Args:
      params: leaves `[N, ...]`.
      reference: parameters after the last exchange, leaves `[N, ...]`.
      plan: owner classes.
      threshold: an agent asks for a model whose parameters are farther from the
        reference than this, in squared distance.

    Returns:
      A function from the owner vector `[N]` of a class to who asks, bool `[N]`.
    """
    distance = squared_distances(params, reference, plan)

    def asking(owner: np.ndarray) -> Array:
        found = jnp.zeros(len(owner), bool)
        for model in np.unique(owner[owner != LOCAL]):
            found |= (distance[int(model)] > threshold) & jnp.asarray(owner == model)
        return found

    return asking


def squared_distances(
    params: PyTree, reference: PyTree, plan: MixPlan
) -> dict[int, Array]:
    """Of the parameters that an agent has of each model, `[N]` by model."""
    leaves, references = jax.tree.leaves(params), jax.tree.leaves(reference)
    total: dict[int, Array] = {}
    for owner, block in _shared_blocks(plan):
        mine, theirs = (
            _columns(tree[block.leaf], block) for tree in (leaves, references)
        )
        squares = jnp.square(mine - theirs).reshape(len(owner), -1).sum(1)
        for model in np.unique(owner[owner != LOCAL]):
            own = jnp.where(owner == model, squares.astype(float), 0)
            before = total.get(int(model), jnp.zeros(len(owner)))
            total[int(model)] = before + own
    return total


def updated(
    reference: PyTree,
    params: PyTree,
    plan: MixPlan,
    exchanged: Callable[[np.ndarray], Array],
) -> PyTree:
    """The reference after an exchange.

    Args:
      reference: leaves `[N, ...]`, overwritten in place where they are donated.
      params: leaves `[N, ...]` after the exchange.
      plan: owner classes.
      exchanged: owner vector `[N]` of a class -> who took part, bool `[N]`.
    """
    references, structure = jax.tree.flatten(reference)
    leaves = jax.tree.leaves(params)
    for owner, block in _shared_blocks(plan):
        old, new = (_columns(tree[block.leaf], block) for tree in (references, leaves))
        took_part = exchanged(owner).reshape((-1,) + (1,) * (old.ndim - 1))
        references[block.leaf] = jax.lax.optimization_barrier(  # see `mixing`
            jax.lax.dynamic_update_slice(
                references[block.leaf],
                jnp.where(took_part, new, old),
                (0, *block.start),
            )
        )
    return jax.tree.unflatten(structure, references)


def _shared_blocks(plan: MixPlan) -> Iterator[tuple[np.ndarray, Block]]:
    for owner_class in plan.classes:
        if owner_class.is_shared:
            for block in owner_class.blocks:
                yield owner_class.owner, block


def _columns(leaf: Array, block: Block) -> Array:
    """The rectangle of a stacked leaf, `[N, ...]`."""
    return jnp.asarray(leaf)[(slice(None), *map(slice, block.start, block.stop))]
