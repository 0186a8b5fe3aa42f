"""What is measured: summaries over runs, disagreement, norms, traffic."""

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing
from p2pjax.exchange.owner_classes import MixPlan, OwnerClass
from p2pjax.types import Array, PyTree

BYTES_PER_PARAMETER = 4  # float32 on the wire


def parameter_norm(params: PyTree) -> Array:
    """Euclidean norm of each agent's parameters, `[N]`."""
    leaves = [
        jnp.square(p).reshape(p.shape[0], -1).sum(1) for p in jax.tree.leaves(params)
    ]
    return jnp.sqrt(sum(leaves))


def non_finite(params: PyTree) -> Array:
    """How many of each agent's parameters are infinite or not a number, `[N]`."""
    leaves = [
        jnp.where(jnp.isfinite(p), 0.0, 1.0).reshape(p.shape[0], -1).sum(1)
        for p in jax.tree.leaves(params)
    ]
    return jnp.stack(leaves).sum(0)


def consensus_distance(params: PyTree) -> Array:
    """How far the agents' models are from their mean: root of the mean square, `[]`."""
    squares = [
        jnp.square(p - p.mean(0, keepdims=True)).sum() for p in jax.tree.leaves(params)
    ]
    num_agents = jax.tree.leaves(params)[0].shape[0]
    return jnp.sqrt(sum(squares) / num_agents)


def worst_decile(values: Array) -> Array:
    """Mean of the worst tenth of the agents' values `[N]`, at least one of them."""
    return jnp.sort(values)[: -(-values.shape[0] // 10)].mean()


def disagreement(params: PyTree, plan: MixPlan) -> Array:
    """How far the members of each owner class are apart, `[C]`.

    Largest standard deviation over a group among the parameters of the class, averaged
    over the groups; 0 for a class that no agent shares.
    """
    leaves = jax.tree.leaves(params)
    return jnp.stack(
        [
            jnp.concatenate(
                [
                    jnp.sqrt(_largest_variance(leaves, owner_class, members))
                    for members in mixing.group_tables(owner_class.owner)[0]
                ]
            ).mean()
            if owner_class.is_shared
            else jnp.zeros(())
            for owner_class in plan.classes
        ]
    )


def _largest_variance(
    leaves: list[Array], owner_class: OwnerClass, members: np.ndarray
) -> Array:
    """`[groups]`: over the agents of each group `[groups, size]`."""
    largest = jnp.zeros(len(members))
    for block in owner_class.blocks:
        leaf = leaves[block.leaf]

        def advance(
            largest: Array, at: tuple, sizes: tuple[int, ...], leaf: Array = leaf
        ) -> Array:
            columns = jax.lax.dynamic_slice(leaf, at, sizes)
            variance = columns[members].var(1).reshape(len(members), -1)
            return jnp.maximum(largest, variance.max(1).astype(largest.dtype))

        largest = mixing.walk_columns(
            leaf.shape, leaf.dtype.itemsize, block, advance, largest
        )
    return largest
