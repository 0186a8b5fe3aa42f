"""What is done to members before any of the rules: they are mixed with each other.

NNM: Y. Allouah et al. 2023, "Fixing by mixing: a recipe for optimal Byzantine ML under
heterogeneity", https://arxiv.org/abs/2302.01772. Bucketing: S. P. Karimireddy et al.
2022, "Byzantine-robust learning on heterogeneous datasets via bucketing",
https://arxiv.org/abs/2006.09365.

Both replace members by `matrix @ members`, so that a rule which needs distances only
gets those of the mixed members from those of the members.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.robust.base import (
    Received,
    Rule,
    check_needs,
    members,
    own_alone,
    product,
    sound,
)
from p2pjax.exchange.robust.checking import check_count
from p2pjax.exchange.robust.ordering import equal_shares, number, ranks
from p2pjax.types import Array, InputError

# ([K, K] matrix of the members, present [K], mixing weights [K]) of mixed members
Mixed = tuple[Array, Array, Array]


def nnm(rule: Rule, max_byzantine: int | None = None) -> Rule:
    """Nearest neighbour mixing: each member becomes the mean of its nearest ones.

    Args:
      rule: that follows.
      max_byzantine: b: of n members the nearest n - b are averaged, itself included;
        None for that of the rule.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [1.0], [2.0], [1e9]])
      >>> received = robust.received_from_members(members)
      >>> robust.apply(robust.nnm(robust.krum(1)), received, members).tolist()
      [1.0]
    """
    if max_byzantine is None:
        max_byzantine = rule.max_byzantine
    b = check_count(max_byzantine, "max_byzantine")

    def mix_fn(received: Received) -> Mixed:
        matrix = nearest_means(received, b)
        return matrix, received.present, jnp.asarray(received.weight)

    return _behind(
        "nnm",
        rule,
        mix_fn,
        needs_pairs=True,
        max_byzantine=max(b, rule.max_byzantine),
        min_members=max(rule.min_members, 2 * b + 1),
        doubt=rule.doubt,
    )


def nearest_means(received: Received, max_byzantine: int) -> Array:
    """The matrix of `nnm`, `[K, K]`; rows of members that are not present are 0.

    Args:
      received: with squared distances.
      max_byzantine: b of `nnm`.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [1.0], [5.0]])
      >>> nearest_means(robust.received_from_members(members), 1).tolist()
      [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    present, squares = members(received), jnp.asarray(received.squares)
    itself = jnp.eye(squares.shape[0], dtype=bool)
    count = jnp.maximum(number(present) - max_byzantine, 1)
    both = present[:, None] & present[None, :]
    is_near = both & (ranks(jnp.where(itself, -1, squares), both) < count)
    return _with_centre(equal_shares(is_near, squares), received)


def bucketing(rule: Rule, size: int = 2, repeat: bool = False) -> Rule:
    """Members are put into random buckets, whose means are the members of a rule.

    The bucket with the own model takes the place of the own model; it may be hostile
    too, so that rules which start from there may need more steps than without. A bucket
    with one hostile message is hostile, so the rule has to tolerate as many buckets: it
    needs more than `2 b size` members.

    Args:
      rule: that follows.
      size: members of a bucket; the last one may have fewer.
      repeat: put each member into buckets `size` times, a variant in the code of the
        authors: there are as many buckets as members, and up to `size` of them hostile
        for each hostile message, all of which the rule has to tolerate.

    Example:
      >>> from p2pjax.exchange import robust
      >>> members = jnp.array([[0.0], [1.0], [2.0], [3.0], [4.0], [1e9]])
      >>> key = jax.random.key(0)
      >>> received = robust.received_from_members(members, key=key)
      >>> rule = robust.bucketing(robust.median(1), size=2)
      >>> float(robust.apply(rule, received, members)[0]) <= 4.0
      True
    """
    size = check_count(size, "size", 1)
    copies = size if repeat else 1

    def mix_fn(received: Received) -> Mixed:
        assert received.key is not None
        shape = (copies, received.present.shape[0])
        draws = jax.random.uniform(received.key, shape, jnp.float32)
        return bucket_means(received, draws, size)

    def buckets(num_members: np.ndarray) -> np.ndarray:
        return num_members if repeat else -(-num_members // size)

    def doubt(num_members: np.ndarray, weight: np.ndarray | None) -> str | None:
        del weight  # those of buckets are drawn anew in each round
        return None if rule.doubt is None else rule.doubt(buckets(num_members), None)

    return _behind(
        "bucketing",
        rule,
        mix_fn,
        needs_pairs=rule.needs_pairs or rule.combine is None,
        needs_key=True,
        max_byzantine=rule.max_byzantine,
        min_members=1 + (rule.min_members - 1) * (1 if repeat else size),
        doubt=doubt,
    )


def bucket_means(received: Received, draws: Array, size: int) -> Mixed:
    """The matrix of `bucketing`, with the mask and the weights of the buckets.

    Args:
      received: of which only the mask and the mixing weights are read.
      draws: `[copies, K]`, any numbers; in their order members fill the buckets.
      size: of a bucket.

    Example:
      >>> from p2pjax.exchange import robust
      >>> received = robust.received_from_members(jnp.zeros((3, 1)))
      >>> draws = jnp.array([[0.3, 0.9, 0.1]])  # in the order 2, 0, 1
      >>> matrix, present, weight = bucket_means(received, draws, 2)
      >>> matrix.tolist(), present.tolist()
      ([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]], [True, True, False])
    """
    copies, num_slots = draws.shape
    weight = jnp.asarray(received.weight)
    is_there = jnp.broadcast_to(members(received), draws.shape)
    place = ranks(draws.reshape(-1), is_there.reshape(-1)).reshape(draws.shape)
    bucket = place // size  # [copies, K]
    own = bucket[0, 0]
    swapped = jnp.where(bucket == own, 0, jnp.where(bucket == 0, own, bucket))
    if received.counts_self is not None:  # slot 0 is kept for the centre
        swapped = jnp.where(received.counts_self, swapped, bucket + 1)
    slots = jnp.arange(num_slots, dtype=jnp.int32)
    is_in = (swapped[:, None, :] == slots[None, :, None]) & is_there[:, None, :]
    counts = is_in.sum(0).astype(weight.dtype)  # [K buckets, K members]
    filled = counts.sum(1)
    matrix = counts / jnp.maximum(filled, 1)[:, None]
    matrix = jnp.asarray(_with_centre(matrix, received))
    return matrix, matrix.sum(1) > 0, product(counts / copies, weight)


def _with_centre(matrix: Array, received: Received) -> Array:
    """The same, where slot 0 is no member: then it stays what it is."""
    if received.counts_self is None:
        return matrix
    first = jnp.where(received.counts_self, matrix[0], own_alone(matrix[0]))
    return jnp.asarray(matrix).at[0].set(first)


def _behind(
    name: str, rule: Rule, mix: Callable[[Received], Mixed], **fields: Any
) -> Rule:
    """A rule of mixed members."""
    if rule.needs_losses:
        raise InputError(
            f"Need a rule that looks at models alone behind {name}, got {rule.name}: "
            "the losses of mixed models are not known."
        )
    outer = rule._replace(
        name=f"{name}({rule.name})", coefficients=None, premix=None, **fields
    )

    def mixed_fn(received: Received) -> tuple[Array, Received, Array]:
        """The matrix, what the receiver has after it, and whether it has enough."""
        check_needs(outer, received)
        received = sound(received)
        matrix, present, weight = mix(received)
        mixed = _mixed(received, matrix)._replace(present=present, weight=weight)
        is_enough = number(members(received)) >= outer.min_members
        return matrix, mixed, is_enough

    def coefficients_fn(received: Received) -> Array:
        assert rule.coefficients is not None
        matrix, mixed, is_enough = mixed_fn(received)
        found = product(rule.coefficients(mixed), matrix)
        return jnp.where(is_enough, found, own_alone(found))

    def premix_fn(received: Received) -> tuple[Array, Array]:
        matrix, mixed, is_enough = mixed_fn(received)
        present = mixed.present
        if rule.premix is not None:
            then, present = rule.premix(mixed)
            matrix = product(then, matrix)
        # One member alone is too few for what follows, which then keeps it.
        alone = own_alone(present)
        untouched = jnp.eye(present.shape[0], dtype=matrix.dtype)
        return (
            jnp.where(is_enough, matrix, untouched),
            jnp.where(is_enough, present, alone),
        )

    if rule.combine is None:
        return outer._replace(coefficients=coefficients_fn)
    return outer._replace(premix=premix_fn)


def _mixed(received: Received, matrix: Array) -> Received:
    """Distances and norms of `matrix @ members`, for a matrix with rows of sum 1.

    The squared distance of two rows u, v is `-(u - v) squares (u - v) / 2`.
    """
    key = None if received.key is None else jax.random.fold_in(received.key, 1)
    received = received._replace(key=key)
    if received.squares is None:  # a coordinate rule in buckets needs none
        return received
    between = product(product(matrix, received.squares), matrix.T)  # [K, K]
    spread = jnp.diagonal(between) / 2
    squares = between - spread[:, None] - spread[None, :]
    squares = jnp.maximum(squares, 0)
    norm = received.norm
    if norm is not None:
        mean = product(matrix, jnp.square(norm))
        norm = jnp.sqrt(jnp.maximum(mean - spread, 0))
    return received._replace(squares=squares, distance=jnp.sqrt(squares[0]), norm=norm)
