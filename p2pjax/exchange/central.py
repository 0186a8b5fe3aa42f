"""How ONE receiver, a server, combines the messages of its clients.

Its own model is the centre of rules that have one, but none of their members. It works
class by class and block by block, like `aggregation` for receivers that are agents.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.exchange import distances
from p2pjax.exchange.aggregation import Extra, Manner
from p2pjax.exchange.distances import Products, ordinary_mean
from p2pjax.exchange.encoding import parts_of
from p2pjax.exchange.mixing import BLOCK_BYTES
from p2pjax.exchange.reading import Reader, Sent, Spot, columns, fold
from p2pjax.exchange.robust.base import Rule, convex
from p2pjax.types import Array, Peers, PyTree


class Heard(NamedTuple):
    """What a server knows of its clients' messages before it combines them."""

    products: Products  # of [1, 1 + N], the server first
    is_finite: Array  # [N]


def combine_clients(
    manner: Manner, rows: PyTree, own: PyTree, weight: Array, extra: Extra
) -> tuple[PyTree, Array]:
    """The server's new model, leaves `[1, ...]`, and whether it had enough messages.

    Without enough of them it keeps its model.

    Args:
      manner: of the exchange; attackers' messages are among the rows.
      rows: messages of all agents, leaves `[N, ...]`.
      own: the server's model, leaves `[1, ...]`.
      weight: `[N]` what each client counts in a mean; 0 for those of whom nothing
        arrived.
      extra: what else rules read.
    """
    leaves, structure = jax.tree.flatten(own)
    parts = parts_of(manner.plan, own)
    is_enough = weight.sum() > 0
    for number, owner_class in enumerate(manner.plan.classes):
        of_class = tuple(part for part in parts if part.owner_class == number)
        if not of_class:
            continue
        reader = Reader(
            of_class,
            owner_class.owner,
            _peers(weight),
            Sent(jax.tree.leaves(rows)),
            leaves,
            block_bytes=_block_bytes(weight.shape[0]),
        )
        rule = manner.rule
        if rule is None:
            leaves = _mixed(reader, jnp.asarray(reader.peers.weight)[0])
            continue
        heard = _heard(reader, rule)
        present = jnp.concatenate([jnp.ones(1, bool), (weight > 0) & heard.is_finite])
        is_enough = is_enough & (present[1:].sum() >= rule.min_members)
        key = jax.random.fold_in(extra.key, number)
        have = distances.received(reader, rule, heard.products, present[None], key)
        have = have._replace(counts_self=jnp.zeros(1, bool))
        if rule.combine is None:
            counts = distances.coefficients(rule, have)[0]
            leaves = _mixed(reader, counts, is_convex=True)
            continue
        matrix = None
        if rule.premix is not None:
            matrix, present = (
                jnp.asarray(leaf)[0] for leaf in jax.vmap(rule.premix)(have)
            )
        leaves = _by_coordinates(reader, rule, present, matrix)
    kept = jax.tree.leaves(own)
    leaves = [
        jnp.where(is_enough, new, old) for new, old in zip(leaves, kept, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves), is_enough


def _peers(weight: Array) -> Peers:
    """`[1, 1 + N]`: the server, which does not count, then all clients."""
    num_clients = weight.shape[0]
    ids = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.arange(num_clients)])
    total = weight.sum()
    share = weight / jnp.where(total > 0, total, 1)
    return Peers(ids[None], jnp.concatenate([jnp.zeros(1), share])[None])


def _heard(reader: Reader, rule: Rule) -> Heard:
    """Distances of clients from the server and from each other; one pass."""
    num_clients = reader.peers.ids.shape[1] - 1
    pairs = rule.needs_pairs
    none = jnp.zeros((1, num_clients + 1))
    start = Heard(
        Products(none, none, jnp.zeros((num_clients,) * 2) if pairs else None),
        jnp.ones(num_clients, bool),
    )

    def add(total: Heard, spot: Spot) -> Heard:
        own, rows = _seen(reader, spot, None)
        both = jnp.concatenate([own, rows])
        found = Products(
            jnp.square(both - own).sum(1)[None], jnp.square(both).sum(1)[None]
        )
        if pairs:
            centered = rows - ordinary_mean(rows)
            found = found._replace(
                pairs=jnp.matmul(centered, centered.T, precision="highest")
            )
        products = jax.tree.map(
            lambda t, new: t + new.astype(t.dtype), total.products, found
        )
        return Heard(products, total.is_finite & jnp.isfinite(rows).all(1))

    heard = fold(reader, add, start)
    if not pairs:
        return heard
    gram = jnp.asarray(heard.products.pairs)
    square = jnp.diagonal(gram)
    between = jnp.maximum(square[:, None] + square[None, :] - 2 * gram, 0)
    padded = jnp.pad(between, ((1, 0), (1, 0)))[None]  # [1, 1 + N, 1 + N]
    return heard._replace(products=heard.products._replace(pairs=padded))


def _mixed(reader: Reader, counts: Array, *, is_convex: bool = False) -> list[Array]:
    """The sum of server and clients with these weights `[1 + N]`."""
    leaves = list(reader.own)
    statistics = convex(counts) if is_convex else counts
    for number, part in enumerate(reader.parts):
        counted = statistics if part.is_statistic else counts

        def write(leaf: Array, spot: Spot, counted: Array = counted) -> Array:
            own, rows = _seen(reader, spot, leaf)
            share = counted.astype(own.dtype)[:, None]
            rows = jnp.where(share[1:] == 0, 0, rows)  # 0 times NaN would be NaN
            total = jnp.matmul(share[1:].T, rows, precision="highest")
            return _written(leaf, spot, share[:1] * own + total)

        leaves[part.leaf] = fold(
            reader,
            write,
            leaves[part.leaf],
            statistics=True,
            only=number,
        )
    return leaves


def _by_coordinates(
    reader: Reader, rule: Rule, present: Array, matrix: Array | None
) -> list[Array]:
    """A rule that looks at each number by itself, of clients only."""
    leaves = list(reader.own)
    combine = rule.combine
    assert combine is not None
    is_client = present[1:]
    # Rules take their first slot as present: it gets the first client that is.
    first = jnp.argmax(is_client)
    slots = jnp.arange(is_client.shape[0])
    among = jnp.concatenate([jnp.ones(1, bool), is_client & (slots != first)])
    weight = jnp.asarray(reader.peers.weight)[0]

    def write(leaf: Array, spot: Spot) -> Array:
        own, rows = _seen(reader, spot, leaf)
        if matrix is not None:
            both = jnp.concatenate([own, rows])
            both = jnp.where(jnp.isfinite(both), both, 0)
            mixed = jnp.matmul(matrix.astype(both.dtype), both, precision="highest")
            rows = mixed[1:]
        ordered = jnp.concatenate([rows[first][None], rows])
        new = combine(ordered, among, weight.astype(rows.dtype))[None]
        return _written(leaf, spot, jnp.where(is_client.any(), new, own))

    for number, part in enumerate(reader.parts):
        leaves[part.leaf] = fold(
            reader,
            write,
            leaves[part.leaf],
            statistics=True,
            only=number,
        )
    return leaves


def _seen(reader: Reader, spot: Spot, own: Array | None) -> tuple[Array, Array]:
    """A block of the server's model `[1, c]` and of all messages `[N, c]`."""
    leaf = reader.parts[spot.part].leaf
    mine = reader.own[leaf] if own is None else own
    rows = reader.sent.rows[leaf]
    return columns(mine, spot.at, spot.sizes), columns(rows, spot.at, spot.sizes)


def _written(leaf: Array, spot: Spot, block: Array) -> Array:
    block = block.astype(leaf.dtype).reshape(spot.sizes)
    leaf = jax.lax.dynamic_update_slice(leaf, block, spot.at)
    return jax.lax.optimization_barrier(leaf)  # as in `mixing`


def _block_bytes(num_clients: int) -> int:
    """Of the server's block, so that those of all clients stay in the cache."""
    return max(1, BLOCK_BYTES // (1 + num_clients))
