"""What attackers know of honest messages: means, deviations, weighted sums.

Over all honest agents (omniscient), or over those that a receiver hears and itself
(local). Rows of Byzantine agents are never read, not even if they are not finite.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.attacks.base import Scene, senders
from p2pjax.types import Array


def mean(scene: Scene, local: bool = False) -> Array:
    """Mean of honest rows.

    Args:
      scene: of a block.
      local: over the honest neighbours of each receiver and itself.

    Returns:
      `[1, c]` where it is the same for all receivers, else `[N, c]`.
    """
    return _mean(scene, scene.rows, local)


def mean_before(scene: Scene, local: bool = False) -> Array:
    """Mean of the same agents' models before local training."""
    assert scene.before is not None
    return _mean(scene, scene.before, local)


def mean_and_deviation(scene: Scene, local: bool = False) -> tuple[Array, Array]:
    """Mean and standard deviation (divisor n - 1) of honest rows; 0 where n < 2.

    Args:
      scene: of a block.
      local: over the honest neighbours of each receiver and itself.

    Returns:
      `[1, c]` each where they are the same for all receivers, else `[N, c]`.
    """
    center = mean(scene, local)
    count = _count(scene, local)
    if local:
        squares = _over_slots(scene, scene.rows, lambda rows: jnp.square(rows - center))
    else:
        squares = over_honest(scene, jnp.square(scene.rows - center))
    variance = squares / jnp.maximum(count - 1, 1)
    return center, jnp.where(count < 2, 0, jnp.sqrt(variance))


def over_honest(scene: Scene, values: Array) -> Array:
    """Sum of `values` `[N, c]` over all honest agents that own these columns.

    Returns:
      `[1, c]`, or `[N, c]` if there are several groups of owners: of each agent's own.
    """
    kept = jnp.where(scene.is_byzantine[:, None], 0, values)
    group = groups(scene)
    if group is None:
        # A dot, because XLA fuses other sums into their readers and then computes them
        # once per agent.
        ones = jnp.ones((1, kept.shape[0]), kept.dtype)
        return jnp.einsum("gn,nc->gc", ones, kept, precision="highest")
    return jax.ops.segment_sum(kept, group, int(group.max()) + 1)[group]


def groups(scene: Scene) -> np.ndarray | None:
    """`[N]`: the group of owners of each agent, from 0; None if there is only one."""
    if scene.owner is None or (scene.owner == scene.owner[0]).all():
        return None
    return np.unique(scene.owner, return_inverse=True)[1]


def neighbors(scene: Scene) -> Array:
    """`[N, K]`: slots in which honest agents send."""
    return senders(scene.peers) & ~scene.is_hostile


def _mean(scene: Scene, values: Array, local: bool) -> Array:
    total = _over_slots(scene, values) if local else over_honest(scene, values)
    return total / jnp.maximum(_count(scene, local), 1)


def _count(scene: Scene, local: bool) -> Array:
    """How many agents a mean is over, `[1, 1]` or `[N, 1]`."""
    dtype = scene.rows.dtype
    is_honest = ~scene.is_byzantine[:, None]
    if local:
        others = neighbors(scene).sum(1, keepdims=True)
        return others.astype(dtype) + is_honest.astype(dtype)
    return over_honest(scene, is_honest.astype(dtype))


def _over_slots(
    scene: Scene, values: Array, of: Callable[[Array], Array] = lambda rows: rows
) -> Array:
    """`of(values)` summed over honest neighbours and the receiver, if it is honest."""

    def add_slot(total: jax.Array, slot: tuple[Array, Array]) -> tuple[jax.Array, None]:
        ids, counts = slot
        return total + jnp.where(counts[:, None], of(values[ids]), 0), None

    own = jnp.where(scene.is_byzantine[:, None], 0, of(values))
    slots = scene.peers.ids.T[1:], neighbors(scene).T[1:]
    return jax.lax.scan(add_slot, own, slots, unroll=4)[0]
