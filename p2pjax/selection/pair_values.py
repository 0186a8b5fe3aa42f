"""What agents remember of each other: a value per pair, of all or of those they know.

Where an agent may come across any other, its values are a row of `[N, N]`. Where it
knows V agents, and keeps nothing of others, it has V values beside their numbers; of
those who leave its view it forgets them. So memory and work grow with N x V, not N x N.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike

from p2pjax.graphs.topology import Topology
from p2pjax.selection import tables
from p2pjax.types import Array


class Known(NamedTuple):
    """Values of a view."""

    about: Topology  # [N, V] whom, in order of their numbers, unused slots last
    value: Array  # [N, V]


PairValues = Array | Known  # [N, N], row = who remembers; or of a view


def blank(
    permitted: Topology,
    dtype: DTypeLike,
    fill: float = 0,
    *,
    forgets: bool,
) -> PairValues:
    """What is remembered before anything happens.

    Args:
      permitted: whom each agent knows now, `[N, V]`.
      dtype: of the values.
      fill: the value of agents that are not known yet.
      forgets: whether nothing is kept of agents outside the view; else all have a
        value, `[N, N]`.

    Example:
      >>> from p2pjax.graphs import ring
      >>> blank(ring(9), jnp.int32, forgets=True).value.shape
      (9, 2)
    """
    num_agents = permitted.mask.shape[0]
    if not forgets:
        return jnp.full((num_agents, num_agents), fill, dtype)
    return Known(
        tables.in_order(permitted), jnp.full(permitted.mask.shape, fill, dtype)
    )


def recalled(pairs: PairValues, table: Topology, fill: float = 0) -> Array:
    """The values of a table's peers, `[N, C]`.

    Args:
      pairs: the values.
      table: whom they are asked about, `[N, C]`.
      fill: the value of agents that are not known.
    """
    if not isinstance(pairs, Known):
        return tables.lookup(pairs, table)
    slot, is_known = tables.search(pairs.about, table)
    value = jnp.take_along_axis(pairs.value, slot, 1)
    return jnp.where(is_known, value, jnp.asarray(fill, value.dtype))


def noted(pairs: PairValues, table: Topology, new: Array) -> PairValues:
    """With the values of a table's peers replaced, as far as they are known.

    Args:
      pairs: the values.
      table: whose values, `[N, C]`.
      new: these, `[N, C]`.
    """
    if not isinstance(pairs, Known):
        return tables.written(pairs, table, new)
    num_agents, size = pairs.value.shape
    slot, is_known = tables.search(pairs.about, table)
    slot = jnp.where(is_known & table.mask, slot, size)  # dropped
    agent = tables.self_only(num_agents).neighbor
    value = jnp.asarray(pairs.value).at[agent, slot].set(new, mode="drop")
    return pairs._replace(value=value)


def followed(pairs: PairValues, permitted: Topology, fill: float = 0) -> PairValues:
    """After views have changed: forgets who has left; who is new is not known yet.

    Args:
      pairs: the values.
      permitted: whom each agent knows now, `[N, V]`.
      fill: the value of agents that are new.
    """
    if not isinstance(pairs, Known):
        return pairs
    about = tables.in_order(permitted)
    return Known(about, recalled(pairs, about, fill))


def num_known(pairs: PairValues) -> Array | int:
    """How many agents one can know something of, itself included: N, or `[N, 1]`.

    Args:
      pairs: the values.
    """
    if not isinstance(pairs, Known):
        return pairs.shape[0]
    return 1 + pairs.about.mask.sum(1, keepdims=True, dtype=jnp.int32)


def values(pairs: PairValues) -> Array:
    """All values, `[N, N]` or `[N, V]`.

    Args:
      pairs: the values.
    """
    return pairs.value if isinstance(pairs, Known) else pairs


def with_values(pairs: PairValues, new: Array) -> PairValues:
    """With all values replaced.

    Args:
      pairs: the values.
      new: `[N, N]` or `[N, V]`, in the places of `values`.
    """
    return pairs._replace(value=new) if isinstance(pairs, Known) else new
