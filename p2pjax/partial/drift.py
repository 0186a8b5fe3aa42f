"""How far each agent's partial models are from where it last exchanged them.

Dynamic averaging (Kamp et al. 2018, "Efficient decentralized deep learning by dynamic
model averaging", https://arxiv.org/abs/1807.03210) exchanges only what has drifted,
here model by model.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.owner_classes import Block, MixPlan
from p2pjax.partial.sharing import SharingPlan
from p2pjax.types import LOCAL, Array, InputError, PyTree

_ALWAYS = -1.0  # every squared distance is larger

# Of all models, or of each by its number.
Threshold = float | tuple[float, ...]


def thresholds_of(
    sharing: SharingPlan, given: float | Sequence[float] | None
) -> Threshold | None:
    """Thresholds of dynamic averaging; None where averaging is not dynamic.

    A model's own threshold, of the scheme, comes before a number that is given for all;
    where none is given, models without their own are always averaged.

    Args:
      sharing: whose models may have thresholds.
      given: of all models, or one for each.
    """
    own = sharing.drift_thresholds
    is_own = any(limit is not None for limit in own)
    limits = None if given is None else np.asarray(given, float)
    if limits is not None and not (np.isfinite(limits) & (limits >= 0)).all():
        raise InputError(f"Need a drift_threshold of 0 or more, got {given}.")
    if limits is None or limits.ndim == 0:
        if not is_own:
            return None if limits is None else float(limits)
        others = _ALWAYS if limits is None else float(limits)
        found = tuple(others if limit is None else float(limit) for limit in own)
    elif is_own or limits.shape != (len(own),):
        raise InputError(
            f"Need a number as drift_threshold, or one for each of {len(own)} models "
            f"none of which has its own, got {given} and models with {own}."
        )
    else:
        found = tuple(limits.tolist())
    num_owners = 1 + max((int(c.owner.max()) for c in sharing.plan.classes), default=0)
    if num_owners > len(found):  # weights between two models, of which none is lower
        if len(set(found)) > 1:
            raise InputError(
                "Need the same drift_threshold for all models where weights between "
                f"models are averaged too (cross_model), got {found}."
            )
        found = (*found, *found[:1] * (num_owners - len(found)))
    return found


def requests(
    params: PyTree, reference: PyTree, plan: MixPlan, threshold: Threshold
) -> Callable[[np.ndarray], Array]:
    """Who asks for an exchange, model by model.

    Args:
      params: leaves `[N, ...]`.
      reference: parameters after the last exchange, leaves `[N, ...]`.
      plan: owner classes.
      threshold: an agent asks for a model whose parameters are farther from the
        reference than this, in squared distance; of all models or of each.

    Returns:
      A function from the owner vector `[N]` of a class to who asks, bool `[N]`.
    """
    distance = squared_distances(params, reference, plan)

    def asking(owner: np.ndarray) -> Array:
        found = jnp.zeros(len(owner), bool)
        for model in np.unique(owner[owner != LOCAL]).tolist():
            limit = threshold[model] if isinstance(threshold, tuple) else threshold
            found |= (distance[model] > limit) & jnp.asarray(owner == model)
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
