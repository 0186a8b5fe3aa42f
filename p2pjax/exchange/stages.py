"""The stages that a message passes on its way, and channels, which are chains of them.

Only what they are; `channel` makes and checks them, `encoding` and `losses` say what
they do.
"""

from typing import NamedTuple

from p2pjax.exchange.compression import Format


class Clip(NamedTuple):
    """The sender scales its message down to this Euclidean norm."""

    norm: float


class Noise(NamedTuple):
    """The sender adds normal noise to each number."""

    stddev: float


class ErrorFeedback(NamedTuple):
    """The sender adds what the format left out of its messages before."""


class Compress(NamedTuple):
    """The message travels in a format."""

    format: Format


class Drop(NamedTuple):
    """Each message is lost with this probability."""

    probability: float
    per_edge: bool = False  # both directions of an edge together
    burst: int = 1  # exchanges in a row

    @property
    def is_independent(self) -> bool:
        """Whether each message is lost independently of all others."""
        return not self.per_edge and self.burst == 1


class Delay(NamedTuple):
    """Messages arrive late, by an exponentially distributed time with this mean."""

    mean: float


class Stale(NamedTuple):
    """What arrives in an exchange was sent in the one before."""


Stage = Clip | Noise | ErrorFeedback | Compress | Drop | Delay | Stale


class Channel(NamedTuple):
    """Stages in the order in which a message passes them; none is a perfect channel."""

    stages: tuple[Stage, ...] = ()

    @property
    def loss_probability(self) -> float:
        """That a message does not arrive, all stages together."""
        lost = 0.0
        for stage in self.drops:
            lost = lost + stage.probability - lost * stage.probability
        return lost

    @property
    def drops(self) -> tuple[Drop, ...]:
        """The stages that lose messages."""
        return tuple(stage for stage in self.stages if isinstance(stage, Drop))

    @property
    def mean_delay(self) -> float:
        """In units of N wake-up events, all stages together."""
        return sum(s.mean for s in self.stages if isinstance(s, Delay))

    @property
    def clip_norm(self) -> float | None:
        """The norm to which messages are scaled down; None for as they are."""
        return next((s.norm for s in self.stages if isinstance(s, Clip)), None)

    @property
    def noise_stddev(self) -> float:
        """The standard deviation of the noise on each number."""
        return next((s.stddev for s in self.stages if isinstance(s, Noise)), 0.0)

    @property
    def format(self) -> Format | None:
        """The format of messages; None for all numbers as they are."""
        return next((s.format for s in self.stages if isinstance(s, Compress)), None)

    @property
    def has_error_feedback(self) -> bool:
        """Whether senders add what the format left out before."""
        return any(isinstance(stage, ErrorFeedback) for stage in self.stages)

    @property
    def is_stale(self) -> bool:
        """Whether what arrives was sent in the exchange before."""
        return any(isinstance(stage, Stale) for stage in self.stages)


PERFECT = Channel()
