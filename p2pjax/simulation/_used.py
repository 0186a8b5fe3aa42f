"""What a run has used so far, so that methods can be compared by their costs."""

from typing import NamedTuple

import numpy as np

from p2pjax.types import Array, Info

BYTES_PER_PARAMETER = 4  # float32 on the wire


class Used(NamedTuple):
    """What a run has used so far, all agents together; `[S]` of S runs side by side.

    Whole numbers are int64, times float64, both on the host.
    """

    steps: np.ndarray  # mini-batch steps
    examples: np.ndarray  # that were learned from, repeated ones included
    messages: np.ndarray  # sent by agents and servers, lost ones included
    bytes: np.ndarray  # of these messages, 4 per parameter if nothing compresses them
    time: np.ndarray  # simulated; not a number for methods without a clock


def nothing_used(shape: tuple[int, ...] = ()) -> Used:
    """At the start of a run, or of runs `[S]`."""
    zero = np.zeros(shape, np.int64)
    return Used(zero, zero, zero, zero, np.full(shape, np.nan))


def added(used: Used, info: Info) -> Used:
    """With what the rounds `[..., rounds, N]` since the last snapshot have used."""

    def total(values: Array | None) -> np.ndarray:
        if values is None:
            return np.zeros(np.shape(used.steps), np.int64)
        return np.rint(np.asarray(values, np.float64).sum((-2, -1))).astype(np.int64)

    time = used.time if info.time is None else np.asarray(info.time, float)[..., -1]
    sent = BYTES_PER_PARAMETER * total(info.payload)
    if info.bytes is not None:
        sent = total(info.bytes)
    return Used(
        used.steps + total(info.steps),
        used.examples + total(info.examples),
        used.messages + total(info.sent) + total(info.served),
        used.bytes + sent + BYTES_PER_PARAMETER * total(info.delivered),
        time,
    )
