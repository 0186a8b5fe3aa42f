"""A cap on how many agents may fetch from one agent in a round, for any selection.

Methods that prefer good models ask the same few agents again and again. Sajina (2025)
measures that by the Gini coefficient of the messages sent and asks for a remedy. Every
selection asks for what it wants to fetch by `apply_request_limit`; under a cap, places
are given at random, and who is turned away draws again among those who have places
left.
"""

import jax
import jax.numpy as jnp

from p2pjax.graphs.topology import Topology
from p2pjax.selection import tables
from p2pjax.selection.base import PeerView, Selection
from p2pjax.types import Array, InputError, Key, PyTree


def limit_requests(selection: Selection, max_requests: int) -> Selection:
    """The same selection where no agent is fetched from by more than `max_requests`.

    Args:
      selection: a way of choosing peers.
      max_requests: agents that may fetch from one agent in a round.

    >>> from p2pjax.selection.pens import pens
    >>> selection = limit_requests(pens(num_peers=2), max_requests=4)
    """
    if max_requests < 1:
        raise InputError(f"Need max_requests of 1 or more, got {max_requests}.")

    def select_fn(key: Key, t: Array, state: PyTree, view: PeerView) -> tuple:
        return selection.select(key, t, state, view._replace(max_requests=max_requests))

    return selection._replace(select=select_fn)


def apply_request_limit(
    key: Key, view: PeerView, wanted: Topology, before: Topology | None = None
) -> Topology:
    """Whom each agent may really fetch from, of whom it wants to, `[N, C]`.

    Without a cap that is all of them. Slots that find no agent stay unused.

    Args:
      key: of the lottery.
      view: its `permitted` says whom an agent may be sent to instead.
      wanted: different peers.
      before: what was fetched in this round already and keeps its places.

    Returns:
      Different peers, `[N, C]`.

    Example:
      >>> import p2pjax as pj
      >>> def select(key, t, state, view):  # all that are permitted, as far as they may
      ...     table = apply_request_limit(key, view, view.permitted)
      ...     fetched = pj.selection.fetch_cost(table, table.mask.shape[1])
      ...     return view.averaged(table), fetched, state
      >>> selection = limit_requests(pj.selection.Selection(lambda *_: (), select), 2)
    """
    if view.max_requests is None:
        return wanted
    num_agents, num_slots = wanted.mask.shape
    held = tables.empty(num_agents, 0) if before is None else before
    free = view.max_requests - _loads(held)  # [N]
    # Who is fetched from already has the place already.
    is_repeated = wanted.mask & tables.contains(held, wanted)

    def proceed(carry: PyTree) -> Array:
        return carry[-1].mask.any()

    def advance(carry: PyTree) -> PyTree:
        key, accepted, free, proposed = carry
        key, key_lottery, key_draw = jax.random.split(key, 3)
        is_in = _first(key_lottery, proposed, free)
        accepted = Topology(
            jnp.where(is_in, proposed.neighbor, accepted.neighbor),
            accepted.mask | is_in,
        )
        free = free - _loads(tables.where(is_in, proposed))
        is_open = wanted.mask & ~accepted.mask  # slots that were turned away
        taken = tables.contains(tables.joined(held, accepted), view.permitted)
        choice = tables.where(
            (free[view.permitted.neighbor] > 0) & ~taken, view.permitted
        )
        others = tables.sample(key_draw, choice, num_slots)
        # The s-th open slot proposes to the s-th agent drawn.
        rank = jnp.cumsum(is_open, axis=1) - 1
        rank = jnp.maximum(rank, 0)
        neighbor, mask = (jnp.take_along_axis(leaf, rank, 1) for leaf in others)
        return (
            key,
            accepted,
            free,
            tables.where(mask & is_open, Topology(neighbor, mask)),
        )

    start = tables.where(is_repeated, wanted)
    proposed = tables.where(~is_repeated, wanted)
    return jax.lax.while_loop(proceed, advance, (key, start, free, proposed))[1]


def _loads(table: Topology) -> Array:
    """How many agents fetch from each, `[N]`."""
    none = jnp.zeros(table.mask.shape[0], jnp.int32)
    return none.at[table.neighbor].add(table.mask.astype(jnp.int32))


def _first(key: Key, proposed: Topology, free: Array) -> Array:
    """Which proposals `[N, C]` get one of the `free` places `[N]` of their targets."""
    num_agents = free.shape[0]
    target = jnp.where(proposed.mask, proposed.neighbor, num_agents).ravel()
    shuffled = jax.random.permutation(key, target.shape[0])
    order = shuffled[jnp.argsort(target[shuffled])]
    ordered = target[order]
    start = jnp.searchsorted(ordered, ordered)
    rank = (
        jnp.zeros_like(target)
        .at[order]
        .set(
            jnp.arange(target.shape[0], dtype=target.dtype) - start.astype(target.dtype)
        )
    )
    places = jnp.append(free, 0)[target]
    return (rank < places).reshape(proposed.mask.shape)
