"""PANM: keep the most similar peers found so far, then a bag of those like you.

Li et al. (2022), "Towards effective clustered federated learning: a peer-to-peer
framework with adaptive neighbor matching"; parameters as in Sajina (2025). In the first
stage each agent compares its neighbours with new peers and keeps the best. In the
second it has a bag of peers, averages with some of them, and now and then divides a few
of the bag and a few others into two groups: the more similar one goes into the bag, the
other out of it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.graphs.topology import Topology
from p2pjax.selection import gaussian_mixture, pair_values, tables
from p2pjax.selection.base import Fetched, PeerView, Selection, fetch_cost
from p2pjax.selection.pair_values import PairValues
from p2pjax.selection.request_limits import apply_request_limit
from p2pjax.selection.similarity import Similarity, negative_loss
from p2pjax.types import Array, InputError, Key, Peers, PyTree


class PANMState(NamedTuple):
    """Who is thought to be alike."""

    neighbors: Topology  # [N, num_peers]: merged last, in the first stage
    bag: PairValues  # bool
    memory: PyTree  # of the similarity measure


def panm(
    *,
    similarity: Similarity | None = None,
    num_peers: int = 3,
    num_candidates: int = 6,
    second_stage: int = 100,
    matching_every: int = 10,
    counts_all: bool = True,
) -> Selection:
    """Personalized adaptive neighbour matching.

    Args:
      similarity: `similarity.negative_loss()` if None, `update_cosine()` or
        `agreement()`.
      num_peers: models to average with.
      num_candidates: peers to compare in a round of the first stage, old neighbours
        included; and at most as many of the bag, and as many others, in a matching.
      second_stage: the first round, counted from 1, of the second stage; the first
        stage fills the bag.
      matching_every: rounds from one matching to the next; they happen in rounds whose
        number, counted from 1, it divides.
      counts_all: False counts messages as the thesis does, whose second stage averages
        for nothing with peers that were not examined in the same round. `Info.counted`
        has its count in both cases.
    """
    is_possible = second_stage > 1 and matching_every > 0
    if not (1 <= num_peers <= num_candidates and is_possible):
        raise InputError(
            "Need 1 <= num_peers <= num_candidates, second_stage of 2 or more and "
            f"matching_every of 1 or more, got num_peers={num_peers}, "
            f"num_candidates={num_candidates}, second_stage={second_stage} and "
            f"matching_every={matching_every}."
        )
    compare = negative_loss() if similarity is None else similarity
    num_fetched = 2 * num_candidates + num_peers

    def init_fn(key: Key, view: PeerView) -> PANMState:
        del key
        none_yet = tables.empty(view.num_agents, num_peers)
        bag = pair_values.blank(view.permitted, bool, forgets=view.forgets)
        return PANMState(none_yet, bag, compare.init(view))

    def select_fn(
        key: Key, t: Array, state: PANMState, view: PeerView
    ) -> tuple[Peers, Fetched, PANMState]:
        key_draw, key_bag, key_merge, *keys_admit = jax.random.split(key, 5)
        state = state._replace(bag=pair_values.followed(state.bag, view.permitted))

        def explore(state: PANMState) -> tuple[Topology, Fetched, PANMState]:
            old = state.neighbors
            old = tables.where(tables.contains(view.permitted, old), old)
            is_new = ~tables.contains(old, view.permitted)
            new = tables.sample(
                key_draw,
                tables.where(is_new, view.permitted),
                num_candidates,
                limit=num_candidates - old.mask.sum(1),
            )
            candidates = apply_request_limit(
                keys_admit[0], view, tables.joined(old, new)
            )
            scores = compare.measure(state.memory, view, candidates)
            chosen = tables.top_k(candidates, scores, num_peers)
            pulled = cost(view, candidates, chosen)  # all of them are candidates
            empty = pair_values.with_values(
                state.bag, jnp.zeros_like(pair_values.values(state.bag))
            )
            bag = pair_values.noted(empty, chosen, chosen.mask)
            return chosen, pulled, state._replace(neighbors=chosen, bag=bag)

        def exploit(state: PANMState) -> tuple[Topology, Fetched, PANMState]:
            examined, bag = jax.lax.cond(
                (t + 1) % matching_every == 0, match, keep_bag, state
            )
            is_alike = pair_values.recalled(bag, view.permitted)
            known = view._replace(permitted=tables.where(is_alike, view.permitted))
            wanted = tables.sample(key_merge, known.permitted, num_peers)
            chosen = apply_request_limit(keys_admit[1], known, wanted, examined)
            is_counted = tables.contains(examined, chosen) | counts_all
            pulled = cost(view, examined, tables.where(is_counted, chosen))
            return chosen, pulled, state._replace(bag=bag)

        def keep_bag(state: PANMState) -> tuple[Topology, PairValues]:
            return tables.empty(view.num_agents, 2 * num_candidates), state.bag

        def match(state: PANMState) -> tuple[Topology, PairValues]:
            is_alike = pair_values.recalled(state.bag, view.permitted)
            alike, unlike = (
                tables.where(group, view.permitted) for group in (is_alike, ~is_alike)
            )
            others = tables.sample(key_draw, unlike, num_candidates)
            some = tables.sample(key_bag, alike, num_candidates)
            examined = apply_request_limit(
                keys_admit[0], view, tables.joined(others, some)
            )
            scores = compare.measure(state.memory, view, examined)
            is_in_bag = pair_values.recalled(state.bag, examined)
            is_alike = matched(scores, is_in_bag, examined.mask)
            return examined, pair_values.noted(state.bag, examined, is_alike)

        def cost(view: PeerView, examined: Topology, merged: Topology) -> Fetched:
            """No agent is fetched from twice in a round."""
            is_new = ~tables.contains(examined, merged)
            both = tables.joined(examined, tables.where(is_new, merged))
            is_merged = tables.contains(merged, both)
            is_examined = jnp.arange(both.mask.shape[1]) < examined.mask.shape[1]
            models = jnp.where(is_examined[None], compare.payload(view), 0)
            has_model = is_examined[None] & compare.sends_model
            models = models + jnp.where(is_merged & ~has_model, 1.0, 0)
            # The thesis leaves out what is averaged with and not examined.
            counted = jnp.broadcast_to(is_examined[None], both.mask.shape)
            return fetch_cost(both, num_fetched, models, counted)

        is_first = t + 1 < second_stage
        chosen, pulled, state = jax.lax.cond(is_first, explore, exploit, state)
        return view.averaged(chosen), pulled, state

    return Selection(init_fn, select_fn)


def matched(scores: Array, is_in_bag: Array, mask: Array) -> Array:
    """Which of the peers compared are alike, `[N, L]`: the group of higher scores.

    Those of the bag stay in it where there is nothing to compare them with.

    Args:
      scores: `[N, L]`.
      is_in_bag: `[N, L]`; the two groups to begin with.
      mask: `[N, L]` which slots are used.
    """
    usable = mask & (scores > -jnp.inf)
    label = jax.vmap(gaussian_mixture.fit)(scores, is_in_bag, usable).label  # [N, L]

    def mean(group: Array) -> Array:
        """`[N]`; minus infinity for an empty group."""
        size = group.astype(scores.dtype).sum(1)
        total = jnp.where(group, scores, 0).sum(1)
        return jnp.where(size > 0, total / jnp.maximum(size, 1), -jnp.inf)

    ones, zeros = label & usable, ~label & usable
    is_one_best = mean(ones) >= mean(zeros)  # [N]
    alike = jnp.where(jnp.expand_dims(is_one_best, 1), ones, zeros)
    has_both = jnp.any(usable & is_in_bag, 1) & jnp.any(usable & ~is_in_bag, 1)
    return jnp.where(has_both[:, None], alike, is_in_bag & mask)
