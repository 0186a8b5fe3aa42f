"""What a server makes of messages that are compressed, noisy or hostile."""

import jax
import jax.numpy as jnp

from p2pjax.engines.adversity import check_published, check_set_rule
from p2pjax.exchange.aggregation import Extra
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.central import combine_clients
from p2pjax.exchange.channel import Channel, check_channel
from p2pjax.exchange.channel_checks import FORMATS
from p2pjax.exchange.pipeline import RULE, Exchange, Memory, transmit
from p2pjax.exchange.published import published
from p2pjax.exchange.rejections import with_rejected
from p2pjax.exchange.robust import Rule
from p2pjax.exchange.shared import where_shared
from p2pjax.types import Array, InputError, Key, PyTree


def takes_updates(channel: Channel) -> bool:
    """Whether clients send what they have learned, not their models.

    Args:
      channel: of the method.
    """
    is_exact = channel.format is None and channel.clip_norm is None
    return not is_exact or bool(channel.noise_stddev)


def check_server(
    channel: Channel, attack: Attack | None, rule: Rule | None, name: str
) -> None:
    """Refuses what a server cannot take.

    Args:
      channel: of the method.
      attack: on it.
      rule: of the server.
      name: of the method, for messages.
    """
    check_channel(channel, name, noise=True, updates=True, formats=FORMATS)
    check_published(attack, name)
    check_set_rule(rule, name)


def check_size(rule: Rule | None, num_clients: int) -> None:
    """Refuses a rule for which there are never enough clients.

    Args:
      rule: of the server.
      num_clients: that are chosen in a round.
    """
    if rule is not None and num_clients < rule.min_members:
        raise InputError(
            f"Need {rule.min_members} clients or more in a round for {rule.name}, got "
            f"{num_clients}: lower max_byzantine or choose more clients."
        )


def robust_mean(
    exchange: Exchange,
    key: Key,
    t: Array,
    message: PyTree,
    centre: PyTree,
    weight: Array,
    sends: Array,
    memory: Memory | tuple[()],
) -> tuple[PyTree, Array, Memory | tuple[()]]:
    """What all agents get from the server, `[N, ...]`, and whether it heard enough.

    Args:
      exchange: of the round.
      key: of the round.
      t: its number.
      message: models of all agents, leaves `[N, ...]`; those that stay are kept.
      centre: the server's model, leaves `[1, ...]`.
      weight: `[N]` what each client counts; 0 for those of whom nothing arrived.
      sends: `[N]` clients that send, whether it arrives or not.
      memory: of the exchange.

    Returns:
      Also what the exchange keeps: senders remember only what they really sent.
    """
    assert exchange.manner is not None
    plan = exchange.manner.plan
    is_update = takes_updates(exchange.channel)
    formed, own = message, centre
    if is_update:
        formed = _moved(message, centre, jnp.subtract)
        own = _moved(centre, centre, jnp.subtract)
    sent, after = transmit(exchange, key, t, formed, memory, own)
    if isinstance(memory, Memory) and isinstance(after, Memory):
        after = after._replace(sender=_where(sends, after.sender, memory.sender))
    rows, remembered = published(exchange, key, sent, sends)
    if isinstance(after, Memory) and jax.tree.leaves(remembered):
        after = after._replace(attack=remembered)
    extra = Extra(jax.random.fold_in(key, RULE), t)
    new, is_enough, rejected = combine_clients(
        exchange.manner, rows, own, weight, extra
    )
    after = with_rejected(after, rejected)
    if is_update:
        new = _moved(new, centre, jnp.add)
    new = jax.tree.map(lambda row, x: jnp.broadcast_to(row, x.shape), new, message)
    return where_shared(plan, new, message), is_enough, after


def _moved(message: PyTree, centre: PyTree, move) -> PyTree:
    """Parameters moved by the server's; statistics as they are."""
    return {
        **message,
        "params": jax.tree.map(move, message["params"], centre["params"]),
    }


def _where(sends: Array, new: PyTree, old: PyTree) -> PyTree:
    def chosen(new: Array, old: Array) -> Array:
        return jnp.where(sends.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(chosen, new, old)
