"""How receivers combine messages that are compressed, late, partly lost or hostile.

`combine` is called where plain mixing (`mixing.mix`) is not enough. It works class by
class and block by block, like plain mixing, and writes where it reads.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import distances, forms
from p2pjax.exchange.attacks.line_search import line_search
from p2pjax.exchange.class_readers import Manner, class_reader, flattened
from p2pjax.exchange.encoding import parts_of
from p2pjax.exchange.losses import lost_to_self
from p2pjax.exchange.mixing import fastest_combine, is_peer
from p2pjax.exchange.reading import (
    Reader,
    Seen,
    Sent,
    Spot,
    columns,
    fold,
    remembered,
    rewrite,
    see,
    with_scale,
    written,
)
from p2pjax.exchange.robust.base import Rule, convex
from p2pjax.types import LOCAL, Array, Key, Peers, PyTree


class Combined(NamedTuple):
    """What receivers make of messages."""

    models: PyTree  # leaves [N, ...], with which agents go on
    attack: PyTree = ()  # what attackers remember
    # [N] messages that a rule did not count since they are not finite; () without rule
    rejected: Array | tuple[()] = ()


class Finite(NamedTuple):
    """Whether messages are finite, `[N]` each."""

    rows: Array  # parameters
    statistics: Array
    hostile: Array  # what attackers send to receiver n


class Extra(NamedTuple):
    """What some rules read beside the messages."""

    key: Key  # of the exchange
    t: Array  # [] round
    loss: Array | None = None  # [N, K] of each message on data of its receiver


def combine(
    manner: Manner,
    sent: Sent,
    own: PyTree,
    route: Callable[[np.ndarray], Any],
    extra: Extra,
    arrived: Array | None = None,
) -> Combined:
    """The models with which agents go on, and what else is known then.

    Attackers do not know what is lost. What lost messages would have counted is counted
    for the receiver's own model; rules do as if their senders did not exist.

    Args:
      manner: of the exchange.
      sent: messages.
      own: the receivers' own models, leaves `[N, ...]`.
      route: owner vector `[N]` of a class -> peers `[N, K]`; slots without weight are
        not there.
      extra: what else rules read.
      arrived: `[N, K]` of the route's peers; None: all that have a weight.
    """
    leaves, structure = jax.tree.flatten(own)
    flat = flattened(sent)
    memory = [] if sent.assault is None else jax.tree.leaves(sent.assault.memory)
    parts = parts_of(manner.plan, own)
    found: list[tuple[Array, Array]] = []  # [N, K] senders of each class, and rejected
    for number, owner_class in enumerate(manner.plan.classes):
        if not owner_class.is_shared:
            continue
        reader = class_reader(manner, flat, leaves, parts, number, route)
        if reader.attack is not None:
            memory = remembered(reader, memory) if memory else memory
        leaves, rejected = _combine_class(manner, reader, extra, arrived)
        if rejected is not None:
            found.append((jnp.asarray(reader.peers.ids), rejected))
    done = Combined(jax.tree.unflatten(structure, leaves), rejected=_number_of(found))
    if not memory:
        return done
    assert sent.assault is not None
    of_attack = jax.tree.structure(sent.assault.memory)
    return done._replace(attack=jax.tree.unflatten(of_attack, memory))


def _number_of(found: list[tuple[Array, Array]]) -> Array | tuple[()]:
    """Messages of which some class was rejected, `[N]`; each counts once."""
    total: Array | tuple[()] = ()
    for number, (ids, rejected) in enumerate(found):
        for earlier, before in found[:number]:
            rejected = rejected & ~(before & (earlier == ids))
        count = rejected.sum(1).astype(jnp.float32)
        total = count if isinstance(total, tuple) else total + count
    return total


def _combine_class(
    manner: Manner, reader: Reader, extra: Extra, arrived: Array | None
) -> tuple[list[Array], Array | None]:
    """All leaves, those of the class combined; and which messages a rule rejects."""
    rule = manner.rule
    is_other = is_peer(reader.peers)
    present = is_other & (reader.peers.weight > 0)
    if reader.is_hostile is not None:
        present = present | reader.is_hostile
    present = jnp.asarray(present).at[:, 0].set(True)
    progress = None
    if rule is not None and rule.needs_progress:
        progress = jnp.asarray(extra.t, jnp.float32) / rule.num_rounds
    key = jax.random.fold_in(extra.key, reader.parts[0].owner_class)
    if reader.attack is not None:
        reader = with_scale(
            reader, _scale(reader, rule, present, key, progress, extra.loss)
        )
    if rule is None:
        weight = lost_to_self(reader.peers, arrived).weight
        return _mixed(manner, reader, jnp.asarray(weight)), None
    if arrived is not None:
        present = present & (arrived | ~is_other)
    is_read_whole = rule.combine is not None and rule.premix is None
    there = present
    present = present & _finite(reader, parameters=is_read_whole)
    rejected = there & ~present
    matrix = None
    if rule.combine is None or rule.premix is not None:
        products = distances.measure_products(reader, pairs=rule.needs_pairs)
        have = distances.received(
            reader, rule, products, present, key, progress, extra.loss
        )
        # Rules do not count what is not finite or so far away that its distance is not.
        rejected = rejected | (there & ~jnp.isfinite(have.distance))
        if rule.combine is None:
            weight = distances.coefficients(rule, have)
            return _mixed(manner, reader, weight), rejected
        assert rule.premix is not None
        matrix, present = jax.vmap(rule.premix)(have)
    return _by_coordinates(reader, rule, present, matrix), rejected


def _scale(
    reader: Reader,
    rule: Rule | None,
    present: Array,
    key: Key,
    progress: Array | None,
    loss: Array | None,
) -> Array | float:
    """Of the attack: given, or found by a search per receiver."""
    assert reader.attack is not None
    if reader.attack.scale is not None:
        return reader.attack.scale
    assert rule is not None and loss is None, "checked by check_adversity"
    if rule.combine is None:
        return distances.searched_scale(reader, rule, present, key, progress)
    return _searched_by_coordinates(reader, rule, present)


def _mixed(manner: Manner, reader: Reader, weight: Array) -> list[Array]:
    """Each receiver takes a sum of what it reads, with these weights `[N, K]`."""
    leaves = list(reader.own)
    statistics = jax.vmap(convex)(weight) if manner.rule is not None else weight
    for number, part in enumerate(reader.parts):
        counted = statistics if part.is_statistic else weight
        leaves[part.leaf] = _mixed_part(
            manner, reader, number, leaves[part.leaf], counted
        )
    return leaves


def _mixed_part(
    manner: Manner, reader: Reader, number: int, leaf: Array, weight: Array
) -> Array:
    hostile = None
    attack = None if reader.parts[number].is_statistic else reader.attack
    if attack is not None and not attack.per_sender:
        assert reader.is_hostile is not None
        hostile = jnp.where(reader.is_hostile, weight, 0).sum(1)
        weight = jnp.where(reader.is_hostile, 0, weight)
    # Slots that count nothing point at the receiver: 0 times NaN would be NaN.
    ids = jnp.asarray(reader.peers.ids)
    others = forms.without_self(Peers(jnp.where(weight == 0, ids[:, :1], ids), weight))
    kept = (weight - others.weight).sum(1)  # what the own model counts
    mix_others = fastest_combine(others, reader.owner)

    def write(leaf: Array, spot: Spot) -> Array:
        seen = see(reader, spot, leaf)
        mixed = _one_block(manner, reader, spot, seen, kept, mix_others)
        if hostile is not None:
            assert seen.hostile is not None
            share = hostile.astype(mixed.dtype)[:, None]
            mixed = mixed + jnp.where(share == 0, 0, share * seen.hostile)
        return _written(reader, leaf, spot, mixed)

    return fold(reader, write, leaf, statistics=True, only=number)


def _one_block(
    manner: Manner,
    reader: Reader,
    spot: Spot,
    seen: Seen,
    kept: Array,
    mix_others: Callable[[Array], Array],
) -> Array:
    """The sum without hostile rows, in the form that suits the messages."""
    part = reader.parts[spot.part]
    own_share = kept.astype(seen.own.dtype)
    if reader.sent.mask is not None and not part.is_statistic:
        mask = columns(reader.sent.mask[part.leaf], spot.at, spot.sizes)
        return forms.sparse_form(mix_others, seen.own, seen.rows, mask)
    is_inexact = manner.format is not None and not part.is_statistic
    if not is_inexact or manner.rule is not None:
        return forms.own_exact_form(mix_others, own_share, seen.own, seen.rows)
    decoded = seen.decoded
    if reader.sent.current is not None:
        decoded = columns(reader.sent.current[part.leaf], spot.at, spot.sizes)
    return forms.late_difference_form(
        mix_others, own_share, seen.own, decoded, seen.rows
    )


def _by_coordinates(
    reader: Reader, rule: Rule, present: Array, matrix: Array | None
) -> list[Array]:
    """A rule that looks at each number by itself."""

    def write(leaf: Array, spot: Spot) -> Array:
        mixed = _ruled(reader, rule, present, matrix, see(reader, spot, leaf))
        return _written(reader, leaf, spot, mixed)

    return rewrite(reader, write)


def _ruled(
    reader: Reader, rule: Rule, present: Array, matrix: Array | None, seen: Seen
) -> Array:
    assert rule.combine is not None
    ids = jnp.asarray(reader.peers.ids)
    members = seen.rows[ids].at[:, 0].set(seen.own)  # [N, K, c]: c is small
    if seen.hostile is not None and reader.is_hostile is not None:
        at = reader.is_hostile[:, :, None]
        members = jnp.where(at, seen.hostile[:, None, :], members)
    if matrix is not None:
        members = jnp.einsum(
            "nkl,nlc->nkc",
            matrix.astype(members.dtype),
            jnp.where(jnp.isfinite(members), members, 0),
            precision="highest",
        )
    weight = jnp.asarray(reader.peers.weight).astype(members.dtype)
    return jax.vmap(rule.combine)(members, present, weight)


def _searched_by_coordinates(reader: Reader, rule: Rule, present: Array) -> Array:
    """The most harmful scale `[N]`; each try reads all models once."""
    quiet = reader._replace(attack=None)
    target = distances.target(reader, rule, present)
    mix = fastest_combine(target, reader.owner)

    def damage(scale: Array) -> Array:
        now = with_scale(reader, scale)

        def add(total: Array, spot: Spot) -> Array:
            seen = see(now, spot)
            moved = _ruled(reader, rule, present, None, seen)
            gap = moved - mix(see(quiet, spot).rows)
            return total + jnp.square(gap).sum(1).astype(total.dtype)

        none = jnp.zeros(present.shape[0])
        return fold(reader, add, none)

    return line_search(damage, present.shape[0])


def _finite(reader: Reader, *, parameters: bool) -> Array:
    """`[N, K]`: messages without a number that is not finite.

    Distances tell it of parameters; statistics always have to be looked at.
    """

    def add(found: Finite, spot: Spot) -> Finite:
        is_statistic = reader.parts[spot.part].is_statistic
        if not (parameters or is_statistic):
            return found
        seen = see(reader, spot)
        rows = jnp.isfinite(seen.rows).all(1)
        if is_statistic:
            return found._replace(statistics=found.statistics & rows)
        found = found._replace(rows=found.rows & rows)
        if seen.hostile is None:
            return found
        return found._replace(hostile=found.hostile & jnp.isfinite(seen.hostile).all(1))

    yes = jnp.ones(len(reader.owner), bool)
    start = Finite(yes, yes, yes)
    rows, statistics, hostile = fold(reader, add, start, statistics=True)
    ids = jnp.asarray(reader.peers.ids)
    found = rows[ids]
    is_per_receiver = reader.attack is not None and not reader.attack.per_sender
    if is_per_receiver and reader.is_hostile is not None:
        found = jnp.where(reader.is_hostile, hostile[:, None], found)
    return (found & statistics[ids]).at[:, 0].set(True)


def _written(reader: Reader, leaf: Array, spot: Spot, mixed: Array) -> Array:
    """The leaf with a block replaced for the agents that share it."""
    if (reader.owner == LOCAL).any():
        is_local = (reader.owner == LOCAL)[:, None]
        old = columns(leaf, spot.at, spot.sizes)
        mixed = jnp.where(is_local, old, mixed.astype(leaf.dtype))
    return written(leaf, spot, mixed)
