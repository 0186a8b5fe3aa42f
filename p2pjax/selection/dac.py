"""DAC: sample those whose models do well on your data, and those they think well of.

Listo Zec et al. (2023), "Decentralized adaptive clustering of deep nets is beneficial
for client collaboration". Agents remember how similar their peers were; about peers
they have not met they believe the most similar one they ask. Where agents know a few
others only (`PeerView.forgets`), they tell and believe nothing about the rest.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.graphs.topology import Topology
from p2pjax.selection import pair_values, tables
from p2pjax.selection.base import Fetched, PeerView, Selection, fetch_cost
from p2pjax.selection.pair_values import Known, PairValues
from p2pjax.selection.request_limits import apply_request_limit
from p2pjax.selection.similarity import Similarity, inverse_loss
from p2pjax.types import Array, InputError, Key, Peers, PyTree

# Peers whose probability, in units of the largest, a float64 cannot hold are not drawn.
LOG_SMALLEST = -745.0


class DACState(NamedTuple):
    """What agents know of each other."""

    similarity: PairValues  # from 0; 0 is unknown
    is_met: PairValues  # bool; others are hearsay
    memory: PyTree  # of the similarity measure


def dac(
    *,
    num_peers: int = 3,
    sharpness: float = 30.0,
    anneal: bool = False,
    similarity: Similarity | None = None,
) -> Selection:
    """Decentralized adaptive clustering.

    Args:
      num_peers: models to fetch and average with.
      sharpness: how much likelier similar peers are: the factor of similarities in a
        softmax.
      anneal: whether it begins at 1 and rises to its value in about twenty rounds.
      similarity: `similarity.inverse_loss()` if None, `agreement()` or
        `update_cosine()`; what is negative counts as 0.
    """
    if num_peers < 1 or sharpness < 0:
        raise InputError(
            "Need one peer or more and a sharpness that is not negative, got "
            f"num_peers={num_peers} and sharpness={sharpness}."
        )
    compare = inverse_loss() if similarity is None else similarity

    def init_fn(key: Key, view: PeerView) -> DACState:
        del key
        similarity, is_met = (
            pair_values.blank(view.permitted, dtype, forgets=view.forgets)
            for dtype in (jnp.float32, bool)
        )
        return DACState(similarity, is_met, compare.init(view))

    def select_fn(
        key: Key, t: Array, state: DACState, view: PeerView
    ) -> tuple[Peers, Fetched, DACState]:
        key_draw, key_admit = jax.random.split(key)
        factor = annealed_sharpness(sharpness, t) if anneal else jnp.float32(sharpness)
        similarity, is_met = (
            pair_values.followed(known, view.permitted)
            for known in (state.similarity, state.is_met)
        )
        logits = factor * pair_values.recalled(similarity, view.permitted)
        likely = tables.where(is_likely(logits, view.permitted), view.permitted)
        wanted = tables.sample(key_draw, likely, num_peers, logits)
        asked = apply_request_limit(key_admit, view._replace(permitted=likely), wanted)
        found = compare.measure(state.memory, view, asked)
        is_met = pair_values.noted(is_met, asked, jnp.ones(asked.mask.shape, bool))
        met = pair_values.noted(similarity, asked, jnp.maximum(found, 0))
        told = two_hop_similarity(similarity, asked, jnp.maximum(found, 0))
        is_hearsay = ~pair_values.values(is_met) & (told > 0)
        similarity = pair_values.with_values(
            met, jnp.where(is_hearsay, told, pair_values.values(met))
        )
        state = DACState(similarity, is_met, state.memory)
        chosen = tables.where(found > -jnp.inf, asked)
        models = compare.payload(view) + jnp.where(
            chosen.mask & (not compare.sends_model), 1.0, 0
        )
        return view.averaged(chosen), fetch_cost(asked, num_peers, models), state

    return Selection(init_fn, select_fn)


def annealed_sharpness(sharpness: float, t: Array) -> Array:
    """The anneal sharpness in round t, counted from 0."""
    rounds = t.astype(jnp.float32)
    return 2 * sharpness / (1 + jnp.exp(-0.2 * rounds)) - sharpness + 1


def is_likely(logits: Array, table: Topology) -> Array:
    """`[N, C]`: which peers have a probability that is not as good as zero."""
    logits = jnp.where(table.mask, logits, -jnp.inf)
    return logits - logits.max(1, keepdims=True) > LOG_SMALLEST


def two_hop_similarity(similarity: PairValues, asked: Topology, found: Array) -> Array:
    """What the most similar agent asked, of those that know, says about others.

    Args:
      similarity: what agents knew before any asked; 0 is unknown. In views, agents
        have only something to say of those that they know themselves.
      asked: `[N, C]`.
      found: `[N, C]` how similar those who were asked are.

    Returns:
      Of all agents `[N, N]`, or of those in the view `[N, V]`: `pair_values.values`.
    """
    known = pair_values.values(similarity)

    def said_by(peer: Array) -> Array:
        """What one agent `[N]` that each asks says, in the places of `known`."""
        if not isinstance(similarity, Known):
            return similarity[peer]
        theirs = jax.tree.map(lambda leaf: leaf[peer], similarity)
        says = pair_values.recalled(theirs, similarity.about)
        return jnp.where(similarity.about.mask, says, 0)

    def ask(
        best: tuple[jax.Array, jax.Array], slot: tuple
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        told, trust = best
        peer, is_asked, how_similar = slot
        says = said_by(peer)
        trusted = jnp.where(is_asked, how_similar, -jnp.inf)[:, None]
        is_better = (says > 0) & (trusted > trust)
        best = jnp.where(is_better, says, told), jnp.where(is_better, trusted, trust)
        return best, None

    zeros = jnp.zeros_like(known)
    slots = (jnp.asarray(asked.neighbor).T, jnp.asarray(asked.mask).T, found.T)
    (told, _), _ = jax.lax.scan(ask, (zeros, zeros - jnp.inf), slots)
    if isinstance(similarity, Known):
        return told
    is_self = jnp.eye(known.shape[0], dtype=bool)
    return jnp.where(is_self, 0, told)
