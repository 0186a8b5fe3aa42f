"""How ONE receiver merges messages by a robust rule, one after the other.

Each message is one of two members, the other is what the receiver has then, and both
have a weight of a half. Distances are over the parameters that travel, of each group of
leaves by itself; batch-norm statistics count what the parameters count.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange.robust import Received, Rule, convex
from p2pjax.exchange.shared import STATISTICS
from p2pjax.paths import leaves_with_paths
from p2pjax.types import Array, PyTree


def merged(
    rule: Rule,
    t: Array,
    groups: PyTree,
    is_merged: Array,
    own: PyTree,
    message: PyTree,
) -> PyTree:
    """What a receiver has after one message; its own model if that is not finite.

    Args:
      rule: of the receiver.
      t: round, of those that the rule was made for.
      groups: number of each leaf's group.
      is_merged: `[G]`, whether the receiver merges a group of this message.
      own: what the receiver has.
      message: the same of the sender.

    Example:
      >>> from p2pjax.exchange import robust
      >>> rule, yes = robust.self_centered_clipping(1.0), jnp.ones(1, bool)
      >>> def after(sent):
      ...     own, sent = {"x": jnp.zeros(2)}, {"x": jnp.array([sent, 0.0])}
      ...     return merged(rule, jnp.int32(0), {"x": 0}, yes, own, sent)["x"].tolist()
      >>> after(0.5), after(9.0), after(jnp.nan)
      ([0.25, 0.0], [0.5, 0.0], [0.0, 0.0])
    """
    mine, structure = jax.tree.flatten(own)
    theirs, of_leaf = jax.tree.leaves(message), jax.tree.leaves(groups)
    is_statistic = [
        path.split("/")[0] == STATISTICS for path, _ in leaves_with_paths(own)
    ]
    found = list(mine)
    for group in dict.fromkeys(of_leaf):
        leaves = [number for number, of in enumerate(of_leaf) if of == group]
        pairs = [(mine[n], theirs[n]) for n in leaves if not is_statistic[n]]
        statistics = [theirs[n] for n in leaves if is_statistic[n]]
        share = _shares(rule, t, pairs, statistics)  # [2]
        of_statistics = convex(share)
        takes = is_merged[group] & (share[1] != 0)
        for n in leaves:
            what = (of_statistics if is_statistic[n] else share).astype(mine[n].dtype)
            mixed = what[0] * mine[n] + what[1] * theirs[n]
            found[n] = jnp.where(takes, mixed, mine[n])  # 0 times NaN would be NaN
    return jax.tree.unflatten(structure, found)


def merged_in_turn(
    rule: Rule,
    t: Array,
    groups: PyTree,
    is_merged: Array,
    own: PyTree,
    mail: PyTree,
) -> PyTree:
    """What a receiver has after several messages, in this order.

    Args:
      rule: of the receiver.
      t: round.
      groups: number of each leaf's group.
      is_merged: `[M, G]`.
      own: what the receiver has.
      mail: leaves `[M, ...]`; what is not merged may be anything.
    """

    def one_message(number: Array, own: PyTree) -> PyTree:
        message = jax.tree.map(lambda leaf: leaf[number], mail)
        return merged(rule, t, groups, is_merged[number], own, message)

    numbers = jnp.arange(1, 1 + is_merged.shape[0])
    until = jnp.where(is_merged.any(1), numbers, 0).max()
    return jax.lax.fori_loop(0, until, one_message, own)


def _shares(
    rule: Rule,
    t: Array,
    pairs: list[tuple[Array, Array]],
    statistics: list[Array],
) -> Array:
    """What the own model and the message count, `[2]`."""
    assert rule.coefficients is not None, "checked by check_pair_rule"
    square, own, other = jnp.zeros((3,))
    for mine, theirs in pairs:
        square = square + jnp.square(theirs - mine).sum().astype(square.dtype)
        if rule.needs_norms:
            own = own + jnp.square(mine).sum().astype(own.dtype)
            other = other + jnp.square(theirs).sum().astype(other.dtype)
    is_finite = jnp.array(True)
    for leaf in statistics:  # distances tell it of parameters
        is_finite = is_finite & jnp.isfinite(leaf).all()
    progress = None
    if rule.needs_progress:
        progress = jnp.asarray(t, jnp.float32) / rule.num_rounds
    return rule.coefficients(
        Received(
            weight=jnp.full(2, 0.5, square.dtype),
            present=jnp.stack([jnp.array(True), is_finite]),
            distance=jnp.stack([jnp.zeros_like(square), jnp.sqrt(square)]),
            norm=jnp.sqrt(jnp.stack([own, other])) if rule.needs_norms else None,
            progress=progress,
        )
    )
