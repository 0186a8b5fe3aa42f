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

A robust rule merges messages one after the other, in the order in which they arrive
(`in_turn`): at once into mailboxes that hold what their agents would have if they woke,
or, with delays, when the receiver wakes, each from a mailbox of its own.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from p2pjax.asynchronous.events import Schedule
from p2pjax.asynchronous.placing import (
    Arrivals,
    consumers,
    places,
    slots,
    slots_apart,
)
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
    coefficient: np.ndarray  # [R, W, E, K, G] what it counts there; 1 `in_turn`
    # [R, W, E, M, G] mailboxes that it merges one after the other, -1 for none; or ()
    slots: np.ndarray | tuple[()] = ()


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
    in_turn: np.ndarray | None = None,
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
      in_turn: `[N]` ranks by which senders post within a wave, where messages are
        merged one after the other; None: they are added up in any order.

    Returns:
      The waves, how many mailboxes an agent needs at most, and what is in them at the
      ends of epochs; () if not `at_once`, or `in_turn`.
    """
    num_trainings = len(schedule.agent)
    drawn = schedule
    if at_once:  # all agents wake once more when all is over, to empty their mailboxes
        schedule = _with_last_wakes(schedule, num_agents, num_epochs)
    num_wakes = len(schedule.agent)
    consumer = consumers(schedule)  # [A], num_wakes: none
    mail: Arrivals = defaultdict(list)  # consumer -> arrivals, in order
    posts: Arrivals = defaultdict(list)  # training -> arrivals it causes
    for arrival, training in enumerate(consumer):
        if training < num_wakes:
            mail[training].append(arrival)
            posts[int(schedule.source[arrival])].append(arrival)
    is_apart = in_turn is not None and not at_once  # each in a mailbox of its own
    rank = None if is_apart else in_turn
    wave = places(schedule, consumer, mail, posts, max_width, rank)
    slot = (slots_apart if is_apart else slots)(schedule, mail, wave)
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
        if in_turn is not None:
            coefficient[arrivals] = merged
            continue
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
        slot,
        mail,
        is_partial,
        own,
        coefficient,
    )
    if is_apart:
        waves = waves._replace(slots=_slots_in_turn(waves, slot, mail, merged_groups))
    elif in_turn is not None:  # mailboxes hold models
        waves.own[:], waves.has_mail[:] = 0, True
    needed = 1 + max(slot.values(), default=0)
    return waves, needed, told if at_once and in_turn is None else ()


def _slots_in_turn(
    waves: Waves, slot: dict[int, int], mail: Arrivals, merged: np.ndarray
) -> np.ndarray:
    """Mailboxes of all that trainings merge, in order, `[R, W, E, M, G]`."""
    most = max(1, max(map(len, mail.values()), default=1))
    table = np.full((*waves.agent.shape, most, merged.shape[1]), -1, np.int32)
    for place in np.argwhere(waves.has_mail):
        for number, arrival in enumerate(mail[int(waves.training[tuple(place)])]):
            table[(*place, number)] = np.where(merged[arrival], slot[arrival], -1)
    return table


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

        own = Waves(width, *map(taken, waves[1:-1]))
        if not isinstance(waves.slots, tuple):
            own = own._replace(slots=taken(waves.slots))
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


def _tables(
    schedule: Schedule,
    num_agents: int,
    num_epochs: int,
    wave: np.ndarray,
    posts: Arrivals,
    slot: dict[int, int],
    mail: Arrivals,
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
            waves.has_mail[place], waves.slot[place] = True, slot[mail[training][0]]
        for k, arrival in enumerate(posts[training]):
            waves.receiver[(*place, k)] = schedule.receiver[arrival]
            waves.receiver_slot[(*place, k)] = slot[arrival]
            waves.coefficient[(*place, k)] = coefficient[arrival]
    return waves
