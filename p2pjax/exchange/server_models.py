"""Models that the servers of partial models keep, one for each group of agents.

Leaves are `[G, ...]`: in the columns of an owner class the first rows are those of its
groups, in the order of `mixing.group_tables`. G is the largest number of groups that a
class has, so that whole models which all agents share take one row.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing
from p2pjax.exchange.mixing import group_tables, walk_columns
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.types import Array, PyTree


def first_models(plan: MixPlan, params: PyTree) -> PyTree:
    """Models of the servers at the start: means of what their members start with.

    Args:
      plan: who shares what.
      params: of all agents, leaves `[N, ...]`.

    Returns:
      Leaves `[G, ...]`.

    Example:
      >>> from p2pjax.exchange.owner_classes import whole_model
      >>> params = {"w": jnp.array([[1.0, 2.0], [3.0, 4.0]])}
      >>> plan = whole_model(2, {"w": jnp.zeros(2)})
      >>> first_models(plan, params)["w"].tolist()
      [[2.0, 3.0]]
    """
    means, structure = jax.tree.flatten(
        mixing.mix(params, plan, lambda owner: mixing.by_group_mean(owner))
    )
    shared = [c for c in plan.classes if c.is_shared]
    one_each = [
        np.concatenate([members[:, 0] for members in group_tables(c.owner)[0]])
        for c in shared
    ]
    num_servers = max((len(agents) for agents in one_each), default=0)
    models = [jnp.zeros((num_servers, *leaf.shape[1:]), leaf.dtype) for leaf in means]
    for (_, blocks), agents in zip(shared, one_each, strict=True):
        for leaf, start, stop in blocks:
            place = tuple(map(slice, start, stop))
            own = jnp.asarray(means[leaf])[(slice(None), *place)][agents]
            models[leaf] = models[leaf].at[(slice(len(agents)), *place)].set(own)
    return jax.tree.unflatten(structure, models)


def handed_out(
    plan: MixPlan, models: PyTree, params: PyTree, takes: Sequence[Array]
) -> PyTree:
    """Parameters of all agents, of which some take the models of their servers.

    Args:
      plan: who shares what.
      models: of the servers, leaves `[G, ...]`.
      params: of the agents, leaves `[N, ...]`; overwritten in place where they are
        donated.
      takes: of each class `[N]` bool: agents that take the model; only those that have
        a server may.
    """
    leaves, structure = jax.tree.flatten(params)
    served = jax.tree.leaves(models)
    for owner_class, is_taken in zip(plan.classes, takes, strict=True):
        if not owner_class.is_shared:
            continue
        server_of = group_tables(owner_class.owner)[1]
        for block in owner_class.blocks:
            leaf, model = jnp.asarray(leaves[block.leaf]), served[block.leaf]
            taken = is_taken.reshape((-1,) + (1,) * (leaf.ndim - 1))

            def write(
                leaf: Array,
                at: tuple,
                sizes: tuple[int, ...],
                model: Array = model,
                taken: Array = taken,
                server_of: np.ndarray = server_of,
            ) -> Array:
                old = jax.lax.dynamic_slice(leaf, at, sizes)
                rows = (model.shape[0], *sizes[1:])
                new = jax.lax.dynamic_slice(model, at, rows)[server_of]
                leaf = jax.lax.dynamic_update_slice(
                    leaf, jnp.where(taken, new, old), at
                )
                return jax.lax.optimization_barrier(leaf)  # as in `mixing`

            leaves[block.leaf] = walk_columns(
                leaf.shape, leaf.dtype.itemsize, block, write, leaf
            )
    return jax.tree.unflatten(structure, leaves)
