"""One exchange: all that happens between the senders of messages and their receivers.

Every method sends through an `Exchange`, whose parts are called in this order: each
sender encodes its message, attackers may replace theirs, some messages arrive, and each
receiver combines what it has. Nothing else in the package lets parameters change
agents.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing
from p2pjax.exchange.channel import PERFECT, Channel, arrivals
from p2pjax.exchange.mixing import Combine
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.shared import message_size, where_sent
from p2pjax.types import Array, Key, Peers, PyTree

BITS = 32  # of a parameter that is sent as it is

# Folded into the key of an exchange; engines fold 1 and 2 into those of `arrive`.
ENCODE, ATTACK = 3, 4


class Members(NamedTuple):
    """All agents of an owner group take its mean, as a server would compute it."""

    weight: Array | None = None  # [N] what each counts, 0 for none; None for all alike


# How the agents of an owner class are combined: owner vector [N] -> any of these.
Route = Callable[[np.ndarray], Peers | Members | Combine]


class Exchange(NamedTuple):
    """What is between sender and receiver, for stacked models of one shape."""

    # message of ONE sender -> what the channel remembers of it
    init: Callable[[PyTree], PyTree]
    # (key, t, message, memory) of ONE sender -> (what arrives, memory, bits sent)
    encode: Callable[[Key, Array, PyTree, PyTree], tuple[PyTree, PyTree, Array]]
    # (key, t, messages [N, ...]) -> messages [N, ...]
    attack: Callable[[Key, Array, PyTree], PyTree]
    # (key, t, messages sent [N, K]) -> those that arrive [N, K]
    arrive: Callable[[Key, Array, Array], Array]
    # (messages [N, ...], own [N, ...], route, arrived) -> models [N, ...]; what is not
    # sent keeps its own values, and what an agent sends also counts for itself
    combine: Callable[[PyTree, PyTree, Route, Array | None], PyTree]
    # False: encode and attack give back what they get, so that no engine calls them or
    # keeps messages beside the models that were sent
    changes_messages: bool = False


def make_exchange(plan: MixPlan, channel: Channel = PERFECT) -> Exchange:
    """The exchange of models whose owner classes are `plan`, by linear mixing.

    Args:
      plan: who shares what.
      channel: what happens to messages on their way.
    """

    def encode_fn(
        key: Key, t: Array, message: PyTree, memory: PyTree
    ) -> tuple[PyTree, PyTree, Array]:
        del key, t
        return message, memory, jnp.float32(BITS * message_size(plan))

    def attack_fn(key: Key, t: Array, messages: PyTree) -> PyTree:
        del key, t
        return messages

    def arrive_fn(key: Key, t: Array, sent: Array) -> Array:
        del t
        return arrivals(channel, key, sent)

    def combine_fn(
        messages: PyTree, own: PyTree, route: Route, arrived: Array | None = None
    ) -> PyTree:
        del arrived  # linear: the weights of the route know what was lost
        mixed = mixing.mix(messages, plan, lambda owner: _combine(route(owner), owner))
        return mixed if messages is own else where_sent(plan, mixed, own)

    return Exchange(lambda message: (), encode_fn, attack_fn, arrive_fn, combine_fn)


def send(exchange: Exchange, key: Key, t: Array, messages: PyTree) -> PyTree:
    """What all senders' messages are when they reach their receivers, `[N, ...]`.

    Each sender encodes its own; then attackers may replace theirs.

    Args:
      exchange: of the round.
      key: of the exchange.
      t: round.
      messages: leaves `[N, ...]`.
    """
    if not exchange.changes_messages:
        return messages
    size = jax.tree.leaves(messages)[0].shape[0]
    keys = jax.random.split(jax.random.fold_in(key, ENCODE), size)
    decoded = jax.vmap(lambda key, message: _encoded(exchange, key, t, message))(
        keys, messages
    )
    return exchange.attack(jax.random.fold_in(key, ATTACK), t, decoded)


def send_one(exchange: Exchange, key: Key, t: Array, message: PyTree) -> PyTree:
    """What ONE sender's message is when it reaches its receivers.

    For asynchronous methods, which have no attacks: an attack sees the messages of all
    agents at once, as they exist in synchronous methods only.

    Args:
      exchange: of the round.
      key: of the message.
      t: round.
      message: leaves of one agent.
    """
    if not exchange.changes_messages:
        return message
    return _encoded(exchange, jax.random.fold_in(key, ENCODE), t, message)


def _encoded(exchange: Exchange, key: Key, t: Array, message: PyTree) -> PyTree:
    memory = ()  # channels of today remember nothing
    return exchange.encode(key, t, message, memory)[0]


def _combine(how: Peers | Members | Combine, owner: np.ndarray) -> Combine:
    if isinstance(how, Peers):
        return mixing.fastest_combine(how, owner)
    if isinstance(how, Members):
        return mixing.by_group_mean(owner, how.weight)
    return how
