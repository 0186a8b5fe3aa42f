"""A sequence of events as waves: steps in which many agents train at once, exactly.

A training needs its agent's previous training and those whose models the agent merged
since. Trainings that do not need each other form a wave. Merging halves what was there
(x <- (x + message) / 2), so what an agent has when it wakes is a known combination of
its own model and the messages; each message is added to the receiver's mailbox, times
its coefficient, in any order. All of it is numpy, on the host.

Where messages arrive at once, mailboxes are up to date at the end of every network
epoch: what is in them is what an agent would merge if it woke then. Messages of later
epochs halve it when their epoch begins (`Mail.decay`), so nothing is ever divided by a
coefficient, however long an agent sleeps.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from p2pjax.asynchronous.events import Schedule
from p2pjax.types import Links

# (sender, receiver) -> for every group of leaves, whether the receiver merges them
Merges = Callable[[int, int], Sequence[bool]]


class Waves(NamedTuple):
    """Tables of all network epochs R: W waves of E trainings with K messages each.

    Parameters fall into G groups of leaves, which may be merged from some senders only.
    """

    width: np.ndarray  # [R, W] trainings of the wave, the first of E; 0 at the end
    agent: np.ndarray  # [R, W, E] who trains
    training: np.ndarray  # [R, W, E] its number in the sequence
    slot: np.ndarray  # [R, W, E] mailbox that it empties
    has_mail: np.ndarray  # [R, W, E] whether there is anything in it
    is_partial: np.ndarray  # [R, W, E] whether some of it is merged in some groups only
    own: np.ndarray  # [R, W, E, G] what its own model counts
    receiver: np.ndarray  # [R, W, E, K] who gets its new model; N is none
    receiver_slot: np.ndarray  # [R, W, E, K]
    coefficient: np.ndarray  # [R, W, E, K, G] what it counts there


class Mail(NamedTuple):
    """What mailboxes hold at the ends of all network epochs R, one mailbox per agent.

    An agent that merged at the end of an epoch would have `own * model + mailbox`.
    """

    decay: np.ndarray  # [R, N, G] what of the epoch before is left in this one
    own: np.ndarray  # [R, N, G] what the own model counts at the end


class Traffic(NamedTuple):
    """What is reported of every network epoch."""

    trainings: np.ndarray  # [R, N]
    sent: np.ndarray  # [R, N] messages, lost ones included
    received: np.ndarray  # [R, N] messages
    time: np.ndarray  # [R] when the epoch ended
    links: Links  # [R, N, K]


def pack(
    schedule: Schedule,
    num_agents: int,
    num_epochs: int,
    *,
    num_groups: int = 1,
    merges: Merges | None = None,
    max_width: int | None = None,
    at_once: bool = False,
) -> tuple[Waves, int, Mail | tuple[()]]:
    """Packs a schedule into waves.

    Args:
      schedule: the events.
      num_agents: N.
      num_epochs: R; epochs without an event are empty.
      num_groups: G.
      merges: which groups a receiver merges from a sender; all if not given.
      max_width: trainings of the widest wave; no limit if not given.
      at_once: whether messages arrive without delay. Then mailboxes are up to date at
        the end of every epoch; else what is on its way is in them too.

    Returns:
      The waves, how many mailboxes an agent needs at most, and what is in them at the
      ends of epochs; () if not `at_once`.
    """
    num_trainings = len(schedule.agent)
    drawn = schedule
    if at_once:  # all agents wake once more when all is over, to empty their mailboxes
        schedule = _with_last_wakes(schedule, num_agents, num_epochs)
    num_wakes = len(schedule.agent)
    consumer = _consumers(schedule)  # [A], num_wakes: none
    mail: dict[int, list[int]] = defaultdict(list)  # consumer -> arrivals, in order
    posts: dict[int, list[int]] = defaultdict(list)  # training -> arrivals it causes
    for arrival, training in enumerate(consumer):
        if training < num_wakes:
            mail[training].append(arrival)
            posts[int(schedule.source[arrival])].append(arrival)
    wave = _places(schedule, consumer, mail, posts, max_width)
    slot = _slots(schedule, mail, wave)
    own = np.ones((num_wakes, num_groups))
    coefficient = np.zeros((len(consumer), num_groups))
    merged_groups = _merged_groups(schedule, num_groups, merges)  # [A, G]
    is_partial = np.zeros(num_wakes, bool)
    told = Mail(*np.ones((2, num_epochs, num_agents, num_groups), np.float32))
    for training, arrivals in mail.items():
        if not arrivals:
            continue
        merged = merged_groups[arrivals]  # [m, G]
        is_partial[training] = not merged.all()
        number = np.cumsum(merged, axis=0)
        own[training] = 0.5 ** number[-1]
        until = number[-1:]  # messages that a coefficient knows of
        if at_once:
            epochs = schedule.epoch[schedule.source[arrivals]]
            until = number[np.searchsorted(epochs, epochs, side="right") - 1]
            _tell(told, schedule, training, epochs, number)
        coefficient[arrivals] = np.where(merged, 0.5 ** (until - number + 1), 0)
    waves = _tables(
        drawn,
        num_agents,
        num_epochs,
        wave[:num_trainings],
        posts,
        consumer,
        slot,
        mail,
        is_partial,
        own,
        coefficient,
    )
    return waves, 1 + max(slot.values(), default=0), told if at_once else ()


def _with_last_wakes(schedule: Schedule, num_agents: int, num_epochs: int) -> Schedule:
    """All agents wake in an epoch after the last, which is never run."""
    last = np.full(num_agents, num_epochs)
    return schedule._replace(
        agent=np.concatenate([schedule.agent, np.arange(num_agents)]),
        epoch=np.concatenate([schedule.epoch, last]),
    )


def _tell(
    told: Mail, schedule: Schedule, wake: int, epochs: np.ndarray, number: np.ndarray
) -> None:
    """Writes what becomes of the mail of one wake-up until then.

    Args:
      told: written to.
      schedule: with wake-ups at the end.
      wake: that merges the mail.
      epochs: `[m]` of its messages, increasing.
      number: `[m, G]` messages up to each one that are merged.
    """
    agent, end = schedule.agent[wake], schedule.epoch[wake]
    before = np.zeros_like(number[0])
    for epoch in range(epochs[0], min(end + 1, len(told.own))):
        arrived = np.searchsorted(epochs, epoch, side="right")
        now = number[arrived - 1]
        if epoch > epochs[0]:
            told.decay[epoch, agent] = 0.5 ** (now - before)
        if epoch < end:
            told.own[epoch, agent] = 0.5**now
        before = now


def by_task(waves: Waves, starts: Sequence[int]) -> tuple[Waves, ...]:
    """The trainings of every task in tables of their own, in the same waves.

    Args:
      waves: of agents that are numbered task by task.
      starts: first agent of every task.
    """
    places = np.arange(waves.agent.shape[-1])
    is_training = places < waves.width[..., None]  # [R, W, E]
    task = np.searchsorted(starts, waves.agent, side="right") - 1
    tables = []
    for number, start in enumerate(starts):
        is_own = is_training & (task == number)
        width = is_own.sum(-1).astype(np.int32)
        order = np.argsort(~is_own, axis=-1, kind="stable")[..., : max(1, width.max())]

        def taken(table: np.ndarray, order: np.ndarray = order) -> np.ndarray:
            more = (1,) * (table.ndim - order.ndim)
            return np.take_along_axis(table, order.reshape(order.shape + more), axis=2)

        own = Waves(width, *map(taken, waves[1:]))
        is_used = np.arange(order.shape[-1]) < width[..., None]
        tables.append(own._replace(agent=np.where(is_used, own.agent, np.int32(start))))
    return tuple(tables)


def traffic(schedule: Schedule, num_agents: int, num_epochs: int) -> Traffic:
    """Trainings, messages and time of every network epoch."""
    trainings = np.zeros((num_epochs, num_agents))
    np.add.at(trainings, (schedule.epoch, schedule.agent), 1)
    sent = np.zeros((num_epochs, num_agents))
    np.add.at(sent, (schedule.epoch, schedule.agent), schedule.sent)
    received = np.zeros((num_epochs, num_agents))
    # An arrival counts in the epoch of the training before it.
    when = schedule.epoch[np.maximum(schedule.after, 1) - 1]
    np.add.at(received, (when, schedule.receiver), 1)
    time = np.zeros(num_epochs)
    np.maximum.at(time, schedule.epoch, schedule.time)
    time = np.maximum.accumulate(time)
    sender = schedule.agent[schedule.source]
    links = _links(when, schedule.receiver, sender, (num_epochs, num_agents))
    return Traffic(
        trainings.astype(np.float32),
        sent.astype(np.float32),
        received.astype(np.float32),
        time.astype(np.float32),
        links,
    )


def _links(
    epoch: np.ndarray, receiver: np.ndarray, sender: np.ndarray, shape: tuple[int, int]
) -> Links:
    """Messages of every epoch, one slot per pair of agents that had any."""
    pairs, counts = np.unique(
        np.stack([epoch, receiver, sender]), axis=1, return_counts=True
    )
    number = np.zeros(shape, int)  # pairs of the agent so far
    np.add.at(number, tuple(pairs[:2]), 1)
    starts = np.cumsum(number) - number.ravel()
    slot = np.arange(len(counts)) - starts[np.ravel_multi_index(pairs[:2], shape)]
    tables = np.zeros((2, *shape, max(1, number.max(initial=0))))
    tables[(0, *pairs[:2], slot)], tables[(1, *pairs[:2], slot)] = pairs[2], counts
    return Links(tables[0].astype(np.int32), tables[1].astype(np.float32))


def mean_width(waves: Waves) -> float:
    """Trainings per wave."""
    return float(waves.width.sum() / (waves.width > 0).sum())


def _merged_groups(
    schedule: Schedule, num_groups: int, merges: Merges | None
) -> np.ndarray:
    """Which groups of leaves each arrival is merged into, `[A, G]`."""
    pairs = zip(schedule.agent[schedule.source], schedule.receiver, strict=True)
    if merges is None:
        return np.ones((len(schedule.receiver), num_groups), bool)
    merged = [merges(int(sender), int(receiver)) for sender, receiver in pairs]
    return np.asarray(merged, bool).reshape(-1, num_groups)


def _consumers(schedule: Schedule) -> np.ndarray:
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


def _places(
    schedule: Schedule,
    consumer: np.ndarray,
    mail: dict[int, list[int]],
    posts: dict[int, list[int]],
    max_width: int | None,
) -> np.ndarray:
    """The wave of every training within its epoch, `[T]`.

    As early as possible. A training is also not put before the receiver's own training
    that precedes its message: otherwise the message would need a mailbox of its own.
    """
    previous = np.full(len(schedule.agent), -1)  # of the same agent
    last: dict[int, int] = {}
    for training, agent in enumerate(schedule.agent.tolist()):
        previous[training] = last.get(agent, -1)
        last[agent] = training
    level = np.zeros(len(schedule.agent), int)
    epoch = schedule.epoch
    for training in range(len(level)):
        after = [int(schedule.source[arrival]) for arrival in mail[training]]
        after.append(previous[training])
        beside = [previous[consumer[arrival]] for arrival in posts[training]]
        earliest = [level[t] + 1 for t in after if _is_before(t, training, epoch)]
        earliest += [level[t] for t in beside if _is_before(t, training, epoch)]
        level[training] = max(earliest, default=0)
    return level if max_width is None else _narrowed(level, epoch, max_width)


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


def _slots(
    schedule: Schedule, mail: dict[int, list[int]], wave: np.ndarray
) -> dict[int, int]:
    """A mailbox for every training that has mail, free for as long as it fills up.

    A mailbox is emptied at the beginning of a wave and filled at the end of one.
    """
    position = list(zip(schedule.epoch.tolist(), wave.tolist(), strict=True))
    by_agent: dict[int, list[tuple]] = defaultdict(list)
    for training, arrivals in mail.items():
        if arrivals:
            first = min(position[int(schedule.source[a])] for a in arrivals)
            agent = int(schedule.agent[training])
            by_agent[agent].append((first, position[training], training))
    slot = {}
    for intervals in by_agent.values():
        free_from: list[tuple] = []
        for first, emptied, training in sorted(intervals):
            found = [s for s, end in enumerate(free_from) if end <= first]
            if not found:
                free_from.append(emptied)
                slot[training] = len(free_from) - 1
            else:
                free_from[found[0]] = emptied
                slot[training] = found[0]
    return slot


def _tables(
    schedule: Schedule,
    num_agents: int,
    num_epochs: int,
    wave: np.ndarray,
    posts: dict[int, list[int]],
    consumer: np.ndarray,
    slot: dict[int, int],
    mail: dict[int, list[int]],
    is_partial: np.ndarray,
    own: np.ndarray,
    coefficient: np.ndarray,
) -> Waves:
    width = np.zeros((num_epochs, 1 + int(wave.max())), np.int32)
    np.add.at(width, (schedule.epoch, wave), 1)
    shape = (*width.shape, int(width.max()))
    most = max(1, max(map(len, posts.values()), default=1))
    num_groups = own.shape[1]
    waves = Waves(
        width=width,
        agent=np.zeros(shape, np.int32),
        training=np.zeros(shape, np.int32),
        slot=np.zeros(shape, np.int32),
        has_mail=np.zeros(shape, bool),
        is_partial=np.zeros(shape, bool),
        own=np.ones((*shape, num_groups), np.float32),
        receiver=np.full((*shape, most), num_agents, np.int32),
        receiver_slot=np.zeros((*shape, most), np.int32),
        coefficient=np.zeros((*shape, most, num_groups), np.float32),
    )
    filled = np.zeros_like(width)
    for training, agent in enumerate(schedule.agent.tolist()):
        at = schedule.epoch[training], wave[training]
        place = (*at, filled[at])
        filled[at] += 1
        waves.agent[place], waves.training[place] = agent, training
        waves.own[place], waves.is_partial[place] = own[training], is_partial[training]
        if mail[training]:
            waves.has_mail[place], waves.slot[place] = True, slot[training]
        for k, arrival in enumerate(posts[training]):
            waves.receiver[(*place, k)] = schedule.receiver[arrival]
            waves.receiver_slot[(*place, k)] = slot[int(consumer[arrival])]
            waves.coefficient[(*place, k)] = coefficient[arrival]
    return waves
