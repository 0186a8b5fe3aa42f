"""The engine of asynchronous methods: waves of trainings, messages into mailboxes.

A method says how ONE agent trains when it is awake; who wakes, who receives and in
which order is drawn on the host (`events`) and packed into waves (`waves`). A round is
a network epoch. The numbers are those of the protocol, one agent after the other.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax import events, owners, sharding, topology, waves
from p2pjax.algorithms.base import Algorithm
from p2pjax.data import AgentData, World, num_agents
from p2pjax.events import Timing
from p2pjax.exchange import message_of, received
from p2pjax.slices import LOCAL
from p2pjax.topology import Graphs, Topology
from p2pjax.training import VMAP
from p2pjax.types import Array, Info, InputError, Key, PyTree, Variables
from p2pjax.waves import Traffic, Waves


class Agent(NamedTuple):
    """What an agent keeps between two awakenings; stacked over agents in the state."""

    variables: Variables  # after its last training: what it sent, what is evaluated
    opt_state: PyTree
    memory: PyTree  # what else the method remembers


class AsynchronousState(NamedTuple):
    """All agents and what is on its way to them."""

    agents: Agent  # leaves [N, ...]
    mailbox: PyTree  # leaves [N, S, ...]: messages, each times what it counts
    loss: Array  # [N] of the last training


class Inputs(NamedTuple):
    """One round's events."""

    waves: Waves
    traffic: Traffic


# (key, agent, its training and its validation data) -> (agent, loss)
Awake = Callable[[Key, Agent, AgentData, AgentData], tuple[Agent, Array]]


def asynchronous(
    init: Callable[[Key, World], Agent],
    awake: Awake,
    graph: Graphs,
    *,
    rewire_every: int | None = None,
    timing: Timing = Timing(),
    local: tuple[str, ...] = (),
    num_mailboxes: int | None = None,
    max_width: int | None = None,
    agent_loop: int,
) -> Algorithm:
    """A method in which one agent at a time is awake.

    Args:
      init: all agents at the start, leaves `[N, ...]`.
      awake: what ONE agent does when it wakes; its model is merged already.
      graph: who receives from whom: one graph, a sequence `[G, N, D]` that is used in
        turn, or a function that draws a graph.
      rewire_every: network epochs after which the next graph comes; None keeps the
        first.
      timing: when agents wake and messages arrive.
      local: leaves that are not exchanged (`exchange`).
      num_mailboxes: per agent; 1 without delays and 8 with them if not given.
      max_width: most trainings of a wave, for `VMAP`; no limit if not given.
      agent_loop: `VMAP` trains the agents of a wave in one batch; any other number
        takes them one after the other, in place, on every device its own.
    """
    topology.check_rewiring(graph, rewire_every)
    mailboxes = num_mailboxes or (8 if timing.mean_delay else 1)

    def init_fn(key: Key, world: World) -> AsynchronousState:
        agents = init(key, world)
        mailbox = [
            jnp.zeros((leaf.shape[0], mailboxes, *leaf.shape[1:]), leaf.dtype)
            for leaf in _shared(agents.variables, local)
        ]
        return AsynchronousState(agents, mailbox, jnp.zeros(num_agents(world)))

    def plan_fn(rng: np.random.Generator, world: World, num_rounds: int) -> Inputs:
        sizes = np.asarray(world.train.size)
        graphs, of_round = topology.graphs_of_rounds(
            rng, graph, rewire_every, len(sizes), num_rounds
        )
        to = topology.receivers(graphs)
        to = Topology(to.neighbor[of_round], to.mask[of_round])
        schedule = events.draw(rng, to, sizes, num_rounds, timing)
        packed, needed = waves.pack(
            schedule, len(sizes), num_rounds, max_width=max_width
        )
        if needed > mailboxes:
            raise InputError(
                f"Need {needed} mailboxes per agent for these delays, got {mailboxes}: "
                f"pass num_mailboxes={needed}."
            )
        return Inputs(packed, waves.traffic(schedule, len(sizes), num_rounds))

    def round_fn(
        key: Key, t: Array, inputs: Inputs, state: AsynchronousState, world: World
    ) -> tuple[AsynchronousState, Info]:
        del t
        if agent_loop == VMAP:
            run = _in_batches(awake, local)
        else:
            run = sharding.over_devices(_in_place(awake, local), num_common=2)
        state = run(key, inputs.waves, state, world.train, world.valid)
        sent, arrived, time, links = inputs.traffic
        size = sum(leaf[0].size for leaf in _shared(state.agents.variables, local))
        return state, Info(state.loss, sent, arrived, sent * float(size), time, links)

    return Algorithm(init_fn, plan_fn, round_fn, lambda state: state.agents.variables)


def _in_place(awake: Awake, local: tuple[str, ...]) -> Callable[..., AsynchronousState]:
    """One training after the other; every device takes those of its own agents."""

    def run(
        key: Key,
        tables: Waves,
        state: AsynchronousState,
        train: AgentData,
        valid: AgentData,
    ) -> AsynchronousState:
        num_own = train.size.shape[0]
        first = sharding.first_agent(num_own)

        def one_wave(number: Array, state: AsynchronousState) -> AsynchronousState:
            wave = _take(number, tables)
            place = wave.agent - first  # [E] among this device's agents
            is_event = jnp.arange(len(place)) < wave.width
            is_mine = is_event & (place >= 0) & (place < num_own)
            mine = jnp.argsort(~is_mine)  # stable: mine first

            def one_training(i: Array, state: AsynchronousState) -> AsynchronousState:
                event = _take(mine[i], _per_event(wave))
                at = place[mine[i]]
                agents, mailbox, loss = state
                agent, data, validation = _take(at, (agents, train, valid))
                mail = [leaf[at, event.slot] for leaf in mailbox]
                agent, last = _wake(
                    awake, local, key, event, agent, mail, data, validation
                )
                emptied = [
                    jnp.where(event.has_mail, jnp.zeros_like(leaf), leaf)
                    for leaf in mail
                ]
                state = AsynchronousState(
                    jax.tree.map(lambda leaf, new: _put(leaf, new, at), agents, agent),
                    [
                        _put(leaf, new, at, event.slot)
                        for leaf, new in zip(mailbox, emptied, strict=True)
                    ],
                    _put(loss, last, at),
                )
                return jax.lax.optimization_barrier(state)  # see `mixing._mix_block`

            def one_posting(i: Array, state: AsynchronousState) -> AsynchronousState:
                at, agents = place[i], state.agents
                sender = _take(jnp.clip(at, 0, num_own - 1), agents.variables)
                message = sharding.from_owner(_shared(sender, local), is_mine[i])
                to = wave.receiver[i] - first  # [K]
                is_mine_too = (to >= 0) & (to < num_own)
                order = jnp.argsort(~is_mine_too)

                def one_message(k: Array, mailbox: list[Array]) -> list[Array]:
                    at, slot = to[order[k]], wave.receiver_slot[i, order[k]]
                    share = wave.coefficient[i, order[k], 0]
                    return jax.lax.optimization_barrier(
                        [
                            _put(
                                leaf,
                                leaf[at, slot] + share.astype(m.dtype) * m,
                                at,
                                slot,
                            )
                            for leaf, m in zip(mailbox, message, strict=True)
                        ]
                    )

                mailbox = jax.lax.fori_loop(
                    0, is_mine_too.sum(), one_message, state.mailbox
                )
                return state._replace(mailbox=mailbox)

            state = jax.lax.fori_loop(0, is_mine.sum(), one_training, state)
            return jax.lax.fori_loop(0, wave.width, one_posting, state)

        return jax.lax.fori_loop(0, (tables.width > 0).sum(), one_wave, state)

    return run


def _in_batches(
    awake: Awake, local: tuple[str, ...]
) -> Callable[..., AsynchronousState]:
    """All trainings of a wave at once; places that are not used count for nothing."""

    def run(
        key: Key,
        tables: Waves,
        state: AsynchronousState,
        train: AgentData,
        valid: AgentData,
    ) -> AsynchronousState:
        nobody = train.size.shape[0]

        def one_wave(number: Array, state: AsynchronousState) -> AsynchronousState:
            wave = _take(number, tables)
            is_event = jnp.arange(wave.agent.shape[0]) < wave.width
            at = jnp.where(is_event, wave.agent, nobody)  # [E]
            agents, mailbox, loss = state
            agent, data, validation = _take(wave.agent, (agents, train, valid))
            mail = [leaf[wave.agent, wave.slot] for leaf in mailbox]
            agent, last = jax.vmap(lambda *one: _wake(awake, local, key, *one))(
                _per_event(wave), agent, mail, data, validation
            )
            agents = jax.tree.map(
                lambda leaf, new: leaf.at[at].set(new, mode="drop"), agents, agent
            )
            emptied = jnp.where(wave.has_mail, at, nobody)
            mailbox = [
                leaf.at[emptied, wave.slot].set(0, mode="drop") for leaf in mailbox
            ]
            message = _shared(agent.variables, local)  # leaves [E, ...]
            for k in range(wave.receiver.shape[1]):
                to = jnp.where(is_event, wave.receiver[:, k], nobody)
                share, slot = wave.coefficient[:, k, 0], wave.receiver_slot[:, k]
                mailbox = [
                    leaf.at[to, slot].add(
                        share.astype(m.dtype).reshape((-1,) + (1,) * (m.ndim - 1)) * m,
                        mode="drop",
                    )
                    for leaf, m in zip(mailbox, message, strict=True)
                ]
            loss = jnp.asarray(loss).at[at].set(last.astype(loss.dtype), mode="drop")
            return AsynchronousState(agents, mailbox, loss)

        return jax.lax.fori_loop(0, (tables.width > 0).sum(), one_wave, state)

    return run


class _Event(NamedTuple):
    """What a training of a wave needs to know."""

    training: Any
    slot: Any
    has_mail: Any
    own: Any  # [G]


def _per_event(wave: Waves) -> _Event:
    return _Event(wave.training, wave.slot, wave.has_mail, wave.own)


def _wake(
    awake: Awake,
    local: tuple[str, ...],
    key: Key,
    event: _Event,
    agent: Agent,
    mail: list[Array],
    data: AgentData,
    validation: AgentData,
) -> tuple[Agent, Array]:
    """Merges the mail of ONE agent and lets it train."""
    merged = [
        jnp.where(event.has_mail, event.own[0].astype(leaf.dtype) * leaf + add, leaf)
        for leaf, add in zip(_shared(agent.variables, local), mail, strict=True)
    ]
    agent = agent._replace(variables=_with_shared(agent.variables, merged, local))
    return awake(jax.random.fold_in(key, event.training), agent, data, validation)


def _shared(variables: Variables, local: tuple[str, ...]) -> list[Array]:
    """The leaves that travel, in order."""
    message = message_of(variables)
    leaves = jax.tree.leaves(message)
    return [leaves[index] for index in _travelling(message, local)]


def _with_shared(
    variables: Variables, new: Sequence[Array], local: tuple[str, ...]
) -> Variables:
    message = message_of(variables)
    leaves, structure = jax.tree.flatten(message)
    for index, leaf in zip(_travelling(message, local), new, strict=True):
        leaves[index] = leaf
    return received(variables, jax.tree.unflatten(structure, leaves))


def _travelling(message: PyTree, local: tuple[str, ...]) -> list[int]:
    plan = owners.whole_model(1, message, local)
    return sorted(
        block.leaf
        for owner_class in plan.classes
        if owner_class.owner[0] != LOCAL
        for block in owner_class.blocks
    )


def _take(at: Array, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[at], tree)


def _put(leaf: Array, value: Array, *at: Array) -> Array:
    """Overwrites `leaf[at]` in place."""
    value = value.reshape((1,) * len(at) + leaf.shape[len(at) :])
    start = [jnp.asarray(index, jnp.int32) for index in at]
    start += [jnp.int32(0)] * (leaf.ndim - len(at))
    return jax.lax.dynamic_update_slice(leaf, value.astype(leaf.dtype), start)
