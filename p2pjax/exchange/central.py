"""How servers combine the messages of their members.

Each group of agents that own the same numbers has a server. Its own model is the centre
of rules that have one, but none of their members. Servers work class by class and block
by block, like `aggregation` for receivers that are agents. Those of groups of one size
work together: a group never touches numbers of another one, and there is one row of
work per agent.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import distances
from p2pjax.exchange.aggregation import Extra, Manner
from p2pjax.exchange.distances import Products, ordinary_mean
from p2pjax.exchange.encoding import parts_of
from p2pjax.exchange.mixing import BLOCK_BYTES, group_tables
from p2pjax.exchange.reading import (
    Reader,
    Sent,
    Spot,
    columns,
    fold,
    rewrite,
    written,
)
from p2pjax.exchange.robust.base import Rule, convex
from p2pjax.types import Array, Key, Peers, PyTree


class Table(NamedTuple):
    """Servers of groups of the same size."""

    members: np.ndarray  # [G, S] agents
    rows: slice  # which of all servers of the class they are
    # [G, 1 + S]: what members count in a mean; the server, which counts nothing, first
    peers: Peers


class Heard(NamedTuple):
    """What the servers of a table know of messages before they combine them."""

    products: Products  # of [G, 1 + S], the server first
    is_finite: Array  # [G, S]


class Decision(NamedTuple):
    """What the servers of a table make of their messages; leaves `[G, ...]`."""

    is_enough: Array  # [G] whether enough of them arrived; else models stay
    weight: Array  # [G, 1 + S] mixing weights
    counts: Array | None = None  # [G, 1 + S]; None: a rule looks at each number
    present: Array | None = None  # [G, 1 + S] for such a rule
    matrix: Array | None = None  # [G, 1 + S, 1 + S] by which members are mixed before
    rejected: Array | None = None  # [G, S] bool: arrived, but not finite; with a rule


def combine_clients(
    manner: Manner, rows: PyTree, own: PyTree, weight: Array, extra: Extra
) -> tuple[PyTree, Array, Array | tuple[()]]:
    """The new model of ONE server, `[1, ...]`, and whether it had enough messages.

    Without enough of them it keeps its model.

    Args:
      manner: of the exchange, in which all agents share the same; attackers' messages
        are among the rows.
      rows: messages of all agents, leaves `[N, ...]`.
      own: the server's model, leaves `[1, ...]`.
      weight: `[N]` what each client counts in a mean; 0 for those of whom nothing
        arrived.
      extra: what else rules read.

    Returns:
      Also `[N]` messages of each client that its rule rejected; () without one.
    """
    models, heard, rejected = combine_members(
        manner, rows, own, lambda owner: weight, extra
    )
    is_enough = weight.sum() > 0
    for owner_class, served in zip(manner.plan.classes, heard, strict=True):
        if owner_class.is_shared:
            is_enough = is_enough & served[0]
    return models, is_enough, rejected


def combine_members(
    manner: Manner,
    rows: PyTree,
    models: PyTree,
    weight_of: Callable[[np.ndarray], Array],
    extra: Extra,
) -> tuple[PyTree, tuple[Array, ...], Array | tuple[()]]:
    """The new models of all servers, and whose server had enough messages.

    A server without enough of them keeps its model.

    Args:
      manner: of the exchange; attackers' messages are among the rows.
      rows: messages of all agents, leaves `[N, ...]`.
      models: of the servers, leaves `[G, ...]`: in the columns of a class the first
        rows are of its groups, in the order of `mixing.group_tables`.
      weight_of: owner vector `[N]` of a class -> `[N]` what each agent counts in a
        mean; 0 for those of whom nothing arrived.
      extra: what else rules read.

    Returns:
      Leaves `[G, ...]`; of each class `[N]` bool, False for agents without a server;
      and `[N]`, 1 for agents of whose message a rule rejected some class since it was
      not finite, () without a rule.
    """
    leaves, structure = jax.tree.flatten(models)
    messages = jax.tree.leaves(rows)
    parts = parts_of(manner.plan, models)
    served: list[Array] = []
    rejected = jnp.zeros(0 if manner.rule is None else len(messages[0]), bool)
    for number, owner_class in enumerate(manner.plan.classes):
        owner = owner_class.owner
        of_class = tuple(part for part in parts if part.owner_class == number)
        if not of_class:
            served.append(jnp.zeros(len(owner), bool))
            continue
        tables = _tables(owner, weight_of(owner))
        reader = Reader(
            of_class,
            owner,
            tables[0].peers,
            Sent(messages),
            leaves,
            block_bytes=_block_bytes(leaves[0].shape[0], len(owner)),
        )
        key = jax.random.fold_in(extra.key, number)
        decisions = _decisions(reader, tables, manner.rule, key)
        leaves = _combined(reader, tables, decisions, manner.rule)
        found = jnp.zeros(len(owner), bool)
        for table, decision in zip(tables, decisions, strict=True):
            enough = jnp.broadcast_to(decision.is_enough[:, None], table.members.shape)
            found = found.at[table.members].set(enough)
            if decision.rejected is not None:
                rejected = rejected.at[table.members].max(decision.rejected)
        served.append(found)
    count = () if manner.rule is None else rejected.astype(jnp.float32)
    return jax.tree.unflatten(structure, leaves), tuple(served), count


def _tables(owner: np.ndarray, weight: Array) -> list[Table]:
    found: list[Table] = []
    first = 0
    for members in group_tables(owner)[0]:
        counts = jnp.asarray(weight)[members]
        total = counts.sum(1, keepdims=True)
        share = counts / jnp.where(total > 0, total, 1)
        none = np.zeros((len(members), 1), np.int32)
        peers = Peers(
            np.concatenate([none, members], axis=1),
            jnp.concatenate([none.astype(share.dtype), share], axis=1),
        )
        found.append(Table(members, slice(first, first + len(members)), peers))
        first += len(members)
    return found


def _decisions(
    reader: Reader, tables: Sequence[Table], rule: Rule | None, key: Key
) -> list[Decision]:
    """Of each table; messages are read at most once for it."""
    if rule is None:
        return [
            Decision(weight.sum(1) > 0, weight, counts=weight)
            for weight in (jnp.asarray(table.peers.weight) for table in tables)
        ]
    found = []
    for number, (table, heard) in enumerate(
        zip(tables, _heard(reader, tables, rule), strict=True)
    ):
        weight = jnp.asarray(table.peers.weight)
        has_come = weight[:, 1:] > 0
        is_there = has_come & heard.is_finite
        present = jnp.pad(is_there, ((0, 0), (1, 0)), constant_values=True)
        have = distances.received(
            reader._replace(peers=table.peers),
            rule,
            heard.products,
            present,
            jax.random.fold_in(key, number),
        )
        have = have._replace(counts_self=jnp.zeros(len(weight), bool))
        is_read = is_there
        if rule.combine is None or rule.premix is not None:
            is_read = is_there & jnp.isfinite(have.distance[:, 1:])
        decision = Decision(
            is_there.sum(1) >= rule.min_members, weight, rejected=has_come & ~is_read
        )
        if rule.combine is None:
            decision = decision._replace(counts=distances.coefficients(rule, have))
        elif rule.premix is None:
            decision = decision._replace(present=present)
        else:
            matrix, mask = jax.vmap(rule.premix)(have)
            decision = decision._replace(present=mask, matrix=matrix)
        found.append(decision)
    return found


def _heard(reader: Reader, tables: Sequence[Table], rule: Rule) -> tuple[Heard, ...]:
    """Distances of members from their server and from each other; one pass."""
    of_server = partial(_products, pairs=rule.needs_pairs)

    def nothing(table: Table) -> Heard:
        num_servers, size = table.members.shape
        none = jnp.zeros((num_servers, 1 + size))
        pairs = jnp.zeros((num_servers, size, size)) if rule.needs_pairs else None
        return Heard(Products(none, none, pairs), jnp.ones((num_servers, size), bool))

    def add(total: tuple[Heard, ...], spot: Spot) -> tuple[Heard, ...]:
        own, rows = _seen(reader, spot, None)
        found = []
        for table, (products, is_finite) in zip(tables, total, strict=True):
            members = rows[table.members]  # [G, S, c]: each agent once
            is_finite = is_finite & jnp.isfinite(members).all(2)
            if not reader.parts[spot.part].is_statistic:
                more = jax.vmap(of_server)(own[table.rows], members)
                products = jax.tree.map(
                    lambda t, new: t + new.astype(t.dtype), products, more
                )
            found.append(Heard(products, is_finite))
        return tuple(found)

    start = tuple(nothing(table) for table in tables)
    total = fold(reader, add, start, statistics=True)
    return tuple(map(_with_pairs, total)) if rule.needs_pairs else total


def _products(own: Array, members: Array, *, pairs: bool) -> Products:
    """Of ONE server `[c]` and its members `[S, c]`; of pairs, centred products."""
    both = jnp.concatenate([own[None], members])
    found = Products(jnp.square(both - own[None]).sum(1), jnp.square(both).sum(1))
    if not pairs:
        return found
    centered = members - ordinary_mean(members)
    gram = jnp.matmul(centered, centered.T, precision="highest")
    return found._replace(pairs=gram)


def _with_pairs(heard: Heard) -> Heard:
    """With squared distances of pairs `[G, 1 + S, 1 + S]` in place of products."""
    gram = jnp.asarray(heard.products.pairs)
    square = jnp.diagonal(gram, axis1=1, axis2=2)
    between = jnp.maximum(square[:, :, None] + square[:, None, :] - 2 * gram, 0)
    padded = jnp.pad(between, ((0, 0), (1, 0), (1, 0)))
    return heard._replace(products=heard.products._replace(pairs=padded))


def _combined(
    reader: Reader,
    tables: Sequence[Table],
    decisions: Sequence[Decision],
    rule: Rule | None,
) -> list[Array]:
    """All leaves of the servers, those of the class combined."""
    num_servers = tables[-1].rows.stop

    def write(leaf: Array, spot: Spot) -> Array:
        own, rows = _seen(reader, spot, leaf)
        is_statistic = reader.parts[spot.part].is_statistic
        one = jax.vmap(partial(_one_server, rule, is_statistic))
        new = [
            one(own[table.rows], rows[table.members], decision)
            for table, decision in zip(tables, decisions, strict=True)
        ]
        return written(leaf, spot, jnp.concatenate([*new, own[num_servers:]]))

    return rewrite(reader, write)


def _one_server(
    rule: Rule | None,
    is_statistic: bool,
    own: Array,
    members: Array,
    decision: Decision,
) -> Array:
    """What ONE server makes of a block `[S, c]` of its members, `[c]`."""
    if decision.counts is None:
        assert rule is not None
        new = _by_coordinates(rule, own, members, decision)
    else:
        counts = decision.counts
        if is_statistic and rule is not None:
            counts = convex(counts)
        new = _mixed(own, members, counts.astype(own.dtype))
    return jnp.where(decision.is_enough, new, own)


def _mixed(own: Array, members: Array, counts: Array) -> Array:
    """The sum with these weights `[1 + S]`."""
    # 0 times NaN would be NaN.
    members = jnp.where(counts[1:, None] == 0, 0, members)
    total = jnp.matmul(counts[1:], members, precision="highest")
    return counts[0] * own + total


def _by_coordinates(
    rule: Rule, own: Array, members: Array, decision: Decision
) -> Array:
    """A rule that looks at each number by itself, of members only."""
    assert rule.combine is not None and decision.present is not None
    is_member = decision.present[1:]
    # Rules take their first slot as present: it gets the first member that is.
    first = jnp.argmax(is_member)
    slots = jnp.arange(is_member.shape[0])
    among = jnp.concatenate([jnp.ones(1, bool), is_member & (slots != first)])
    if decision.matrix is not None:
        both = jnp.concatenate([own[None], members])
        both = jnp.where(jnp.isfinite(both), both, 0)
        matrix = decision.matrix.astype(both.dtype)
        members = jnp.matmul(matrix, both, precision="highest")[1:]
    ordered = jnp.concatenate([members[first][None], members])
    return rule.combine(ordered, among, decision.weight.astype(own.dtype))


def _seen(reader: Reader, spot: Spot, own: Array | None) -> tuple[Array, Array]:
    """A block of the servers' models `[G, c]` and of all messages `[N, c]`."""
    leaf = reader.parts[spot.part].leaf
    mine = reader.own[leaf] if own is None else own
    rows = reader.sent.rows[leaf]
    return columns(mine, spot.at, spot.sizes), columns(rows, spot.at, spot.sizes)


def _block_bytes(num_servers: int, num_agents: int) -> int:
    """Of the servers' block, so that it and all agents' stay in the cache."""
    return max(1, BLOCK_BYTES * num_servers // (num_servers + num_agents))
