"""What agents send each other when one at a time is awake.

Each sender encodes its message where it is posted (`pipeline.send_one`). There are no
attacks: they see the messages of all agents at once, as in synchronous methods only.
"""

import jax

from p2pjax.exchange import owner_classes
from p2pjax.exchange.channel import Channel
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.pipeline import make_exchange, send_one
from p2pjax.exchange.shared import shared_leaves, with_shared_leaves
from p2pjax.types import LOCAL, Array, Key, PyTree, Variables


def posted(
    key: Key,
    t: Array,
    training: Array,
    sender: Variables,
    local: tuple[str, ...],
    channel: Channel,
) -> PyTree:
    """The message of ONE agent after a training, as it reaches its receivers.

    Args:
      key: of the round.
      t: its number.
      training: number of the training in the sequence.
      sender: after it.
      local: regular expressions of leaves that are not exchanged.
      channel: what happens to messages on their way.
    """
    message = shared_leaves(sender)
    plan = owner_classes.whole_model(1, message, local)
    exchange = make_exchange(plan, channel, eager=True)
    if exchange.changes_messages:
        key = jax.random.fold_in(key, training)
        message = send_one(exchange, key, t, message)
    return _without_local(message, plan)


def shared(variables: Variables, local: tuple[str, ...]) -> PyTree:
    """What travels; None in place of the leaves that do not."""
    message = shared_leaves(variables)
    return _without_local(message, owner_classes.whole_model(1, message, local))


def _without_local(message: PyTree, plan: MixPlan) -> PyTree:
    leaves, structure = jax.tree.flatten(message)
    for owner_class in plan.classes:
        if owner_class.owner[0] == LOCAL:
            for block in owner_class.blocks:
                leaves[block.leaf] = None
    return jax.tree.unflatten(structure, leaves)


def with_shared(variables: Variables, new: PyTree) -> Variables:
    """Variables with what travelled, where it is not None."""
    message = jax.tree.map(
        lambda new, old: old if new is None else new,
        new,
        shared_leaves(variables),
        is_leaf=lambda leaf: leaf is None,
    )
    return with_shared_leaves(variables, message)
