"""What happens to ONE agent that wakes, and to ONE mailbox that a message reaches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.asynchronous.merging import merged, merged_in_turn
from p2pjax.asynchronous.messages import Mailing, shared, with_shared
from p2pjax.asynchronous.waves import Waves
from p2pjax.types import Array, Key, PyTree, Split, Variables


class Agent(NamedTuple):
    """What an agent keeps between two wake-ups; stacked over agents in the state."""

    variables: Variables  # after its last training: what it sent, what is evaluated
    opt_state: PyTree
    memory: PyTree  # what else the method remembers


class AsynchronousState(NamedTuple):
    """All agents and what is on its way to them."""

    agents: Agent  # leaves [N, ...], of one task [N_q, ...]
    # leaves [N, S, ...]: messages, each times what it counts. With a robust rule models
    # with all messages merged; if there are delays, messages as they are.
    mailbox: PyTree
    loss: Array  # [N] of the last training
    own: Array | tuple[()] = ()  # [N, G] what models count beside mail; () with delays
    is_byzantine: Array | tuple[()] = ()  # [N] who attacks; () if no agent can
    before: PyTree = ()  # leaves [N, ...]: within a round, models before local training


class Wake(NamedTuple):
    """What ONE agent that wakes is told."""

    is_partial: Array  # whether it merged a message without leaves of the sender's task
    is_byzantine: Array | None = None  # whether it learns from poisoned examples


# (key, agent, its training and its validation data, ...) -> (agent, loss)
WakeFn = Callable[[Key, Agent, Split, Split, Wake], tuple[Agent, Array]]


class Event(NamedTuple):
    """What a training of a wave needs to know."""

    training: Any
    slot: Any
    has_mail: Any
    is_partial: Any
    own: Any  # [G]
    slots: Any = ()  # [M, G]


def per_event(wave: Waves) -> Event:
    """What all trainings of a wave need to know, leaves `[E, ...]`."""
    return Event(
        wave.training, wave.slot, wave.has_mail, wave.is_partial, wave.own, wave.slots
    )


def opened(event: Event) -> Array:
    """The mailbox of an event, or those `[..., M]` of messages that are apart."""
    if isinstance(event.slots, tuple):
        return event.slot
    return jnp.maximum(event.slots.max(-1), 0)


def attacks(state: AsynchronousState, at: Array) -> Array | None:
    """Whether agents `at` attack; None where no agent can."""
    if isinstance(state.is_byzantine, tuple):
        return None
    return jnp.asarray(state.is_byzantine)[at]


def wake_one(
    on_wake: WakeFn,
    groups: PyTree,
    mailing: Mailing,
    key: Key,
    t: Array,
    event: Event,
    is_byzantine: Array | None,
    agent: Agent,
    mail: PyTree,
    data: Split,
    validation: Split,
) -> tuple[Agent, Array, PyTree]:
    """Merges the mail of ONE agent and lets it train.

    Args:
      on_wake: of the method.
      groups: of each leaf that travels.
      mailing: of the method.
      key: of the round.
      t: its number.
      event: what the agent needs to know.
      is_byzantine: whether it attacks; None where no agent can.
      agent: after its last training.
      mail: what is in its mailbox, or in those of messages that are apart.
      data: its training data.
      validation: its validation data.

    Returns:
      The agent, its loss, and what travels of it before this training.
    """
    own = shared(agent.variables, mailing.local)
    if mailing.rule is not None and mailing.is_apart:
        before = merged_in_turn(mailing.rule, t, groups, event.slots >= 0, own, mail)
    else:
        before = jax.tree.map(
            lambda group, leaf, add: jnp.where(
                event.has_mail, event.own[group].astype(leaf.dtype) * leaf + add, leaf
            ),
            groups,
            own,
            mail,
        )
    variables = with_shared(agent.variables, before, mailing.local)
    agent = agent._replace(variables=variables)
    key = jax.random.fold_in(key, event.training)
    wake = Wake(event.is_partial, is_byzantine if mailing.is_poisoned else None)
    return *on_wake(key, agent, data, validation, wake), before


def with_message(
    mailing: Mailing,
    t: Array,
    groups: PyTree,
    share: Array,
    box: PyTree,
    message: PyTree,
) -> PyTree:
    """ONE mailbox when a message has come.

    Args:
      mailing: of the method.
      t: round.
      groups: of each leaf that travels.
      share: `[G]` what the message counts; 0 for what is not merged of it.
      box: what was there.
      message: what has come.
    """
    if mailing.rule is not None and mailing.holds_models:
        return merged(mailing.rule, t, groups, share > 0, box, message)

    def changed(group: int, box: Array, message: Array) -> Array:
        if mailing.is_apart:
            return jnp.where(share[group] > 0, message, box)
        return _added(box, share[group], message)

    return jax.tree.map(changed, groups, box, message)


def _added(box: Array, share: Array, message: Array) -> Array:
    return jnp.where(share > 0, box + share.astype(message.dtype) * message, box)
