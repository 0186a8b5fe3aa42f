"""Partial views: each agent knows a few agents at a time, by gossip, for any selection.

Jelasity, Voulgaris, Guerraoui, Kermarrec, van Steen (2007), "Gossip-based peer
sampling". Each agent has a view of a few others. In every round it sends its own number
and half of its view to one of them, who answers with the same; of several that ask the
same agent, it takes in one. What arrived replaces a part of the view, at random. Agents
that were averaged with last stay in the view. Only numbers of agents travel.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.graphs.topology import Topology
from p2pjax.selection import tables
from p2pjax.selection.base import Fetched, PeerView, Selection
from p2pjax.types import Array, InputError, Key, Peers, PyTree


class PartialViewState(NamedTuple):
    """Whom each agent knows, and what the selection remembers."""

    known: Topology  # [N, V]
    inner: PyTree


def partial_view(
    selection: Selection, size: int, *, forgets: bool = False
) -> Selection:
    """The same selection where each agent knows `size` agents at a time.

    Whom an agent may fetch from is restricted to those; what the selection remembers of
    others serves again when they come back. Views should be larger than the number of
    peers averaged with: these stay, and a view of no others never changes. Views are
    exchanged as in Jelasity et al. (2007), https://doi.org/10.1145/1275517.1275520.

    Args:
      selection: a way of choosing peers.
      size: agents in a view, 2 or more.
      forgets: whether nothing is remembered of agents that have left the view, so that
        many agents need no table of all pairs, see `pair_values.blank`. Give the method
        a graph too, such as `graphs.random_views`: without one it lists all others.

    Example:
      >>> from p2pjax.selection.pens import pens
      >>> selection = partial_view(pens(num_peers=2), size=8)
    """
    if size < 2:
        raise InputError(
            f"Need views of 2 agents or more, so that there is a choice, got {size}."
        )

    def init_fn(key: Key, view: PeerView) -> PartialViewState:
        key_view, key_inner = jax.random.split(key)
        known = tables.sample(key_view, view.permitted, size)
        inner = selection.init(
            key_inner, view._replace(permitted=known, forgets=forgets)
        )
        return PartialViewState(known, inner)

    def select_fn(
        key: Key, t: Array, state: PartialViewState, view: PeerView
    ) -> tuple[Peers, Fetched, PartialViewState]:
        key_select, key_gossip = jax.random.split(key)
        known = _permitted(state.known, view.permitted)
        peers, pulled, inner = selection.select(
            key_select, t, state.inner, view._replace(permitted=known, forgets=forgets)
        )
        is_other = peers.ids != tables.self_only(view.num_agents).neighbor
        merged = tables.where(is_other, Topology(peers.ids, peers.weight > 0))
        known = exchange_views(key_gossip, known, merged, view.permitted)
        return peers, pulled, PartialViewState(known, inner)

    return selection._replace(init=init_fn, select=select_fn)


def exchange_views(
    key: Key, known: Topology, stay: Topology, permitted: Topology
) -> Topology:
    """The views after one exchange.

    Args:
      key: of everything random.
      known: views `[N, V]`.
      stay: agents that stay in the view, `[N, K]`.
      permitted: `[N, D]` whom an agent may know.
    """
    key_partner, key_turn, key_half, key_keep = jax.random.split(key, 4)
    num_agents, size = known.mask.shape
    own = tables.self_only(num_agents)
    partner = tables.sample(key_partner, known, 1)
    half = tables.sample(key_half, known, max(1, size // 2))
    message = tables.joined(own, half)  # [N, 1 + V / 2]
    answer = _from(message, partner)
    asking = _from(message, _one_asker(key_turn, partner))
    heard = tables.joined(answer, asking)
    every = tables.joined(stay, heard, known)
    every = _permitted(tables.where(_is_first(every), every), permitted)
    # Who stays comes first, then what was heard, then the rest of the old view.
    class_of_slot = jnp.repeat(
        jnp.asarray([2.0, 1.0, 0.0]),
        jnp.asarray([part.mask.shape[1] for part in (stay, heard, known)]),
        total_repeat_length=every.mask.shape[1],
    )
    chance = jax.random.uniform(key_keep, every.mask.shape)
    return tables.top_k(every, class_of_slot[None] + chance, size)


def _one_asker(key: Key, partner: Topology) -> Topology:
    """For each agent one of those whose partner it is, at random, `[N, 1]`."""
    num_agents = partner.mask.shape[0]
    turn = jax.random.permutation(key, num_agents).astype(jnp.int32)
    target = jnp.where(partner.mask, partner.neighbor, num_agents)[:, 0]
    latest = jnp.full(num_agents, -1, jnp.int32).at[target].max(turn, mode="drop")
    is_asked = (latest >= 0)[:, None]
    asker = jnp.argsort(turn).astype(jnp.int32)[latest][:, None]
    return tables.where(is_asked, Topology(asker, is_asked))


def _from(message: Topology, sender: Topology) -> Topology:
    """What each agent's one sender `[N, 1]` sent."""
    neighbor, mask = (leaf[sender.neighbor[:, 0]] for leaf in message)
    return tables.where(sender.mask, Topology(neighbor, mask))


def _permitted(table: Topology, permitted: Topology) -> Topology:
    """Those of a table whom an agent may know."""
    return tables.where(tables.contains(permitted, table), table)


def _is_first(table: Topology) -> Array:
    """`[N, C]`: slots whose agent is in no earlier slot."""
    ids = jnp.where(table.mask, table.neighbor, tables.NO_AGENT)
    order = jnp.argsort(ids, axis=1)  # stable
    ordered = jnp.take_along_axis(ids, order, 1)
    is_new = jnp.pad(
        ordered[:, 1:] != ordered[:, :-1], ((0, 0), (1, 0)), constant_values=True
    )
    back = jnp.argsort(order, axis=1)
    return jnp.take_along_axis(is_new, back, 1) & table.mask
