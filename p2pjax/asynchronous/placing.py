"""In which wave each training is, and which mailboxes its messages need: on the host.

Numbers of trainings and of arrivals are those of a schedule (`events`).
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from p2pjax.asynchronous.events import Schedule

# training -> arrivals: those that it merges, in order, or those that it causes
Arrivals = dict[int, list[int]]


def consumers(schedule: Schedule) -> np.ndarray:
    """`[A]`: the training before which each arrival is merged, T if none comes."""
    trainings: dict[int, np.ndarray] = {
        int(agent): np.flatnonzero(schedule.agent == agent)
        for agent in np.unique(schedule.agent)
    }
    no_training = len(schedule.agent)
    result = np.full(len(schedule.receiver), no_training)
    for arrival, (receiver, after) in enumerate(
        zip(schedule.receiver, schedule.after, strict=True)
    ):
        own = trainings.get(int(receiver), np.zeros(0, int))
        later = np.searchsorted(own, after)  # trainings number `after` and on
        if later < len(own):
            result[arrival] = own[later]
    return result


def places(
    schedule: Schedule,
    consumer: np.ndarray,
    mail: Arrivals,
    posts: Arrivals,
    max_width: int | None,
    rank: np.ndarray | None = None,
) -> np.ndarray:
    """The wave of every training within its epoch, `[T]`.

    As early as possible. A training is also not put before the receiver's own training
    that precedes its message: otherwise the message would need a mailbox of its own.

    Args:
      schedule: the events.
      consumer: `consumers` of it.
      mail: arrivals that each training merges.
      posts: arrivals that it causes.
      max_width: trainings of the widest wave; no limit if None.
      rank: `[N]`: within a wave messages are posted by the rank of their senders, then
        in the order of the events. Messages are then posted to each receiver in the
        order in which they arrive; None: in any order.
    """
    previous = np.full(len(schedule.agent), -1)  # of the same agent
    last: dict[int, int] = {}
    for training, agent in enumerate(schedule.agent.tolist()):
        previous[training] = last.get(agent, -1)
        last[agent] = training
    level = np.zeros(len(schedule.agent), int)
    epoch = schedule.epoch
    ahead = {} if rank is None else _ahead(schedule, mail)
    for training in range(len(level)):
        after = [int(schedule.source[arrival]) for arrival in mail[training]]
        after.append(previous[training])
        beside = [previous[consumer[arrival]] for arrival in posts[training]]
        earliest = [level[t] + 1 for t in after if _is_before(t, training, epoch)]
        earliest += [level[t] for t in beside if _is_before(t, training, epoch)]
        for other in (ahead.get(arrival, -1) for arrival in posts[training]):
            if rank is not None and _is_before(other, training, epoch):
                one, two = rank[schedule.agent[[other, training]]]
                earliest.append(level[other] + int(one > two))
        level[training] = max(earliest, default=0)
    return level if max_width is None else _narrowed(level, epoch, max_width)


def _ahead(schedule: Schedule, mail: Arrivals) -> dict[int, int]:
    """Arrival -> the training that sent what the same receiver merges just before."""
    return {
        arrival: int(schedule.source[before])
        for arrivals in mail.values()
        for before, arrival in itertools.pairwise(arrivals)
    }


def _is_before(one: int, other: int, epoch: np.ndarray) -> bool:
    """Whether a training is an earlier one of the same epoch."""
    return 0 <= one < other and epoch[one] == epoch[other]


def _narrowed(level: np.ndarray, epoch: np.ndarray, max_width: int) -> np.ndarray:
    """Cuts wide waves into several, in the order of the events."""
    result = np.zeros_like(level)
    for one in np.unique(epoch):
        members = np.flatnonzero(epoch == one)
        wave = 0
        for value in np.unique(level[members]):
            same = members[level[members] == value]
            result[same] = wave + np.arange(len(same)) // max_width
            wave = int(result[same].max()) + 1
    return result


def slots(schedule: Schedule, mail: Arrivals, wave: np.ndarray) -> dict[int, int]:
    """Arrival -> its mailbox: one for all that a training merges together.

    Args:
      schedule: the events.
      mail: arrivals that each training merges.
      wave: `places`.
    """
    together = [(training, tuple(arrivals)) for training, arrivals in mail.items()]
    return _fitted(schedule, together, wave)


def slots_apart(schedule: Schedule, mail: Arrivals, wave: np.ndarray) -> dict[int, int]:
    """Arrival -> its mailbox: one for each message, until it is merged.

    Args:
      schedule: the events.
      mail: arrivals that each training merges.
      wave: `places`.
    """
    apart = [
        (training, (arrival,))
        for training, arrivals in mail.items()
        for arrival in arrivals
    ]
    return _fitted(schedule, apart, wave)


def _fitted(
    schedule: Schedule,
    parcels: Sequence[tuple[int, tuple[int, ...]]],
    wave: np.ndarray,
) -> dict[int, int]:
    """Mailboxes for arrivals that a training merges, free for as long as they fill up.

    A mailbox is emptied at the beginning of a wave and filled at the end of one.
    """
    position = list(zip(schedule.epoch.tolist(), wave.tolist(), strict=True))
    by_agent: dict[int, list[tuple]] = defaultdict(list)
    for training, arrivals in parcels:
        if arrivals:
            first = min(position[int(schedule.source[a])] for a in arrivals)
            agent = int(schedule.agent[training])
            by_agent[agent].append((first, position[training], training, arrivals))
    slot = {}
    for intervals in by_agent.values():
        free_from: list[tuple] = []
        for first, emptied, _, arrivals in sorted(intervals):
            found = [s for s, end in enumerate(free_from) if end <= first]
            if not found:
                free_from.append(emptied)
                found = [len(free_from) - 1]
            free_from[found[0]] = emptied
            slot.update(dict.fromkeys(arrivals, found[0]))
    return slot
