"""What happens to messages on their way: some are lost, some arrive late.

A channel is a chain of stages, as optimizers of optax are chains of transformations:

    channel = chain(drop(0.3), delay(2.0))

Which methods can take which stages is decided by their constructors, in a sentence.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.types import Array, InputError, Key, Peers


class Drop(NamedTuple):
    """Each message is lost with this probability, independently of the others."""

    probability: float


class Delay(NamedTuple):
    """Messages arrive late, by an exponentially distributed time with this mean."""

    mean: float


class Channel(NamedTuple):
    """Stages in the order in which a message passes them; none is a perfect channel."""

    stages: tuple[Drop | Delay, ...] = ()

    @property
    def loss_probability(self) -> float:
        """That a message does not arrive, all stages together."""
        lost = 0.0
        for stage in self.stages:
            if isinstance(stage, Drop):
                lost = lost + stage.probability - lost * stage.probability
        return lost

    @property
    def mean_delay(self) -> float:
        """In units of N wake-up events, all stages together."""
        return sum(s.mean for s in self.stages if isinstance(s, Delay))


PERFECT = Channel()


def drop(probability: float) -> Channel:
    """Loses each message with a probability.

    >>> drop(0.3).loss_probability
    0.3
    """
    if not 0 <= probability < 1:
        raise InputError(
            f"Need a probability of losing a message from 0 to below 1, got "
            f"{probability}."
        )
    # A channel that loses nothing has no stage, so that nothing is computed for it.
    return Channel((Drop(float(probability)),) if probability else ())


def delay(mean: float) -> Channel:
    """Delays messages by a random time, for methods whose agents have clocks.

    Args:
      mean: of the exponential distribution, in units of N wake-up events.

    >>> delay(2.0).mean_delay
    2.0
    """
    if not 0 <= mean < float("inf"):
        raise InputError(f"Need a mean delay of 0 or more, got {mean}.")
    return Channel((Delay(float(mean)),) if mean else ())


def chain(*channels: Channel) -> Channel:
    """One channel after the other.

    >>> chain(drop(0.5), drop(0.5)).loss_probability
    0.75
    """
    return Channel(tuple(stage for channel in channels for stage in channel.stages))


def check_channel(
    channel: Channel, method: str, *, loses: bool = True, delays: bool = False
) -> None:
    """Refuses stages that a method cannot take.

    Args:
      channel: of the method.
      method: its name, for the message.
      loses: whether the method can do without a message.
      delays: whether its agents have clocks.

    Example:
      >>> check_channel(delay(2.0), "p2p_bn", delays=True)  # it has clocks: no error
    """
    if channel.loss_probability and not loses:
        raise InputError(
            f"{method} corrects with what was sent before, so it cannot take lost "
            "messages: use a channel without drop, or another method."
        )
    if channel.mean_delay and not delays:
        raise InputError(
            f"{method} has no clock, so messages cannot be late: use a channel without "
            "delay, or an asynchronous method such as p2p_bn."
        )


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


def arrivals(channel: Channel, key: Key, sent: Array) -> Array:
    """Which of the messages sent `[N, K]` (bool) arrive.

    Args:
      channel: of the messages.
      key: of the losses.
      sent: `[N, K]`, whether there is a message.

    Returns:
      `[N, K]`, whether it arrives.

    Example:
      >>> sent = jnp.ones((1000, 10), bool)
      >>> arrived = arrivals(drop(0.3), jax.random.key(0), sent)
      >>> print(f"{arrived.mean():.1f}")
      0.7
    """
    probability = channel.loss_probability
    if not probability:
        return sent
    is_lost = jax.random.bernoulli(key, probability, sent.shape)
    return sent & ~is_lost
