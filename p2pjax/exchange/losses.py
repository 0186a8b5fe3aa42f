"""Which messages arrive, and what becomes of the weights of those that do not.

Losses in bursts need no memory of each edge: time is cut into windows of as many
exchanges as a burst has, each edge's with a random phase, and an edge loses all of a
window or nothing. Which it is follows from a key of the run, the edge and the window.
"""

import jax
import jax.numpy as jnp

from p2pjax.exchange.stages import Channel, Drop
from p2pjax.types import Array, InputError, Key, Peers, PyTree


def loss_memory(channel: Channel, key: Key) -> PyTree:
    """What has to be kept for a whole run, so that bursts outlast a round.

    Args:
      channel: of the messages.
      key: of the run.

    Returns:
      A key, or nothing for channels without bursts.
    """
    has_bursts = any(stage.burst > 1 for stage in channel.drops)
    return jax.random.fold_in(key, 0) if has_bursts else ()


def arrivals(
    channel: Channel,
    key: Key,
    sent: Array,
    *,
    senders: Array | None = None,
    number: Array | int | None = None,
    memory: PyTree = (),
) -> Array:
    """Which of the messages sent `[N, K]` (bool) arrive; all of them without losses.

    Args:
      channel: of the messages.
      key: of the losses.
      sent: `[N, K]`, whether there is a message.
      senders: `[N, K]`, whose messages they are, where losses are per edge or in
        bursts.
      number: of the exchange, counted from the start of the run, for bursts.
      memory: `loss_memory`, for bursts.

    Returns:
      `[N, K]`, whether it arrives.

    Example:
      >>> from p2pjax.exchange.channel import drop
      >>> sent = jnp.ones((1000, 10), bool)
      >>> arrived = arrivals(drop(0.3), jax.random.key(0), sent)
      >>> print(f"{arrived.mean():.1f}")
      0.7
    """
    probability = channel.loss_probability
    if not probability:
        return sent
    if all(stage.is_independent for stage in channel.drops):
        return sent & ~jax.random.bernoulli(key, probability, sent.shape)
    if senders is None:
        raise InputError(
            "Need the senders of messages for losses per edge or in bursts, got none: "
            "use drop(probability)."
        )
    arrived = sent
    for place, stage in enumerate(channel.drops):
        is_burst = stage.burst > 1
        if is_burst and (number is None or isinstance(memory, tuple)):
            raise InputError(
                "Need the number of the exchange and the memory of the channel for "
                "losses in bursts, got none: use drop with burst=1."
            )
        key_stage = jax.random.fold_in(memory if is_burst else key, place)
        now = jnp.asarray(0 if number is None else number)
        arrived = arrived & ~_lost(stage, key_stage, jnp.asarray(senders), now)
    return arrived


def _lost(stage: Drop, key: Key, senders: Array, number: Array) -> Array:
    """`[N, K]`, by edges."""
    own = jnp.arange(senders.shape[0], dtype=senders.dtype)
    receivers = jnp.broadcast_to(own[:, None], senders.shape)
    ends = (receivers, senders)
    if stage.per_edge:
        ends = (jnp.minimum(*ends), jnp.maximum(*ends))

    def is_lost(one: Array, other: Array) -> Array:
        key_edge = jax.random.fold_in(jax.random.fold_in(key, one), other)
        if stage.burst > 1:
            key_phase, key_edge = jax.random.split(key_edge)
            phase = jax.random.randint(key_phase, (), 0, stage.burst, number.dtype)
            key_edge = jax.random.fold_in(key_edge, (number + phase) // stage.burst)
        return jax.random.bernoulli(key_edge, stage.probability)

    return jax.vmap(jax.vmap(is_lost))(*ends)


def lost_to_self(peers: Peers, arrived: Array | None) -> Peers:
    """What a lost message would have counted is counted for the receiver's own model.

    Args:
      peers: `[N, K]`, slot 0 is the agent itself.
      arrived: `[N, K]`; slot 0 is ignored. None: all of it.

    Example:
      >>> peers = Peers(jnp.array([[0, 1], [1, 0]]), jnp.full((2, 2), 0.5))
      >>> lost_to_self(peers, jnp.array([[True, True], [True, False]])).weight.tolist()
      [[0.5, 0.5], [1.0, 0.0]]
    """
    if arrived is None:
        return peers
    weight = jnp.asarray(peers.weight)
    is_lost = ~jnp.asarray(arrived, bool) & (peers.ids != peers.ids[:, :1])
    lost = jnp.where(is_lost, weight, 0)
    kept = (weight - lost).at[:, 0].add(lost.sum(1))
    return Peers(jnp.where(is_lost, peers.ids[:, :1], peers.ids), kept)


def without_lost(peers: Peers, arrived: Array | None) -> Peers:
    """Lost messages do not count, and what they would have counted is gone.

    Their slots point at the receiver itself, so that nothing leaks through them.

    Args:
      peers: `[N, K]`, slot 0 is the agent itself.
      arrived: `[N, K]`; slot 0 is ignored. None: all of it.

    Example:
      >>> peers = Peers(jnp.array([[0, 1], [1, 0]]), jnp.full((2, 2), 0.5))
      >>> without_lost(peers, jnp.array([[True, True], [True, False]])).weight.tolist()
      [[0.5, 0.5], [0.5, 0.0]]
    """
    if arrived is None:
        return peers
    is_lost = ~jnp.asarray(arrived, bool) & (peers.ids != peers.ids[:, :1])
    ids = jnp.where(is_lost, peers.ids[:, :1], peers.ids)
    return Peers(ids, jnp.where(is_lost, 0, peers.weight))
