"""Who averages with whom, in which order, when agents average in pairs.

None of it depends on parameters, so the host draws it. Events whose pairs share no
agent form a wave: they give the same numbers in any order, so they happen at once.
"""

import heapq
from typing import NamedTuple

import numpy as np

from p2pjax.graphs.topology import Topology
from p2pjax.types import Array, InputError, Links


class PairEvents(NamedTuple):
    """The events of all rounds, E in each; leaves `[R, ...]`."""

    agent: Array  # [R, E] who has finished its local training
    partner: Array  # [R, E] whom it averages with; itself for none
    wave: Array  # [R, E] number of the event's wave in its round
    num_before: Array  # [R, N] events of each agent in earlier rounds
    num_now: Array  # [R, N] events of each agent in this round
    sent: Array  # [R, N] messages, lost ones included
    links: Links  # [R, N, D] what arrived, neighbour by neighbour
    time: Array  # [R] of the last event


def draw_pairs(
    rng: np.random.Generator,
    graphs: Topology,
    of_round: np.ndarray,
    num_events: int,
    *,
    compute_seconds: Array | None = None,
    loss_probability: float = 0.0,
    bipartite: bool = False,
) -> PairEvents:
    """Draws the events of a run: a pair of messages each, to a neighbour and back.

    A neighbour that does not hear an agent does not answer; where a message is lost
    neither of the two averages, so that the mean of all models is kept.

    Args:
      rng: of the run.
      graphs: undirected, `[G, N, D]`; agents without a neighbour average with none.
      of_round: which graph each round has, `[R]`.
      num_events: E, of a round.
      compute_seconds: see `finishing_order`.
      loss_probability: of a message.
      bipartite: whether only agents of one side of each graph ask others.

    Example:
      >>> from p2pjax.graphs import generators, topology
      >>> ring = topology.stack([generators.ring(4)])
      >>> events = draw_pairs(np.random.default_rng(0), ring, np.zeros(2, int), 6)
      >>> events.agent.shape, (events.agent != events.partner).all().item()
      ((2, 6), True)
    """
    neighbor, mask = np.asarray(graphs.neighbor), np.asarray(graphs.mask)
    size, num_rounds = mask.shape[1], len(of_round)
    shape = (num_rounds, num_events)
    agent, time = finishing_order(rng, size, num_rounds * num_events, compute_seconds)
    agent = agent.reshape(shape)
    of_event = np.asarray(of_round)[:, None]  # [R, 1]
    degree = mask.sum(2)[of_event, agent]  # [R, E]
    place = (rng.random(shape) * degree).astype(np.int64)
    used_slots = np.argsort(~mask, axis=2, kind="stable")
    slot = used_slots[of_event, agent, np.minimum(place, mask.shape[2] - 1)]
    asks = degree > 0
    if bipartite:
        asks &= np.stack(
            [first_side(g, m) for g, m in zip(neighbor, mask, strict=True)]
        )[of_event, agent]
    asked = neighbor[of_event, agent, slot]
    is_heard, is_answered = rng.random((2, *shape)) >= loss_probability
    is_heard &= asks
    is_answered &= is_heard
    sent = np.zeros((num_rounds, size), np.float32)
    row = np.broadcast_to(np.arange(num_rounds)[:, None], shape)
    np.add.at(sent, (row[asks], agent[asks]), 1)
    np.add.at(sent, (row[is_heard], asked[is_heard]), 1)
    arrived = np.zeros((num_rounds, *mask.shape[1:]), np.float32)
    at = row[is_answered], agent[is_answered], slot[is_answered]
    np.add.at(arrived, at, 1)
    for number, graph in enumerate(of_round):
        heard = is_heard[number]
        by, of = asked[number, heard], agent[number, heard]
        back = ((neighbor[graph, by] == of[:, None]) & mask[graph, by]).argmax(1)
        np.add.at(arrived[number], (by, back), 1)
    partner = np.where(is_answered, asked, agent)
    num_now = np.zeros((num_rounds, size), np.int32)
    np.add.at(num_now, (row, agent), 1)
    return PairEvents(
        agent.astype(np.int32),
        partner.astype(np.int32),
        np.stack(
            [waves_of(*pairs, size) for pairs in zip(agent, partner, strict=True)]
        ),
        np.cumsum(num_now, axis=0, dtype=np.int32) - num_now,
        num_now,
        sent,
        Links(neighbor[of_round].astype(np.int32), arrived),
        time.reshape(shape)[:, -1].astype(np.float32),
    )


def finishing_order(
    rng: np.random.Generator,
    num_agents: int,
    num_events: int,
    compute_seconds: Array | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Who finishes its local training next, `[T]`, and when, `[T]`.

    Args:
      rng: of the run.
      num_agents: N.
      num_events: T.
      compute_seconds: of each agent, `[N]`, or of each of its trainings, `[N, C]`,
        used in turn; ties go to the lowest agent. None: exponentially distributed with
        mean 1, so that any agent is as likely to be next.

    Example:
      >>> finishing_order(np.random.default_rng(0), 2, 4, np.array([1.0, 1.5]))[0]
      array([0, 1, 0, 0])
    """
    if compute_seconds is None:
        agent = rng.integers(num_agents, size=num_events)
        return agent, np.cumsum(rng.exponential(1 / num_agents, num_events))
    seconds = np.asarray(compute_seconds, float)
    if seconds.ndim not in (1, 2) or len(seconds) != num_agents or not seconds.size:
        raise InputError(
            f"Need compute_seconds of each of {num_agents} agents, [{num_agents}] or "
            f"[{num_agents}, draws], got an array of shape {seconds.shape}."
        )
    in_turn = seconds.reshape(num_agents, -1).tolist()
    coming = [(own[0], number) for number, own in enumerate(in_turn)]
    heapq.heapify(coming)
    done = [0] * num_agents
    found = []
    for _ in range(num_events):
        found.append(coming[0])
        time, first = coming[0]
        done[first] += 1
        own = in_turn[first]
        heapq.heapreplace(coming, (time + own[done[first] % len(own)], first))
    times, agents = zip(*found, strict=True)
    return np.asarray(agents), np.asarray(times)


def waves_of(agent: np.ndarray, partner: np.ndarray, num_agents: int) -> np.ndarray:
    """The wave of each event, int32 `[E]`: after those of all events that it needs.

    Args:
      agent: in order, `[E]`.
      partner: `[E]`.
      num_agents: N.

    Example:
      >>> waves_of(np.array([0, 2, 1]), np.array([1, 3, 2]), 4).tolist()
      [0, 0, 1]
    """
    following, found = [0] * num_agents, []
    for one, other in zip(agent.tolist(), partner.tolist(), strict=True):
        wave = max(following[one], following[other])
        following[one] = following[other] = wave + 1
        found.append(wave)
    return np.asarray(found, np.int32)


def first_side(neighbor: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Agents `[N]` (bool) on the side of the lowest agent that they are linked to.

    Args:
      neighbor: of an undirected graph, `[N, D]`.
      mask: `[N, D]`.

    Example:
      >>> from p2pjax import graphs
      >>> first_side(*graphs.ring(4)).tolist()
      [True, False, True, False]
    """
    side = np.full(len(mask), -1)
    for start in range(len(mask)):
        if side[start] >= 0:
            continue
        side[start], waiting = 0, [start]
        while waiting:
            one = waiting.pop()
            others = np.asarray(neighbor)[one][np.asarray(mask)[one]]
            if (side[others] == side[one]).any():
                raise InputError(
                    "Need a graph of two sides, with links only between them, for "
                    f"bipartite=True, got one in which agent {one} is linked to its "
                    "own side: use a bipartite graph such as a ring of an even number "
                    "of agents, or bipartite=False."
                )
            new = others[side[others] < 0]
            side[new] = 1 - side[one]
            waiting.extend(new.tolist())
    return side == 0
