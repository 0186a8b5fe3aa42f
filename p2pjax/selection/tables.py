"""Choosing from padded tables of peers: draws, bests, unions, memberships.

A draw without replacement takes the slots with the largest Gumbel scores (Kool, van
Hoof, Welling 2019, "Stochastic beams and where to find them"). Chosen slots are sorted
by the peers' numbers, so that of equal ones the lowest comes first.
"""

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.graphs.topology import Topology
from p2pjax.types import Array, Key

NO_AGENT = np.iinfo(np.int32).max  # sorts behind all agents


def sample(
    key: Key,
    table: Topology,
    num: int,
    logits: Array | None = None,
    limit: Array | None = None,
) -> Topology:
    """`num` different peers of each agent, all that there are if fewer, `[N, num]`.

    Args:
      key: of the draw.
      table: to draw from, `[N, C]`.
      num: how many.
      logits: `[N, C]` log-probabilities up to a constant; None draws uniformly.
      limit: `[N]` how many an agent draws at most.
    """
    scores = jax.random.gumbel(key, table.mask.shape)
    return top_k(table, scores if logits is None else scores + logits, num, limit)


def top_k(
    table: Topology, scores: Array, num: int, limit: Array | None = None
) -> Topology:
    """The `num` slots with the highest scores `[N, C]` of each agent, `[N, num]`.

    All that there are if fewer, and no more than `limit` `[N]`; scores of minus
    infinity or NaN are never chosen.

    Args:
      table: to choose from, `[N, C]`.
      scores: `[N, C]`.
      num: how many.
      limit: `[N]` how many an agent chooses at most.
    """
    is_usable = jnp.asarray(table.mask) & (scores > -jnp.inf)
    scores = jnp.where(is_usable, scores, -jnp.inf)
    found, slots = jax.lax.top_k(scores, min(num, scores.shape[1]))
    is_found = found > -jnp.inf
    if limit is not None:
        is_found &= jnp.arange(found.shape[1])[None] < limit[:, None]
    ids = jnp.take_along_axis(jnp.asarray(table.neighbor), slots, 1)
    return padded(in_order(Topology(ids, is_found)), num)


def joined(*tables: Topology) -> Topology:
    """One table with the slots of all."""
    neighbor, mask = zip(*tables, strict=True)
    return Topology(jnp.concatenate(neighbor, 1), jnp.concatenate(mask, 1))


def padded(table: Topology, num: int) -> Topology:
    """The table with unused slots up to `num`."""
    more = num - table.mask.shape[1]
    return joined(table, empty(table.mask.shape[0], more)) if more else table


def empty(num_agents: int, num: int) -> Topology:
    """A table in which no slot is used, `[N, num]`."""
    ids = jnp.broadcast_to(self_only(num_agents).neighbor, (num_agents, num))
    return Topology(ids, jnp.zeros((num_agents, num), bool))


def self_only(num_agents: int) -> Topology:
    """Each agent's own model, `[N, 1]`."""
    ids = jnp.arange(num_agents, dtype=jnp.int32)[:, None]
    return Topology(ids, jnp.ones((num_agents, 1), bool))


def all_others(num_agents: int) -> Topology:
    """All others, `[N, N - 1]`."""
    slots = jnp.arange(num_agents - 1, dtype=jnp.int32)[None]
    ids = slots + (slots >= self_only(num_agents).neighbor).astype(jnp.int32)
    return Topology(ids, jnp.ones(ids.shape, bool))


def where(mask: Array, table: Topology) -> Topology:
    """The slots that are in `mask` `[N, C]` too."""
    mask = jnp.asarray(table.mask) & mask
    return Topology(
        jnp.where(mask, table.neighbor, self_only(len(mask)).neighbor), mask
    )


def members(table: Topology) -> Array:
    """`[N, N]`: whether agent n has a slot for j."""
    num_agents = table.mask.shape[0]
    none = jnp.zeros((num_agents, num_agents), bool)
    return none.at[self_only(num_agents).neighbor, table.neighbor].max(table.mask)


def contains(among: Topology, table: Topology) -> Array:
    """`[N, C]`: whether `among` `[N, A]` has a slot for the peer in each of `table`'s.

    Where the two have as many slots as there are agents, by an array `[N, N]`, which is
    then no larger than they are; else by search.
    """
    num_agents, num_slots = table.mask.shape
    if among.mask.shape[1] + num_slots >= num_agents:
        return lookup(members(among), table)
    if among.mask.shape[1] == 0:
        return jnp.zeros(table.mask.shape, bool)
    return search(in_order(among), table)[1]


def search(ordered: Topology, table: Topology) -> tuple[Array, Array]:
    """The slots of `table`'s peers in a table that is `in_order`, and if there is one.

    Args:
      ordered: `[N, V]`, different peers.
      table: `[N, C]`.

    Returns:
      Slots `[N, C]`, of any value where there is none, and whether there is, `[N, C]`.
    """
    ids = jnp.where(ordered.mask, ordered.neighbor, NO_AGENT)
    wanted = jnp.asarray(table.neighbor)
    find = jax.vmap(lambda row, peers: jnp.searchsorted(row, peers))
    slot = jnp.minimum(find(ids, wanted), ids.shape[1] - 1)
    return slot, jnp.take_along_axis(ids, slot, 1) == wanted


def lookup(values: Array, table: Topology) -> Array:
    """`values[n, neighbor[n, c]]`, `[N, C]`, of values `[N, N]`."""
    return jnp.take_along_axis(values, jnp.asarray(table.neighbor), 1)


def written(values: Array, table: Topology, new: Array) -> Array:
    """`values` `[N, N]` with those of the table's peers replaced by `new` `[N, C]`."""
    num_agents = values.shape[0]
    columns = jnp.where(table.mask, table.neighbor, num_agents)  # dropped
    return (
        jnp.asarray(values)
        .at[self_only(num_agents).neighbor, columns]
        .set(new, mode="drop")
    )


def in_order(table: Topology) -> Topology:
    """Sorted by number, unused slots last."""
    num_agents = table.mask.shape[0]
    keys = jnp.where(table.mask, table.neighbor, num_agents)
    slots = jnp.argsort(keys, axis=1)
    neighbor, mask = (jnp.take_along_axis(leaf, slots, 1) for leaf in table)
    return where(mask, Topology(neighbor, mask))
