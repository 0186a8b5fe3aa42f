"""The engine of asynchronous methods: waves of trainings, messages into mailboxes.

A method says how ONE agent trains when it is awake; who wakes, who receives and in
which order is drawn on the host (`events`), packed into waves (`waves`) and run on the
device (`wave_executor`). A round is a network epoch. The numbers are those of the
protocol, one agent after the other.

Reported are models after their last training. Where messages arrive at once there are
also averaged ones: what each agent would have if it merged all that has arrived by the
end of the round. With delays a mailbox also holds what is still on its way, and cannot
be taken apart, so then there are none.

A robust rule merges each message with what its receiver has when it arrives, one after
the other; with delays when the receiver wakes. Attackers are agents that follow the
protocol, but for what they learn from or send.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax import sharding
from p2pjax.asynchronous import events, messages, task_groups, wave_executor, waves
from p2pjax.asynchronous.events import Timing
from p2pjax.asynchronous.messages import Mailing
from p2pjax.asynchronous.wakes import Agent, AsynchronousState, WakeFn
from p2pjax.asynchronous.waves import Mail, Traffic, Waves
from p2pjax.datasets.checking import check_data
from p2pjax.engines.adverse_waves import check_waves
from p2pjax.engines.adversity import attacked, inputs_and_attackers
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel
from p2pjax.exchange.compression import Format
from p2pjax.exchange.encoding import message_bits, num_bytes
from p2pjax.exchange.owner_classes import whole_model
from p2pjax.exchange.robust import Rule
from p2pjax.exchange.shared import Sharing
from p2pjax.graphs import topology
from p2pjax.graphs.conversion import GraphLike, as_topology
from p2pjax.graphs.schedule import check_rewiring, graphs_of_rounds
from p2pjax.graphs.topology import Topology
from p2pjax.training.agent_loop import VMAP, resolve_agent_loop
from p2pjax.training.local_updates import LocalUpdates, epochs, steps_of
from p2pjax.training.samplers import check_batch_size
from p2pjax.types import (
    Algorithm,
    Array,
    Evaluate,
    FederatedData,
    Info,
    InputError,
    Key,
    Models,
    PyTree,
    num_agents,
)

NUM_GROUPS = 2  # of leaves: those that all tasks have, and those of one


class Inputs(NamedTuple):
    """One round's events."""

    waves: tuple[Waves, ...]  # of every task
    traffic: Traffic
    mail: Mail | tuple[()]  # () with delays


def asynchronous(
    init: Callable[[Key, FederatedData], Agent],
    on_wake: Sequence[WakeFn],
    graph: GraphLike,
    *,
    batch_size: int,
    evaluate: Evaluate,
    check: Callable[[FederatedData], None] = lambda data: None,
    local_updates: LocalUpdates = epochs(1),
    starts: Sequence[int] = (0,),
    rewire_every: int | None = None,
    timing: Timing = Timing(),
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    aggregate: Rule | None = None,
    local: Sharing = (),
    num_mailboxes: int | None = None,
    max_width: int | None = None,
    agent_loop: int,
    name: str = "This method",
) -> Algorithm:
    """A method in which one agent at a time is awake.

    Args:
      init: all agents at the start, leaves `[N, ...]`; what only a task has is
        `task_groups.PerTask`.
      on_wake: for every task, what ONE agent does when it wakes; its model is merged
        already.
      graph: who receives from whom: one graph, a sequence `[G, N, D]` that is used in
        turn, or a function that draws a graph.
      batch_size: B.
      evaluate: of the method, see `Algorithm`.
      check: refuses data that the method cannot use, on the host.
      local_updates: of an agent that is awake.
      starts: first agent of every task.
      rewire_every: network epochs after which the next graph comes; None keeps the
        first.
      timing: when agents wake and messages arrive.
      channel: what else happens to messages on their way: `drop`, `delay` and
        `quantize`.
      attack: what Byzantine agents send or learn from, if it needs no messages of
        others; None: all are honest.
      aggregate: a robust rule for one message, in place of the mean of two models.
      local: regular expressions of leaves that are not exchanged, or slices that are.
      num_mailboxes: per agent; 1 without delays and 8 with them if not given.
      max_width: most trainings of a wave, for `VMAP`; no limit if not given.
      agent_loop: `VMAP` trains the agents of a wave in one batch per task; any other
        number takes them one after the other, in place, on every device its own.
      name: of the method, for messages.
    """
    check_batch_size(batch_size)
    check_waves(channel, attack, aggregate, name, len(starts))
    graph = as_topology(graph)
    check_rewiring(graph, rewire_every)
    timing = _with_channel(timing, channel)
    mailboxes = num_mailboxes or (8 if timing.mean_delay else 1)
    at_once = not timing.mean_delay
    holds_models = aggregate is not None and at_once

    def mailing_of(size: int) -> Mailing:
        kept = local(size) if callable(local) else tuple(local)
        return Mailing(kept, channel, attack, aggregate, at_once)

    def init_fn(key: Key, data: FederatedData) -> AsynchronousState:
        agents, mailing = init(key, data), mailing_of(num_agents(data))

        def boxes(leaf: Array) -> Array:
            if mailing.holds_models:
                return jnp.stack([leaf] * mailboxes, axis=1)
            return jnp.zeros((len(leaf), mailboxes, *leaf.shape[1:]), leaf.dtype)

        mailbox = jax.tree.map(boxes, messages.shared(agents.variables, mailing.local))
        size = num_agents(data)
        is_added = at_once and aggregate is None
        own = jnp.ones((size, NUM_GROUPS), jnp.float32) if is_added else ()
        state = AsynchronousState(agents, mailbox, jnp.zeros(size), own)
        if attack is not None:
            state = state._replace(is_byzantine=jnp.zeros(size, bool))
        return state

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        check_data(data)
        check(data)
        sizes = np.asarray(data.train.size)
        graphs, of_round = graphs_of_rounds(
            rng, graph, rewire_every, len(sizes), num_rounds
        )
        to = topology.receivers(graphs)
        to = Topology(to.neighbor[of_round], to.mask[of_round])
        schedule = events.draw(
            rng, to, sizes, num_rounds, timing, work=_examples(sizes)
        )
        task = task_groups.task_of_agents(starts, len(sizes))
        packed, needed, mail = waves.pack(
            schedule,
            len(sizes),
            num_rounds,
            num_groups=NUM_GROUPS,
            merges=lambda sender, receiver: (True, task[sender] == task[receiver]),
            max_width=max_width,
            at_once=at_once,
            in_turn=None if aggregate is None else task,
        )
        if needed > mailboxes:
            raise InputError(
                f"Need {needed} mailboxes per agent for these delays, got {mailboxes}: "
                f"pass num_mailboxes={needed}."
            )
        inputs = Inputs(
            waves.by_task(packed, starts),
            waves.traffic(schedule, len(sizes), num_rounds),
            mail,
        )
        return attacked(attack, inputs, len(sizes), num_rounds)

    def _examples(sizes: np.ndarray) -> np.ndarray:
        """That an agent learns from when it wakes, `[N]`; each step counts as full."""
        if local_updates.num_epochs:
            return local_updates.num_epochs * sizes
        return local_updates.num_steps * np.minimum(sizes, batch_size)

    def round_fn(
        key: Key,
        t: Array,
        inputs: PyTree,
        state: AsynchronousState,
        data: FederatedData,
    ) -> tuple[AsynchronousState, Info]:
        inputs, attackers = inputs_and_attackers(inputs)
        if attackers is not None:
            is_byzantine = jnp.asarray(attackers.is_byzantine)
            state = state._replace(is_byzantine=is_byzantine)
        mailing = mailing_of(num_agents(data))
        if resolve_agent_loop(agent_loop, state.agents) == VMAP:
            run = wave_executor.in_batches(on_wake, starts, mailing)
        else:
            run = wave_executor.in_place(on_wake, starts, mailing)
            if len(starts) == 1:
                run = sharding.over_devices(run, num_common=3)
            else:
                sharding.check_single_device("train agents of different tasks in place")
        mail, mailbox = inputs.mail, state.mailbox
        if isinstance(mail, Mail):
            mailbox = task_groups.over_groups(
                lambda *at: _rows(mail.decay, *at) * at[-1], starts, mailbox
            )
        state = state._replace(mailbox=mailbox, own=())
        state = run(key, t, inputs.waves, state, data.train, data.valid)
        if isinstance(mail, Mail):
            state = state._replace(own=jnp.asarray(mail.own))
        trainings, sent, arrived, time, links = inputs.traffic
        size = _message_sizes(state.mailbox, starts, num_agents(data))
        sizes = jnp.asarray(data.train.size)
        num_steps = steps_of(local_updates, sizes, batch_size)
        of_wake = (
            local_updates.num_epochs * sizes
            if local_updates.num_epochs
            else num_steps * jnp.minimum(sizes, batch_size)
        )
        info = Info(
            state.loss,
            sent,
            arrived,
            sent * size,
            time,
            links,
            examples=trainings * of_wake.astype(trainings.dtype),
            steps=trainings * num_steps.astype(trainings.dtype),
        )
        if channel.format is not None:
            of_one = _message_bytes(
                channel.format, state.mailbox, starts, num_agents(data)
            )
            info = info._replace(bytes=sent * of_one)
        return state, info

    def models_fn(state: AsynchronousState) -> Models:
        # What has arrived is merged when its receiver wakes.
        trained, own = state.agents.variables, state.own
        models = Models(trained, trained=trained)
        if not isinstance(state.is_byzantine, tuple):
            models = models._replace(is_byzantine=state.is_byzantine)
        kept = mailing_of(len(state.loss)).local
        if holds_models:
            now = jax.tree.map(lambda leaf: leaf[:, 0], state.mailbox)
            return models._replace(averaged=messages.with_shared(trained, now, kept))
        if isinstance(own, tuple):
            return models

        def merged(group: int, first: int, mail: Array, leaf: Array) -> Array:
            return _rows(own, group, first, leaf) * leaf + mail[:, 0]

        averaged = task_groups.over_groups(
            merged, starts, state.mailbox, messages.shared(trained, kept)
        )
        return models._replace(averaged=messages.with_shared(trained, averaged, kept))

    return Algorithm(
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        evaluate,
        "a network epoch of wake-ups: until the agents together have seen as many "
        "examples as there are; an agent that wakes merges what has arrived, trains "
        f"for {local_updates.described} and sends its model",
    )


def _rows(table: Array, group: int, first: int, leaf: Array) -> Array:
    """What a table `[N, G]` says of the agents of a leaf, to multiply it."""
    rows = jnp.asarray(table)[first : first + leaf.shape[0], group]
    return rows.astype(leaf.dtype).reshape((-1,) + (1,) * (leaf.ndim - 1))


def _with_channel(timing: Timing, channel: Channel) -> Timing:
    """Losses and delays of both together."""
    kept = (1 - timing.loss_probability) * (1 - channel.loss_probability)
    return timing._replace(
        loss_probability=1 - kept
        if channel.loss_probability
        else timing.loss_probability,
        mean_delay=timing.mean_delay + channel.mean_delay,
    )


def _message_sizes(mailbox: PyTree, starts: Sequence[int], num_agents: int) -> Array:
    """Parameters in a message of every agent, `[N]`."""
    return _of_messages(
        lambda own: sum(leaf.size for leaf in jax.tree.leaves(own)),
        mailbox,
        starts,
        num_agents,
    )


def _message_bytes(
    format: Format, mailbox: PyTree, starts: Sequence[int], num_agents: int
) -> Array:
    """Bytes of a message of every agent, `[N]`."""

    def of_one(own: PyTree) -> int:
        plan = whole_model(1, own)
        return num_bytes(message_bits(format, plan, own))

    return _of_messages(of_one, mailbox, starts, num_agents)


def _of_messages(
    measure: Callable[[PyTree], int],
    mailbox: PyTree,
    starts: Sequence[int],
    num_agents: int,
) -> Array:
    """`measure` of the message of ONE agent of each task, `[N]`."""
    of_tasks = [
        measure(
            task_groups.of_task(lambda leaf, _: leaf[0, 0], mailbox, task, 0),
        )
        for task in range(len(starts))
    ]
    task_of = task_groups.task_of_agents(starts, num_agents)
    return np.asarray(of_tasks, np.float32)[task_of]
