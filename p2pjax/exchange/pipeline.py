"""One exchange: all that happens between the senders of messages and their receivers.

Every method sends through an `Exchange`, whose parts are called in this order: each
sender encodes its message, attackers may replace theirs, some messages arrive, and each
receiver combines what it has. Nothing else in the package lets parameters change
agents.

What can be decoded number by number, and what attackers send, is computed where it is
read (`reading`), so that an adverse exchange needs no second copy of all models.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import aggregation, encoding, mixing
from p2pjax.exchange.aggregation import Combined, Extra, Manner
from p2pjax.exchange.attacks.base import Attack
from p2pjax.exchange.channel import PERFECT, Channel
from p2pjax.exchange.losses import arrivals, loss_memory, lost_to_self
from p2pjax.exchange.mixing import Combine
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.reading import Assault, Sent
from p2pjax.exchange.replacing import replaced_sent
from p2pjax.exchange.robust.base import Rule
from p2pjax.exchange.shared import where_sent
from p2pjax.types import Array, Key, Peers, PyTree

# Folded into the key of an exchange; engines fold 1 and 2 into those of `arrive`.
ENCODE, ATTACK, RULE = 3, 4, 5


class Members(NamedTuple):
    """All agents of an owner group take its mean, as a server would compute it."""

    weight: Array | None = None  # [N] what each counts, 0 for none; None for all alike


# How the agents of an owner class are combined: owner vector [N] -> any of these.
Route = Callable[[np.ndarray], Peers | Members | Combine]


class Attackers(NamedTuple):
    """Who attacks in a round, an input of it."""

    is_byzantine: Array  # [N] bool
    prepared: Array | None = None  # [C, N] `Attack.prepare` of each owner class, or one


class Memory(NamedTuple):
    """What an exchange keeps for the next one; () where it needs nothing."""

    sender: PyTree = ()  # leaves [N, ...]: what senders remember of their messages
    losses: PyTree = ()  # key of the run, for bursts
    last: PyTree = ()  # leaves [N, ...]: messages that arrive in the next exchange
    last_mask: PyTree = ()  # leaves [N, ...] bool: which of their numbers were sent
    attack: PyTree = ()  # what attackers remember, leaves of one message
    attackers: Attackers | tuple[()] = ()  # of this round
    servers: PyTree = ()  # leaves [G, ...]: models of servers, as they last were
    rejected: Array | tuple[()] = ()  # [N] messages of this round, see `Info`


class Exchange(NamedTuple):
    """What is between sender and receiver, for stacked models of one shape."""

    # message of ONE sender -> what the channel remembers of it
    init: Callable[[PyTree], PyTree]
    # (key, t, message, memory) of ONE sender -> (what arrives, memory, bits sent)
    encode: Callable[[Key, Array, PyTree, PyTree], tuple[PyTree, PyTree, Array]]
    # (key, t, messages [N, ...]) -> messages [N, ...]; those that see one row at a time
    attack: Callable[[Key, Array, PyTree], PyTree]
    # (key, t, messages sent [N, K], ...) -> those that arrive [N, K], see `arrivals`
    arrive: Callable[..., Array]
    # (messages [N, ...], own [N, ...], route, arrived) -> models [N, ...]; what is not
    # sent keeps its own values, and what an agent sends also counts for itself
    combine: Callable[[PyTree, PyTree, Route, Array | None], PyTree]
    # False: encode and attack give back what they get, so that no engine calls them or
    # keeps messages beside the models that were sent
    changes_messages: bool = False
    # how messages are read and combined that plain mixing cannot; None: plain mixing
    manner: Manner | None = None
    channel: Channel = PERFECT
    adversary: Attack | None = None
    # whether what attackers send takes the place of their rows when these are encoded,
    # because its format cannot be decoded where it is read
    replaces: bool = False


def make_exchange(
    plan: MixPlan,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    rule: Rule | None = None,
    *,
    updates: bool = False,
    eager: bool = False,
) -> Exchange:
    """The exchange of models whose owner classes are `plan`.

    Args:
      plan: who shares what.
      channel: what happens to messages on their way.
      attack: what Byzantine agents send; None: all are honest.
      rule: how receivers combine what they have; None: by linear mixing.
      updates: whether messages are what was learned, not models; they are encoded
        with error feedback if the channel has it.
      eager: decode all of a message where it is sent, not where it is read: for
        engines that look at messages in other ways too.
    """
    format = channel.format
    is_sparse = format is not None and format.select is not None and not updates
    in_blocks = format is not None and format.decode is not None
    in_blocks = in_blocks and not (channel.noise_stddev or channel.is_stale)
    in_blocks = in_blocks and not (eager or updates)
    is_hostile = attack is not None and attack.hostile is not None
    is_plain = format is None and not is_hostile and rule is None
    is_plain = is_plain and not channel.is_stale and not channel.noise_stddev
    is_plain = is_plain and channel.clip_norm is None

    def init_fn(message: PyTree) -> PyTree:
        if format is not None and is_sparse:
            return encoding.init_sparse(format, plan, message)
        if format is not None and channel.has_error_feedback:
            return encoding.init_feedback(format, plan, message)
        return ()

    def encode_fn(
        key: Key, t: Array, message: PyTree, memory: PyTree
    ) -> tuple[PyTree, PyTree, Array]:
        del t
        key_noise, key_format = jax.random.split(key)
        message = _disturbed(channel, plan, key_noise, message)
        bits = jnp.float32(encoding.message_bits(format, plan, message))
        if format is None or in_blocks:
            return message, memory, bits
        if is_sparse:
            message, memory, _ = encoding.encode_sparse(
                format, plan, key_format, message, memory
            )
            return message, memory, bits
        encode = encoding.encode_update if updates else encoding.encode_models
        return *encode(format, plan, key_format, message, memory)[:2], bits

    def attack_fn(key: Key, t: Array, messages: PyTree) -> PyTree:
        del key, t
        return messages

    def arrive_fn(
        key: Key,
        t: Array,
        sent: Array,
        senders: Array | None = None,
        number: Array | None = None,
        memory: PyTree = (),
    ) -> Array:
        del t
        losses = memory.losses if isinstance(memory, Memory) else ()
        return arrivals(
            channel, key, sent, senders=senders, number=number, memory=losses
        )

    def combine_fn(
        messages: PyTree, own: PyTree, route: Route, arrived: Array | None = None
    ) -> PyTree:
        del arrived  # linear: the weights of the route know what was lost
        mixed = mixing.mix(messages, plan, lambda owner: _combine(route(owner), owner))
        return mixed if messages is own else where_sent(plan, mixed, own)

    return Exchange(
        init_fn,
        encode_fn,
        attack_fn,
        arrive_fn,
        combine_fn,
        changes_messages=not is_plain
        and not in_blocks
        and (
            format is not None
            or bool(channel.noise_stddev)
            or channel.clip_norm is not None
        ),
        manner=None if is_plain else Manner(plan, format, attack, rule),
        channel=channel,
        adversary=attack,
        replaces=is_hostile
        and not eager
        and format is not None
        and format.decode is None,
    )


def begin(
    exchange: Exchange,
    key: Key,
    messages: PyTree,
    attackers: Attackers | None = None,
) -> Memory | tuple[()]:
    """What an exchange keeps, at the start of a run.

    Args:
      exchange: of the run.
      key: of the run.
      messages: of all agents at the start, leaves `[N, ...]`.
      attackers: before the first round.
    """
    key = jax.random.fold_in(key, ENCODE)
    losses = loss_memory(exchange.channel, key)
    attack = exchange.adversary
    memory = Memory(
        jax.vmap(exchange.init)(messages) if exchange.changes_messages else (),
        losses,
    )
    if exchange.manner is not None and exchange.manner.rule is not None:
        size = jax.tree.leaves(messages)[0].shape[0]
        memory = memory._replace(rejected=jnp.zeros(size, jnp.float32))
    if exchange.channel.is_stale:
        memory = memory._replace(last=jax.tree.map(jnp.copy, messages))
        if exchange.channel.format is not None and exchange.channel.format.select:
            whole = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, bool), messages)
            memory = memory._replace(last_mask=whole)
    if attack is None or attackers is None:
        return memory if jax.tree.leaves(memory) else ()
    one = jax.tree.map(lambda leaf: leaf[0], messages)
    return memory._replace(
        attack=() if attack.begin is None else attack.begin(key, one),
        attackers=attackers,
    )


def transmit(
    exchange: Exchange,
    key: Key,
    t: Array,
    messages: PyTree,
    memory: Memory | tuple[()],
    before: PyTree = None,
) -> tuple[Sent, Memory | tuple[()]]:
    """What all agents have sent, and what the exchange keeps.

    Args:
      exchange: of the round.
      key: of the exchange.
      t: round.
      messages: leaves `[N, ...]`.
      memory: of the exchange before.
      before: models before local training, for attacks that need them.
    """
    sent = Sent(messages)
    manner = exchange.manner
    if exchange.changes_messages:
        kept = memory if isinstance(memory, Memory) else Memory()
        size = jax.tree.leaves(messages)[0].shape[0]
        keys = jax.random.split(jax.random.fold_in(key, ENCODE), size)
        rows, sender, _ = jax.vmap(
            lambda key, one, memory: exchange.encode(key, t, one, memory),
            out_axes=(0, 0, None),
        )(keys, messages, kept.sender)
        if isinstance(rows, encoding.SparseMessage):
            sent = Sent(rows.values, rows.mask)
        else:
            rows = exchange.attack(jax.random.fold_in(key, ATTACK), t, rows)
            sent = Sent(rows)
        if isinstance(memory, Memory):
            memory = memory._replace(sender=sender)
    elif manner is not None and manner.format is not None:
        sent = sent._replace(
            measures=encoding.measures(manner.format, manner.plan, messages)
        )
    if exchange.channel.is_stale:
        assert isinstance(memory, Memory)
        now = sent
        sent = sent._replace(rows=memory.last, current=now.rows)
        memory = memory._replace(last=now.rows)
        if now.mask is not None:
            sent = sent._replace(mask=memory.last_mask)
            memory = memory._replace(last_mask=now.mask)
    if manner is not None and manner.attack is not None and manner.attack.hostile:
        assert isinstance(memory, Memory)
        assert isinstance(memory.attackers, Attackers)
        assault = Assault(
            memory.attackers.is_byzantine,
            jax.random.fold_in(key, ATTACK),
            t,
            memory.attackers.prepared,
            before if manner.attack.needs_before else None,
            memory.attack,
        )
        if not exchange.replaces:
            return sent._replace(assault=assault), memory
        whole = messages
        if exchange.channel.noise_stddev and sent.mask is not None:
            whole = jax.vmap(
                lambda key, one: _disturbed(
                    exchange.channel, manner.plan, jax.random.split(key)[0], one
                )
            )(keys, messages)
        key = jax.random.fold_in(key, ENCODE)
        sent, learned = replaced_sent(manner, key, assault, sent, whole)
        memory = memory._replace(attack=learned)
    return sent, memory


def deliver(
    exchange: Exchange,
    key: Key,
    t: Array,
    sent: Sent,
    own: PyTree,
    kept: PyTree,
    route: Route,
    arrived: Array | None,
    loss: Array | None = None,
) -> Combined:
    """The models with which agents go on, and what else is known then.

    Args:
      exchange: of the round.
      key: of the exchange.
      t: round.
      sent: `transmit`.
      own: what each agent sent, as it has it itself, leaves `[N, ...]`.
      kept: values of the leaves that are not sent.
      route: who combines whom.
      arrived: `[N, K]` of the route's peers, for routes that do not know what was lost;
        None: all that have a weight.
      loss: `[N, K]` of each message on data of its receiver, for rules that need it.
    """
    if exchange.manner is None:
        route = route if arrived is None else _without_lost(route, arrived)
        return Combined(exchange.combine(sent.rows, kept, route, arrived))
    extra = Extra(jax.random.fold_in(key, RULE), t, loss)
    found = aggregation.combine(exchange.manner, sent, own, route, extra, arrived)
    if own is kept:
        return found
    models = where_sent(exchange.manner.plan, found.models, kept)
    return found._replace(models=models)


def send(exchange: Exchange, key: Key, t: Array, messages: PyTree) -> PyTree:
    """What all senders' messages are when they reach their receivers, `[N, ...]`.

    For engines whose channels remember nothing.

    Args:
      exchange: of the round.
      key: of the exchange.
      t: round.
      messages: leaves `[N, ...]`.
    """
    return transmit(exchange, key, t, messages, ())[0].rows


def send_one(exchange: Exchange, key: Key, t: Array, message: PyTree) -> PyTree:
    """What ONE sender's message is when it reaches its receivers.

    For asynchronous methods; see `published.published_one` for those under attack.

    Args:
      exchange: of the round.
      key: of the message.
      t: round.
      message: leaves of one agent.
    """
    if not exchange.changes_messages:
        return message
    return exchange.encode(jax.random.fold_in(key, ENCODE), t, message, ())[0]


def _disturbed(channel: Channel, plan: MixPlan, key: Key, message: PyTree) -> PyTree:
    """The message of ONE sender, clipped and noisy."""
    if channel.clip_norm is not None:
        message = encoding.clipped(channel.clip_norm, plan, message)
    if channel.noise_stddev:
        message = encoding.noised(channel.noise_stddev, plan, key, message)
    return message


def _without_lost(route: Route, arrived: Array) -> Route:
    def known(owner: np.ndarray) -> Peers | Members | Combine:
        how = route(owner)
        return lost_to_self(how, arrived) if isinstance(how, Peers) else how

    return known


def _combine(how: Peers | Members | Combine, owner: np.ndarray) -> Combine:
    if isinstance(how, Peers):
        return mixing.fastest_combine(how, owner)
    if isinstance(how, Members):
        return mixing.by_group_mean(owner, how.weight)
    return how
