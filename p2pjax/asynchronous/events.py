"""Who trains and who receives, in which order: asynchronous protocols on the host.

In P2P-BN (Sajina 2025) one agent at a time is awake: it trains on its own data, pushes
its model to its receivers and sleeps until it has received something. None of this
depends on parameter values, so the whole sequence is drawn beforehand, also with
clocks of different speed, delays, lost messages and agents that come and go. `waves`
turns it into batched steps.
"""

import heapq
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from p2pjax.graphs.topology import Topology
from p2pjax.types import InputError


class Absence(NamedTuple):
    """An agent that is away from `start` until just before `stop`.

    Example:
      >>> Absence(agent=2, start=5.0)  # and never comes back
      Absence(agent=2, start=5.0, stop=inf)
    """

    agent: int
    start: float
    stop: float = float("inf")


class Timing(NamedTuple):
    """When agents wake and messages arrive; a unit of time is N wake-up events.

    The defaults are the thesis: a uniformly random agent of those that have received
    something is awake next, and messages arrive at once.

    Example:
      >>> timing = Timing(poisson=True, absences=[Absence(agent=2, start=5.0)])
      >>> timing.speed is None  # all clocks tick once in a unit of time
      True
    """

    poisson: bool = False  # every agent has a clock; else a random one is next
    speed: np.ndarray | None = None  # [N] how often clocks tick, 1 if not given
    mean_delay: float = 0.0  # of a message, exponentially distributed
    loss_probability: float = 0.0  # of a message
    absences: Sequence[Absence] = ()


class Schedule(NamedTuple):
    """Trainings `[T]` and arrivals `[A]`, both in the order in which they happen.

    Arrival i merges the model that its sender had after training `source[i]` into the
    receiver's, after the first `after[i]` trainings and before the next.
    """

    agent: np.ndarray  # [T] who trains
    epoch: np.ndarray  # [T] network epoch
    time: np.ndarray  # [T]
    sent: np.ndarray  # [T] messages sent afterwards, lost ones included
    receiver: np.ndarray  # [A]
    source: np.ndarray  # [A] training after which it was sent
    after: np.ndarray  # [A]
    num_restarts: int  # how often all agents had to be woken because none waited


def draw(
    rng: np.random.Generator,
    receivers: Topology,
    sizes: np.ndarray,
    num_epochs: int,
    timing: Timing = Timing(),
    work: np.ndarray | None = None,
) -> Schedule:
    """Draws the events of the first network epochs.

    All agents that are there train once, without sending. From then on an agent that
    is awake trains and sends to its receivers in increasing order; it can wake again
    after it has received something. Where losses or departures leave no agent to wake
    and nothing on its way, all agents that are there wake once more.

    Args:
      rng: source of everything random.
      receivers: `[E, N, D]`, whom each agent sends to in every network epoch.
      sizes: `[N]` examples of the agents: an epoch is over when all have processed as
        many together.
      num_epochs: how many epochs.
      timing: when agents wake and messages arrive.
      work: `[N]` examples that an agent processes when it trains; all of its own if
        not given.
    """
    sizes = np.asarray(sizes, np.int64)
    _check(receivers, sizes, timing)
    work = sizes if work is None else np.asarray(work, np.int64)
    simulation = _Simulation(rng, receivers, sizes, work, timing)
    while simulation.epoch < num_epochs and simulation.advance():
        pass
    if simulation.epoch < num_epochs:
        warnings.warn(
            "No agent sends to one that is there: the protocol ends in network epoch "
            f"{simulation.epoch + 1} of {num_epochs}.",
            stacklevel=2,
        )
    schedule = simulation.schedule()
    # All agents train at first, which may take more than the epochs that are wanted.
    wanted = schedule.epoch < num_epochs
    return schedule._replace(
        agent=schedule.agent[wanted],
        epoch=schedule.epoch[wanted],
        time=schedule.time[wanted],
        sent=schedule.sent[wanted],
    )


def random_absences(
    rng: np.random.Generator, num_agents: int, share: float, start: float
) -> tuple[Absence, ...]:
    """A share of the agents leaves for good at some time.

    Args:
      rng: source of everything random.
      num_agents: N.
      share: of the agents that leave.
      start: the earliest time at which one does.
    """
    leaving = rng.choice(num_agents, round(share * num_agents), replace=False)
    return tuple(Absence(int(agent), start) for agent in np.sort(leaving))


class _Simulation:
    """The protocol, one training after the other."""

    def __init__(
        self,
        rng: np.random.Generator,
        receivers: Topology,
        sizes: np.ndarray,
        work: np.ndarray,
        timing: Timing,
    ):
        self._rng, self._timing = rng, timing
        self._sizes, self._work = sizes, work
        self._lists = [
            [np.sort(row[mask]) for row, mask in zip(neighbor, masks, strict=True)]
            for neighbor, masks in zip(
                np.asarray(receivers.neighbor), np.asarray(receivers.mask), strict=True
            )
        ]
        num_agents = len(sizes)
        self._speed = np.ones(num_agents) if timing.speed is None else timing.speed
        self._now, self._processed = 0.0, 0
        self._eligible = np.zeros(num_agents, bool)
        self._trainings: list[tuple[int, int, float, int]] = []
        self._arrivals: list[tuple[int, int, int]] = []
        self._flying: list[tuple[float, int, int, int]] = []  # time, number, to, source
        self._num_messages = self._num_restarts = 0
        self._ticks: list[tuple[float, int]] = []
        self._changes = sorted(
            [(a.start, a.agent, False) for a in timing.absences]
            + [(a.stop, a.agent, True) for a in timing.absences if a.stop < np.inf]
        )
        self._absences = np.zeros(num_agents, int)  # that have begun
        self._there = np.ones(num_agents, bool)
        self._come_and_go()
        for agent in np.flatnonzero(self._there):
            self._train(int(agent), sends=False)
        self._eligible[:] = self._there
        if timing.poisson:
            gaps = rng.exponential(1 / self._speed)
            self._ticks = [(gap, agent) for agent, gap in enumerate(gaps)]
            heapq.heapify(self._ticks)

    @property
    def epoch(self) -> int:
        """The network epoch that the next training belongs to."""
        return self._processed // int(self._sizes.sum())

    def advance(self) -> bool:
        """Lets the next agent train; false if none ever will again."""
        agent = self._next_by_clock() if self._timing.poisson else self._next_uniform()
        if agent is None:
            return False
        self._eligible[agent] = False
        self._train(agent, sends=True)
        return True

    def _next_uniform(self) -> int | None:
        self._pass_time_until(self._now + 1 / len(self._sizes))
        while not self._waiting().any():
            if not self._wait_for_something():
                return None
        weight = self._speed * self._waiting()
        return int(self._rng.choice(len(weight), p=weight / weight.sum()))

    def _next_by_clock(self) -> int | None:
        while True:
            time, agent = heapq.heappop(self._ticks)
            self._pass_time_until(time)
            gap = self._rng.exponential(1 / self._speed[agent])
            heapq.heappush(self._ticks, (time + gap, agent))
            if self._waiting()[agent]:
                return agent
            if (
                not self._waiting().any()
                and not self._flying
                and not self._wait_for_something()
            ):
                return None

    def _waiting(self) -> np.ndarray:
        return self._eligible & self._there

    def _wait_for_something(self) -> bool:
        """Until a message or an agent comes, or all wake; false if in vain."""
        coming = [time for time, *_ in self._flying[:1]]
        coming += [time for time, _, back in self._changes if back][:1]
        if self._flying or (coming and not self._anybody_sends()):
            self._pass_time_until(min(coming))
            return True
        if not self._anybody_sends():
            return False
        self._eligible |= self._there
        self._num_restarts += 1
        return True

    def _anybody_sends(self) -> bool:
        lists = self._receivers()
        return any(
            self._there[lists[agent]].any() for agent in np.flatnonzero(self._there)
        )

    def _receivers(self) -> list[np.ndarray]:
        return self._lists[min(self.epoch, len(self._lists) - 1)]

    def _train(self, agent: int, *, sends: bool) -> None:
        to = self._receivers()[agent].tolist() if sends else []
        source = len(self._trainings)
        self._trainings.append((agent, self.epoch, self._now, len(to)))
        self._processed += int(self._work[agent])
        for receiver in to:
            if self._rng.random() < self._timing.loss_probability:
                continue
            delay = self._timing.mean_delay and self._rng.exponential(
                self._timing.mean_delay
            )
            self._num_messages += 1
            heapq.heappush(
                self._flying,
                (self._now + delay, self._num_messages, receiver, source),
            )
        self._deliver()

    def _pass_time_until(self, time: float) -> None:
        while self._changes and self._changes[0][0] <= time:
            self._now = max(self._now, self._changes[0][0])
            self._deliver()
            self._come_and_go()
        self._now = max(self._now, time)
        self._deliver()

    def _come_and_go(self) -> None:
        while self._changes and self._changes[0][0] <= self._now:
            _, agent, is_back = self._changes.pop(0)
            self._absences[agent] += -1 if is_back else 1
            self._there[agent] = self._eligible[agent] = self._absences[agent] == 0

    def _deliver(self) -> None:
        while self._flying and self._flying[0][0] <= self._now:
            _, _, receiver, source = heapq.heappop(self._flying)
            if self._there[receiver]:
                self._eligible[receiver] = True
                self._arrivals.append((receiver, source, len(self._trainings)))

    def schedule(self) -> Schedule:
        """What has happened."""
        agent, epoch, time, sent = zip(*self._trainings, strict=True)
        arrivals = np.asarray(self._arrivals, np.int64).reshape(-1, 3)
        return Schedule(
            agent=np.asarray(agent),
            epoch=np.asarray(epoch),
            time=np.asarray(time),
            sent=np.asarray(sent),
            receiver=arrivals[:, 0],
            source=arrivals[:, 1],
            after=arrivals[:, 2],
            num_restarts=self._num_restarts,
        )


def _check(receivers: Topology, sizes: np.ndarray, timing: Timing) -> None:
    num_agents = len(sizes)
    if np.ndim(receivers.mask) != 3 or receivers.mask.shape[1] != num_agents:
        raise InputError(
            f"Need receivers [epochs, {num_agents}, degree], got "
            f"{np.shape(receivers.mask)}."
        )
    if sizes.sum() < 1:
        raise InputError("Need agents with examples, got none at all.")
    if not 0 <= timing.loss_probability <= 1 or not timing.mean_delay >= 0:
        raise InputError(
            f"Need a loss probability from 0 to 1 and a mean delay of 0 or more, got "
            f"{timing.loss_probability} and {timing.mean_delay}."
        )
    if timing.speed is not None and (
        np.shape(timing.speed) != (num_agents,)
        or not (np.asarray(timing.speed) > 0).all()
    ):
        raise InputError(
            f"Need a positive speed for each of {num_agents} agents, got "
            f"{timing.speed}."
        )
    for absence in timing.absences:
        if not 0 <= absence.agent < num_agents or absence.stop <= absence.start:
            raise InputError(
                f"Need absences of agents 0 to {num_agents - 1} that end after they "
                f"start, got {absence}."
            )
