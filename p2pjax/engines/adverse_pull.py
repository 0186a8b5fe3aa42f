"""What agents that choose their peers make of compressed or hostile messages.

All who ask an agent get the same message, and they judge what they get: so messages are
kept as they reach others, beside the agents' own models.
"""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.engines.adversity import check_published
from p2pjax.exchange.aggregation import Combined
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import Channel, check_channel
from p2pjax.exchange.channel_checks import MODELS
from p2pjax.exchange.pipeline import Exchange, Memory, deliver, transmit
from p2pjax.exchange.published import published
from p2pjax.exchange.reading import Sent
from p2pjax.exchange.robust import Rule
from p2pjax.exchange.shared import where_shared
from p2pjax.graphs.topology import Topology
from p2pjax.selection.base import PeerView
from p2pjax.types import Array, InputError, Key, Peers, PyTree

LOSS = 6  # folded into the key of a round


class Merging(NamedTuple):
    """What a rule will need when agents merge what they have fetched."""

    key: Key
    t: Array  # [] round in which it was fetched
    loss: Array | tuple[()] = ()  # [N, K] of each model on data of its receiver


def check_pull(
    channel: Channel, attack: Attack | None, rule: Rule | None, name: str
) -> None:
    """Refuses what methods cannot take whose agents choose their peers.

    Args:
      channel: of the method.
      attack: on it.
      rule: of its receivers.
      name: of the method, for messages.
    """
    del rule  # there may be any
    check_channel(channel, name, formats=MODELS)
    check_published(attack, name)


def check_slots(rule: Rule | None, num_slots: int, name: str) -> None:
    """Refuses a rule for which agents never have enough peers.

    Args:
      rule: of the receivers.
      num_slots: K, most peers of an agent, itself included.
      name: of the method, for messages.
    """
    if rule is None:
        return
    if num_slots < rule.min_members:
        raise InputError(
            f"Need {rule.min_members} messages or more (with one's own) for "
            f"{rule.name}, got at most {num_slots} in {name}: lower max_byzantine or "
            "let agents choose more peers."
        )
    doubt = None if rule.doubt is None else rule.doubt(np.array([num_slots]), None)
    if doubt is not None:
        warnings.warn(doubt, stacklevel=2)


def keeps_messages(exchange: Exchange) -> bool:
    """Whether messages are not the agents' own models, so that they are kept.

    Args:
      exchange: of the method.
    """
    attack = exchange.adversary
    is_hostile = attack is not None and attack.hostile is not None
    return exchange.changes_messages or is_hostile


def messages_of(
    exchange: Exchange,
    key: Key,
    t: Array,
    models: PyTree,
    before: PyTree,
    memory: Memory | tuple[()],
) -> tuple[PyTree, Memory | tuple[()]]:
    """What all who ask get of each agent, `[N, ...]`, and what the exchange keeps.

    Args:
      exchange: of the round.
      key: of the round.
      t: its number.
      models: after training, leaves `[N, ...]`.
      before: the same before it.
      memory: of the exchange.
    """
    sent, memory = transmit(exchange, key, t, models, memory, before)
    rows, remembered = published(exchange, key, sent)
    if isinstance(memory, Memory) and jax.tree.leaves(remembered):
        memory = memory._replace(attack=remembered)
    return rows, memory


def merging(
    rule: Rule | None, key: Key, t: Array, peers: Peers, view: PeerView, batch_size: int
) -> Merging | tuple[()]:
    """What the rule will need of this round; () for none.

    Losses are those on one batch of the receiver's training examples.

    Args:
      rule: of the receivers.
      key: of the round.
      t: its number.
      peers: that were chosen.
      view: of the agents.
      batch_size: B.
    """
    if rule is None:
        return ()
    if not rule.needs_losses:
        return Merging(key, t)
    sizes = jnp.asarray(view.train.size)
    batch = jax.random.randint(
        jax.random.fold_in(key, LOSS),
        (sizes.shape[0], batch_size),
        0,
        jnp.maximum(sizes, 1)[:, None],
    )
    rows = jnp.arange(sizes.shape[0])[:, None]
    split = view.train._replace(
        examples={
            k: jnp.asarray(v)[rows, batch] for k, v in view.train.examples.items()
        },
        size=jnp.minimum(sizes, batch_size),
    )
    ids = jnp.asarray(peers.ids)
    own = view.over_pairs(
        lambda own, theirs, batch: view.loss(own, batch), _table(ids[:, :1]), split
    )
    theirs = view.over_pairs(
        lambda own, theirs, batch: view.loss(theirs, batch), _table(ids[:, 1:]), split
    )
    return Merging(key, t, jnp.concatenate([own, theirs], axis=1))


def merged(
    exchange: Exchange,
    merging: Merging | tuple[()],
    messages: PyTree,
    own: PyTree,
    before: PyTree,
    peers: Peers,
) -> Combined:
    """The models with which agents go on, `[N, ...]`, and how many were rejected.

    Args:
      exchange: of the method, not a plain one.
      merging: what its rule needs.
      messages: what arrived of each agent, leaves `[N, ...]`; () for their models.
      own: the agents' models.
      before: their parameters before training, where peers count by what they learned;
        () where they count by their models.
      peers: `[N, K]`.
    """
    assert exchange.manner is not None
    key, t, loss = merging if merging else Merging(jax.random.key(0), jnp.int32(0))
    models = own
    rows = messages if jax.tree.leaves(messages) else own
    is_update = not isinstance(before, tuple)
    if is_update:
        same = rows is own
        own = _moved(own, before, jnp.subtract)
        rows = own if same else _moved(rows, before, jnp.subtract)
    quiet = exchange._replace(manner=exchange.manner._replace(attack=None))
    found = deliver(
        quiet,
        key,
        t,
        Sent(rows),
        own,
        own,
        lambda owner: peers,
        None,
        None if isinstance(loss, tuple) else loss,
    )
    mixed = found.models
    if is_update:
        mixed = _moved(mixed, before, jnp.add)
    return found._replace(models=where_shared(exchange.manner.plan, mixed, models))


def _moved(message: PyTree, by: PyTree, move) -> PyTree:
    """Parameters moved; statistics as they are."""
    return {**message, "params": jax.tree.map(move, message["params"], by)}


def _table(ids: Array) -> Topology:
    return Topology(ids, jnp.ones(ids.shape, bool))
