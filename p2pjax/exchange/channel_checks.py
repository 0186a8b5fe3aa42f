"""Which stages of a channel a method can take; others are refused in a sentence."""

from collections.abc import Collection

from p2pjax.exchange.compression import FEWEST_LEVELS
from p2pjax.exchange.stages import Channel
from p2pjax.types import InputError

# How formats are asked for, by their names.
_CALL = {
    "half": "quantize(16)",
    "uniform8": "quantize(8)",
    "qsgd": f"qsgd({FEWEST_LEVELS})",
    "top_k": "top_k",
    "random_k": "random_k",
    "sign": "sign",
}
MODELS = ("half", "uniform8", "qsgd")  # formats of whole models
SPARSE = ("top_k", "random_k")  # formats of a part of a model
FORMATS = tuple(_CALL)  # all of them, for updates


def check_feedback(channel: Channel) -> None:
    """Refuses error feedback of nothing.

    Args:
      channel: whose stages they are.
    """
    if channel.has_error_feedback and channel.format is None:
        raise InputError(
            "Need a format behind error_feedback, got none: without one nothing is "
            "left out; add one such as top_k(0.01)."
        )


def check_channel(
    channel: Channel,
    method: str,
    *,
    loses: bool = True,
    delays: bool = False,
    edges: bool = False,
    stale: bool = False,
    noise: bool = False,
    updates: bool = False,
    formats: Collection[str] = (),
) -> None:
    """Refuses stages that a method cannot take.

    Args:
      channel: of the method.
      method: its name, for the message.
      loses: whether the method can do without a message.
      delays: whether its agents have clocks.
      edges: whether messages can be lost per edge and in bursts.
      stale: whether messages of the exchange before will do.
      noise: whether messages may be noisy.
      updates: whether messages are updates, not models: they can be clipped and
        compressed with error feedback.
      formats: names of the formats that messages can have, such as `MODELS`.

    Example:
      >>> from p2pjax.exchange.channel import delay
      >>> check_channel(delay(2.0), "p2p_bn", delays=True)  # it has clocks: no error
    """
    check_feedback(channel)
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
    if channel.is_stale and not stale:
        raise InputError(
            f"{method} cannot take messages of the exchange before: use a channel "
            "without stale, or D-PSGD."
        )
    if not (edges or all(stage.is_independent for stage in channel.drops)):
        raise InputError(
            f"{method} has no exchanges along the edges of a graph, so messages cannot "
            "be lost per edge or in bursts: use drop(probability)."
        )
    if channel.noise_stddev and not noise:
        raise InputError(
            f"{method} cannot take noisy messages: use a channel without noise, or "
            "D-PSGD."
        )
    if channel.clip_norm is not None and not updates:
        raise InputError(
            f"Need messages that are updates for clip, got the models of {method}: use "
            "a channel without clip, or fedavg."
        )
    if channel.has_error_feedback and not updates:
        raise InputError(
            f"Need messages that are updates for error feedback, got the models of "
            f"{method}: use choco_sgd, or top_k without error_feedback."
        )
    _check_format(channel, method, updates, formats)


def _check_format(
    channel: Channel, method: str, updates: bool, formats: Collection[str]
) -> None:
    chosen = channel.format
    if chosen is None:
        return
    if not formats:
        raise InputError(
            f"{method} needs exact messages, got {chosen.name}: use a channel without "
            "a format, or another method such as D-PSGD."
        )
    survives = updates or chosen.carries_models or chosen.select is not None
    if chosen.name not in formats:
        found, mend = chosen.name, "or choco_sgd"
    elif not survives:
        found = f"{chosen.name} as it is for updates"
        mend = "without options that shrink or multiply what is sent, or choco_sgd"
    else:
        return
    calls = ", ".join(call for name, call in _CALL.items() if name in formats)
    raise InputError(
        f"Need a format that carries whole models for {method}, got {found}: use one "
        f"of {calls}, {mend}."
    )
