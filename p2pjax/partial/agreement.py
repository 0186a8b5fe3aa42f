"""How many cycles the members of a model need until they agree.

What members have after a cycle is a matrix times what they had before, so that their
distances follow from inner products of the models at the start: the loop over cycles
works on matrices [N, N] and never reads parameters.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing
from p2pjax.exchange.owner_classes import MixPlan, OwnerClass
from p2pjax.partial.exchanges import Exchanges, Layout, exchanged, happening, reached
from p2pjax.types import LOCAL, Array, PyTree


def centred_products(
    params: PyTree, owner_class: OwnerClass, weight: Array | None = None
) -> Array:
    """Inner products `[N, N]` of what members of a class differ from their mean by.

    Args:
      params: leaves `[N, ...]`.
      owner_class: whose parameters count.
      weight: `[N]` in the mean.
    """
    leaves = jax.tree.leaves(params)
    mean = mixing.by_group_mean(owner_class.owner, weight)
    total = jnp.zeros((len(owner_class.owner),) * 2)
    for block in owner_class.blocks:
        leaf = jnp.asarray(leaves[block.leaf])

        def add(
            total: Array, at: tuple, sizes: tuple[int, ...], leaf: Array = leaf
        ) -> Array:
            rows = jax.lax.dynamic_slice(leaf, at, sizes)
            off = (rows - mean(rows)).reshape(sizes[0], -1)
            products = jnp.matmul(off, off.T, precision="highest")
            return total + products.astype(total.dtype)

        total = mixing.walk_columns(leaf.shape, leaf.dtype.itemsize, block, add, total)
    return total


def mean_matrix(owner: np.ndarray, weight: Array | None = None) -> np.ndarray:
    """`[N, N]`: what a server of each group would compute; zero rows for LOCAL.

    Args:
      owner: `[N]`.
      weight: `[N]` in the mean.
    """
    counts = np.ones(len(owner)) if weight is None else np.asarray(weight, float)
    same = (owner[:, None] == owner) & (owner != LOCAL)
    shares = np.where(same, counts, 0)
    return shares / np.maximum(shares.sum(1, keepdims=True), np.finfo(float).tiny)


def only_needed(
    layout: Layout,
    cycles: int,
    tolerance: float,
    weight: Array | None,
    inputs: Exchanges,
    params: PyTree,
    plan: MixPlan,
    arrived: Array | None,
) -> Exchanges:
    """Without the cycles that a model does not need, because its members agree.

    Args:
      layout: of the exchanges of a round, all of them in cycles.
      cycles: of the layout.
      tolerance: root mean square over a model's parameters, of each member from the
        mean of all.
      weight: `[N]` in the mean.
      inputs: all exchanges.
      params: leaves `[N, ...]`.
      plan: owner classes.
      arrived: `[N, F]`; None: all.
    """
    models, model = np.unique(layout.model, return_inverse=True)
    classes = [c for c in plan.classes if c.is_shared]
    products = [centred_products(params, c, weight) for c in classes]
    means = [jnp.asarray(mean_matrix(c.owner, weight), float) for c in classes]
    sizes = np.zeros((len(models), layout.num_agents), int)  # parameters of each model
    for c in classes:
        sizes += (c.owner == models[:, None]) * c.size

    def is_open(matrices: Sequence[Array]) -> Array:
        """`[M]`: models of which some member is too far from the mean."""
        square = jnp.zeros(sizes.shape)
        for c, matrix, mean, product in zip(
            classes, matrices, means, products, strict=True
        ):
            off = matrix - mean
            far = ((off @ product) * off).sum(1)
            is_owner = jnp.asarray(c.owner == models[:, None])  # [M, N]
            square = square + jnp.where(is_owner, far[None], 0)
        is_near = square <= tolerance**2 * jnp.asarray(sizes, square.dtype)
        return (~is_near).any(1)  # also where a distance is no number

    def goes_on(carry: tuple) -> Array:
        cycle, _, unsettled, _ = carry
        return (cycle < cycles) & unsettled.any()

    def advance(carry: tuple) -> tuple:
        cycle, matrices, unsettled, needed = carry
        at = cycle * per_cycle + jnp.arange(per_cycle)
        runs = unsettled[jnp.asarray(model[:per_cycle])]
        pairs = Exchanges(inputs.first[at], inputs.second[at])
        after = [
            exchanged(matrix, pairs, runs & takes_place[at], weight)
            for matrix, takes_place in zip(matrices, happens, strict=True)
        ]
        needed = needed + unsettled.astype(needed.dtype)
        return cycle + 1, after, unsettled & is_open(after), needed

    per_cycle = len(model) // cycles
    happens = [happening(layout, inputs, c.owner) for c in classes]
    if arrived is not None:
        happens = [one & reached(inputs, arrived) for one in happens]
    start = [jnp.eye(layout.num_agents, dtype=float) for _ in classes]
    none = jnp.zeros(len(models), jnp.int32)
    carry = (jnp.int32(0), start, is_open(start), none)
    needed = jax.lax.while_loop(goes_on, advance, carry)[3]
    return inputs.only(jnp.asarray(layout.cycle) < needed[jnp.asarray(model)])
