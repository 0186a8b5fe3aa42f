"""What agents send each other when one at a time is awake.

Each sender encodes its message where it is posted. What attackers send is put in the
place of theirs there, so they know what they have themselves and nothing of others.
"""

from typing import NamedTuple

import jax

from p2pjax.exchange import owner_classes
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.pipeline import make_exchange, send_one
from p2pjax.exchange.published import published_one
from p2pjax.exchange.robust import Rule
from p2pjax.exchange.shared import (
    sent_parts,
    shared_leaves,
    with_parts,
    with_shared_leaves,
)
from p2pjax.types import LOCAL, Array, Key, PyTree, Variables

# Regular expressions of leaves that are not exchanged; or who shares which parameters,
# of which a message is a list.
Kept = tuple[str, ...] | MixPlan


class Mailing(NamedTuple):
    """What agents send, and how they merge what they get."""

    local: Kept = ()  # what is not exchanged
    channel: Channel = PERFECT  # what happens to messages on their way
    attack: Attack | None = None  # None: all agents are honest
    rule: Rule | None = None  # None: the mean of two models
    at_once: bool = True  # whether messages arrive without delay

    @property
    def is_hostile(self) -> bool:
        """Whether attackers replace their messages."""
        return self.attack is not None and self.attack.hostile is not None

    @property
    def is_poisoned(self) -> bool:
        """Whether attackers learn from poisoned examples."""
        return self.attack is not None and self.attack.poison is not None

    @property
    def needs_before(self) -> bool:
        """Whether attackers need their models before local training."""
        return self.attack is not None and self.is_hostile and self.attack.needs_before

    @property
    def holds_models(self) -> bool:
        """Whether a mailbox holds what its agent would have if it woke."""
        return self.rule is not None and self.at_once

    @property
    def is_apart(self) -> bool:
        """Whether each message has a mailbox of its own until its receiver wakes."""
        return self.rule is not None and not self.at_once


def posted(
    mailing: Mailing,
    key: Key,
    t: Array,
    training: Array,
    sender: Variables,
    is_byzantine: Array | None = None,
    before: PyTree = None,
) -> PyTree:
    """The message of ONE agent after a training, as it reaches its receivers.

    Args:
      mailing: of the method.
      key: of the round.
      t: its number.
      training: number of the training in the sequence.
      sender: after it.
      is_byzantine: whether it attacks; None: no agent does.
      before: `shared` of the sender before its training, for attacks that need it.
    """
    if mailing.is_hostile or isinstance(mailing.local, MixPlan):
        message = shared(sender, mailing.local)
        plan = owner_classes.whole_model(1, message)
        attack = mailing.attack if mailing.is_hostile else None
        exchange = make_exchange(plan, mailing.channel, attack, eager=True)
        key = jax.random.fold_in(key, training)
        if not mailing.is_hostile:
            return send_one(exchange, key, t, message)
        assert is_byzantine is not None
        return published_one(exchange, key, t, message, is_byzantine, before)
    message = shared_leaves(sender)
    plan = owner_classes.whole_model(1, message, mailing.local)
    exchange = make_exchange(plan, mailing.channel, eager=True)
    if exchange.changes_messages:
        key = jax.random.fold_in(key, training)
        message = send_one(exchange, key, t, message)
    return _without_local(message, plan)


def shared(variables: Variables, local: Kept) -> PyTree:
    """What travels; None in place of the leaves that do not."""
    if isinstance(local, MixPlan):
        return {"params": sent_parts(local, variables.params)}
    message = shared_leaves(variables)
    return _without_local(message, owner_classes.whole_model(1, message, local))


def _without_local(message: PyTree, plan: MixPlan) -> PyTree:
    leaves, structure = jax.tree.flatten(message)
    for owner_class in plan.classes:
        if owner_class.owner[0] == LOCAL:
            for block in owner_class.blocks:
                leaves[block.leaf] = None
    return jax.tree.unflatten(structure, leaves)


def with_shared(variables: Variables, new: PyTree, local: Kept) -> Variables:
    """Variables with what travelled, where it is not None."""
    if isinstance(local, MixPlan):
        params = with_parts(local, new["params"], variables.params)
        return variables._replace(params=params)
    message = jax.tree.map(
        lambda new, old: old if new is None else new,
        new,
        shared_leaves(variables),
        is_leaf=lambda leaf: leaf is None,
    )
    return with_shared_leaves(variables, message)
