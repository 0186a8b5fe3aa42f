"""What happens to messages on their way: changed, compressed, lost, late.

A channel is a chain of stages, as optimizers of optax are chains of transformations:

    channel = chain(quantize(8), drop(0.3))

Stages come in this order: clip, noise, error_feedback, one format (top_k, random_k,
quantize, qsgd or sign), drop, and delay or stale. Which methods can take which stages
is decided by their constructors, in a sentence.
"""

import itertools
import math

from p2pjax.exchange import compression
from p2pjax.exchange.channel_checks import check_channel, check_feedback
from p2pjax.exchange.losses import arrivals, lost_to_self, without_lost
from p2pjax.exchange.stages import (
    PERFECT,
    Channel,
    Clip,
    Compress,
    Delay,
    Drop,
    ErrorFeedback,
    Noise,
    Stage,
    Stale,
)
from p2pjax.types import InputError

__all__ = [
    "PERFECT",
    "Channel",
    "Clip",
    "Compress",
    "Delay",
    "Drop",
    "ErrorFeedback",
    "Noise",
    "Stale",
    "arrivals",
    "chain",
    "check_channel",
    "clip",
    "delay",
    "drop",
    "error_feedback",
    "lost_to_self",
    "noise",
    "qsgd",
    "quantize",
    "random_k",
    "sign",
    "stale",
    "top_k",
    "without_lost",
]

# Drop and delay may alternate, and there may be several of them.
_PLACE = {Clip: 0, Noise: 1, ErrorFeedback: 2, Compress: 3, Drop: 4, Delay: 4, Stale: 5}
_NAME = {
    Clip: "clip",
    Noise: "noise",
    ErrorFeedback: "error_feedback",
    Compress: "the format",
    Drop: "drop",
    Delay: "delay",
    Stale: "stale",
}
_ORDER = (
    "clip, noise, error_feedback, one format (top_k, random_k, quantize, qsgd or "
    "sign), drop, delay or stale"
)


def clip(norm: float) -> Channel:
    """Scales messages down to a Euclidean norm, where it is larger.

    For methods whose messages are updates. The norm is over all parameters that travel,
    of each owner class by itself.

    Args:
      norm: above 0.

    >>> clip(1.0).clip_norm
    1.0
    """
    if not 0 < norm < math.inf:
        raise InputError(f"Need a norm above 0 for clip, got {norm}.")
    return Channel((Clip(float(norm)),))


def noise(stddev: float) -> Channel:
    """Adds independent normal noise to each number that is sent.

    Args:
      stddev: its standard deviation.

    >>> noise(0.1).noise_stddev
    0.1
    """
    if not 0 <= stddev < math.inf:
        raise InputError(
            f"Need a standard deviation of 0 or more for noise, got {stddev}."
        )
    return Channel((Noise(float(stddev)),) if stddev else ())


def error_feedback() -> Channel:
    """Adds to each message what the format behind it left out of those before.

    Karimireddy et al. (2019), https://arxiv.org/abs/1901.09847. For methods whose
    messages are updates.

    >>> chain(error_feedback(), top_k(0.01)).has_error_feedback
    True
    """
    return Channel((ErrorFeedback(),))


def top_k(ratio: float, *, index_bits: int | None = None) -> Channel:
    """Sends the largest numbers of each leaf only.

    Of a model: those that changed most since the agent last sent them; receivers keep
    their own values of the others.

    Args:
      ratio: share of a leaf's numbers, above 0 to 1; at least one of each leaf.
      index_bits: of a position; None for as many as the leaf needs.

    >>> top_k(0.01).format.bits(100)  # a number and its position
    39
    """
    return Channel((Compress(compression.top_k(ratio, index_bits=index_bits)),))


def random_k(
    ratio: float, unbiased: bool = False, *, shared_seed: bool = True
) -> Channel:
    """Sends random numbers of each leaf only.

    Args:
      ratio: share of a leaf's numbers, above 0 to 1; at least one of each leaf.
      unbiased: multiply what is sent, so that its mean is that of all numbers; for
        updates.
      shared_seed: a seed of 32 bits travels in place of the positions.

    >>> random_k(0.01).format.bits(100)
    32
    """
    chosen = compression.random_k(ratio, unbiased, shared_seed=shared_seed)
    return Channel((Compress(chosen),))


def quantize(bits: int, *, stochastic: bool = False) -> Channel:
    """Sends each number in 16 bits (half floats) or 8 (and a scale of each leaf).

    Args:
      bits: 16 or 8.
      stochastic: round up or down at random; 8 bits only.

    >>> quantize(8).format.name
    'uniform8'
    """
    return Channel((Compress(compression.quantize(bits, stochastic=stochastic)),))


def qsgd(levels: int, biased: bool = False) -> Channel:
    """Sends signs and random levels of the norm of each leaf (Alistarh et al. 2017).

    https://arxiv.org/abs/1610.02132.

    Args:
      levels: 1 or more; models need 15 or more.
      biased: shrink what is sent, so that less is left out than there was: for
        `error_feedback` and `choco_sgd`.

    >>> qsgd(15).format.bits(100)
    532
    """
    return Channel((Compress(compression.qsgd(levels, biased)),))


def sign() -> Channel:
    """Sends signs and the mean magnitude of each leaf.

    >>> sign().format.bits(100)
    132
    """
    return Channel((Compress(compression.sign()),))


def drop(probability: float, per_edge: bool = False, burst: int = 1) -> Channel:
    """Loses each message with a probability.

    Args:
      probability: from 0 to below 1, also with bursts.
      per_edge: both directions of an edge are lost together.
      burst: exchanges for which what is lost is lost in a row.

    >>> drop(0.3).loss_probability
    0.3
    """
    if not 0 <= probability < 1:
        raise InputError(
            f"Need a probability of losing a message from 0 to below 1, got "
            f"{probability}."
        )
    if burst < 1 or burst != int(burst):
        raise InputError(f"Need bursts of 1 or more exchanges, got {burst}.")
    # A channel that loses nothing has no stage, so that nothing is computed for it.
    stage = Drop(float(probability), bool(per_edge), int(burst))
    return Channel((stage,) if probability else ())


def delay(mean: float) -> Channel:
    """Delays messages by a random time, for methods whose agents have clocks.

    Args:
      mean: of the exponential distribution, in units of N wake-up events.

    >>> delay(2.0).mean_delay
    2.0
    """
    if not 0 <= mean < math.inf:
        raise InputError(f"Need a mean delay of 0 or more, got {mean}.")
    return Channel((Delay(float(mean)),) if mean else ())


def stale() -> Channel:
    """Delays messages by one exchange, for methods without clocks.

    Each agent combines its own value of this exchange with what others sent in the one
    before; in the first exchange that is what they had at the start.

    >>> stale().is_stale
    True
    """
    return Channel((Stale(),))


def chain(*channels: Channel) -> Channel:
    """One channel after the other.

    Args:
      *channels: whose stages come in the order clip, noise, error_feedback, one format,
        drop, delay or stale.

    >>> chain(drop(0.5), drop(0.5)).loss_probability
    0.75
    """
    stages = tuple(stage for channel in channels for stage in channel.stages)
    if any(isinstance(stage, Stale) for stage in stages) and any(
        isinstance(stage, Delay) for stage in stages
    ):
        raise InputError(
            "Need delay, for methods with clocks, or stale, for methods without, got "
            "both in one channel: leave one out."
        )
    for before, after in itertools.pairwise(stages):
        _check_pair(before, after)
    chained = Channel(stages)
    check_feedback(chained)
    return chained


def _check_pair(before: Stage, after: Stage) -> None:
    first, second = _NAME[type(before)], _NAME[type(after)]
    if type(before) is type(after) and not isinstance(after, Drop | Delay):
        raise InputError(
            f"Need at most one {second.removeprefix('the ')} in a channel, got two: "
            "leave one out."
        )
    if _PLACE[type(before)] > _PLACE[type(after)]:
        raise InputError(
            f"Need stages in the order {_ORDER}, got {second} after {first}: move "
            f"{second} forward."
        )
