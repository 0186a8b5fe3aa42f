"""Distances between the models that a receiver has, for rules that need no more.

Differences are formed block by block and slot by slot: products of models in single
precision would lose distances that are small beside the models. Where receivers have
many peers, pairs of messages come from one matrix of centred products.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.exchange.attacks.line_search import honest_peers, line_search
from p2pjax.exchange.reading import Reader, Spot, fold, hostile_rows, see
from p2pjax.exchange.robust.base import Received, Rule
from p2pjax.types import Array, Key, Peers


class Products(NamedTuple):
    """Squared distances of a class; `hostile` fields are None without attackers."""

    to_own: Array  # [N, K] of each agent's message from the receiver's own model
    norm: Array  # [N, K] squared, of each message; of the own model in slot 0
    pairs: Array | None = None  # [N, K, K] between messages; row 0 is not filled
    hostile_to_own: Array | None = None  # [N]
    hostile_to: Array | None = None  # [N, K] from what attackers send to each message
    hostile_norm: Array | None = None  # [N] squared


class Along(NamedTuple):
    """What distances from `own + scale * direction` follow from."""

    products: Array  # [N, K] of the direction with each message less the own model
    own: Array  # [N] of the direction with the own model
    square: Array  # [N] of the direction


def measure_products(reader: Reader, *, pairs: bool) -> Products:
    """Distances of all that receivers read.

    Args:
      reader: of the class.
      pairs: whether those between messages are needed.
    """
    ids = jnp.asarray(reader.peers.ids)
    by_matrix = pairs and ids.shape[1] ** 2 > 2 * ids.shape[0]
    is_hostile = _has_hostile_rows(reader)
    size, slots = ids.shape
    none = jnp.zeros((size, slots))
    start = Products(
        none,
        none,
        _no_pairs(size, slots, by_matrix) if pairs else None,
        *((none[:, 0], none, none[:, 0]) if is_hostile else ()),
    )

    def add(total: Products, spot: Spot) -> Products:
        seen = see(reader, spot)
        rows = seen.rows
        squares = jnp.square(rows).sum(1)
        found = Products(
            _slots(ids, lambda peer: jnp.square(rows[peer] - seen.own).sum(1)),
            squares[ids].at[:, 0].set(jnp.square(seen.own).sum(1)),
            _pairs(rows, ids, by_matrix) if pairs else None,
        )
        if is_hostile:
            assert seen.hostile is not None
            hostile = jnp.broadcast_to(seen.hostile, rows.shape)
            found = found._replace(
                hostile_to_own=jnp.square(hostile - seen.own).sum(1),
                hostile_to=_slots(
                    ids, lambda peer: jnp.square(rows[peer] - hostile).sum(1)
                ),
                hostile_norm=jnp.square(hostile).sum(1),
            )
        return jax.tree.map(lambda t, new: t + new.astype(t.dtype), total, found)

    total = fold(reader, add, start)
    if by_matrix:  # [N, N] -> [N, K, K]
        assert total.pairs is not None
        square = jnp.diagonal(total.pairs)
        between = square[:, None] + square[None, :] - 2 * total.pairs
        found = between[ids[:, :, None], ids[:, None, :]]
        total = total._replace(pairs=jnp.maximum(found, 0))
    return total


def received(
    reader: Reader,
    rule: Rule,
    products: Products,
    present: Array,
    key: Key,
    progress: Array | None = None,
    loss: Array | None = None,
) -> Received:
    """What all receivers have, leaves `[N, ...]`.

    Args:
      reader: of the class.
      rule: that will read it.
      products: of the class.
      present: `[N, K]`, what arrived.
      key: of the exchange.
      progress: t / T.
      loss: `[N, K]` of each message on data of the receiver.
    """
    size, slots = present.shape
    to_own, norm = products.to_own, products.norm
    pairs = None if products.pairs is None else jnp.asarray(products.pairs)
    if products.hostile_to is not None:
        assert reader.is_hostile is not None and products.hostile_to_own is not None
        assert products.hostile_norm is not None
        at = reader.is_hostile
        to_own = jnp.where(at, products.hostile_to_own[:, None], to_own)
        norm = jnp.where(at, products.hostile_norm[:, None], norm)
        if pairs is not None:
            cross = products.hostile_to
            pairs = jnp.where(at[:, :, None], cross[:, None, :], pairs)
            pairs = jnp.where(at[:, None, :], cross[:, :, None], pairs)
            pairs = jnp.where(at[:, :, None] & at[:, None, :], 0, pairs)
    is_own = jnp.arange(slots) == 0
    to_own = jnp.where(is_own[None], 0, to_own)
    if pairs is not None:
        pairs = pairs.at[:, 0, :].set(to_own).at[:, :, 0].set(to_own)
    keys = None
    if rule.needs_key:
        keys = jax.random.split(key, size)
    if progress is not None:
        progress = jnp.broadcast_to(progress, (size,))
    weight = jnp.asarray(reader.peers.weight).astype(to_own.dtype)
    return Received(
        weight,
        present,
        jnp.sqrt(to_own),
        pairs if rule.needs_pairs else None,
        jnp.sqrt(norm) if rule.needs_norms else None,
        loss,
        progress,
        keys,
    )


def coefficients(rule: Rule, have: Received) -> Array:
    """What each message counts for each receiver, `[N, K]`."""
    assert rule.coefficients is not None
    return jax.vmap(rule.coefficients)(have)


def searched_scale(
    reader: Reader, rule: Rule, present: Array, key: Key, progress: Array | None
) -> Array:
    """The scale of the attack that does most damage to each receiver, `[N]`.

    For rules that need distances only: no try reads the models again.

    Args:
      reader: of the class.
      rule: that is attacked.
      present: `[N, K]`, what arrived.
      key: of the exchange.
      progress: t / T.
    """
    assert reader.is_hostile is not None
    quiet = reader._replace(attack=None)
    products = measure_products(quiet, pairs=True)
    along = _along(reader)
    wanted = target(reader, rule, present).weight
    needs_pairs = rule._replace(needs_pairs=True)

    def damage(scale: Array) -> Array:
        square = jnp.square(scale) * along.square
        now = products._replace(
            hostile_to_own=square,
            hostile_to=jnp.maximum(
                products.to_own - 2 * scale[:, None] * along.products + square[:, None],
                0,
            ),
            hostile_norm=products.norm[:, 0] + 2 * scale * along.own + square,
        )
        have = received(reader, needs_pairs, now, present, key, progress)
        gap = coefficients(rule, have) - wanted.astype(have.weight.dtype)
        assert have.squares is not None
        squares = jnp.where(gap[:, :, None] * gap[:, None, :] == 0, 0, have.squares)
        return -jnp.einsum("nk,nkl,nl->n", gap, squares, gap) / 2

    return line_search(damage, present.shape[0])


def target(reader: Reader, rule: Rule, present: Array) -> Peers:
    """What receivers would combine if attackers sent nothing."""
    assert reader.is_hostile is not None
    away = reader.is_hostile | ~present
    if rule.step_size is None:
        return honest_peers(reader.peers, away, renormalize=True)
    found = honest_peers(reader.peers, away, renormalize=False)
    others = jnp.asarray(found.weight).at[:, 0].set(0) * rule.step_size
    return found._replace(weight=others.at[:, 0].set(1 - others.sum(1)))


def _along(reader: Reader) -> Along:
    ids = jnp.asarray(reader.peers.ids)
    none = jnp.zeros(ids.shape)
    quiet = reader._replace(attack=None)

    def add(total: Along, spot: Spot) -> Along:
        seen = see(quiet, spot)
        direction = hostile_rows(reader, spot).direction
        assert direction is not None
        direction = jnp.broadcast_to(direction, seen.rows.shape)
        found = Along(
            _slots(ids, lambda peer: ((seen.rows[peer] - seen.own) * direction).sum(1)),
            (seen.own * direction).sum(1),
            jnp.square(direction).sum(1),
        )
        return jax.tree.map(lambda t, new: t + new.astype(t.dtype), total, found)

    return fold(reader, add, Along(none, none[:, 0], none[:, 0]))


def _has_hostile_rows(reader: Reader) -> bool:
    attack = reader.attack
    return attack is not None and attack.hostile is not None and not attack.per_sender


def _slots(ids: Array, of_slot) -> Array:
    """`[N, K]` of a function of the ids `[N]` in a slot."""
    return jax.lax.map(of_slot, ids.T).T


def _no_pairs(size: int, slots: int, by_matrix: bool) -> Array:
    return jnp.zeros((size, size) if by_matrix else (size, slots, slots))


def _pairs(rows: Array, ids: Array, by_matrix: bool) -> Array:
    """`[N, K, K]` squared distances, or `[N, N]` centred products."""
    if by_matrix:
        centered = rows - ordinary_mean(rows)
        return jnp.matmul(centered, centered.T, precision="highest")

    def of_slot(one: Array) -> Array:
        mine = rows[one]
        return jax.lax.map(lambda peer: jnp.square(rows[peer] - mine).sum(1), ids.T)

    return jnp.moveaxis(jax.lax.map(of_slot, ids.T), 2, 0)


def ordinary_mean(rows: Array) -> Array:
    """`[1, c]`: the mean of rows that are not far longer than most.

    A mean with one hostile row in it may be so far away that all distances are lost.
    """
    square = jnp.square(rows).sum(1)
    is_ordinary = square <= 16 * jnp.median(
        jnp.where(jnp.isnan(square), jnp.inf, square)
    )
    total = jnp.where(is_ordinary[:, None], rows, 0).sum(0, keepdims=True)
    return total / jnp.maximum(is_ordinary.sum(), 1).astype(rows.dtype)
