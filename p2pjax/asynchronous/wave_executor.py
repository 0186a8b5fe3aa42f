"""How waves of trainings run: one agent after the other in place, or in batches.

Trainings of a wave do not need each other, so they are taken task by task: each task
is a program of its own (`task_groups`). Messages go into mailboxes when all of the wave
have trained. Leaves that all agents have are merged from every sender, leaves of one
task from senders of that task only; each group of leaves has coefficients of its own.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from p2pjax import sharding
from p2pjax.asynchronous.messages import posted, shared, with_shared
from p2pjax.asynchronous.task_groups import in_task, leaf_groups, of_task
from p2pjax.asynchronous.waves import Waves
from p2pjax.exchange.channel import PERFECT, Channel
from p2pjax.types import Array, Key, PyTree, Split, Variables


class Agent(NamedTuple):
    """What an agent keeps between two wake-ups; stacked over agents in the state."""

    variables: Variables  # after its last training: what it sent, what is evaluated
    opt_state: PyTree
    memory: PyTree  # what else the method remembers


class AsynchronousState(NamedTuple):
    """All agents and what is on its way to them."""

    agents: Agent  # leaves [N, ...], of one task [N_q, ...]
    mailbox: PyTree  # leaves [N, S, ...]: messages, each times what it counts
    loss: Array  # [N] of the last training
    own: Array | tuple[()] = ()  # [N, G] what models count beside mail; () with delays


# (key, agent, its training and its validation data, whether it merged some message
# without the leaves of the sender's task) -> (agent, loss)
WakeFn = Callable[[Key, Agent, Split, Split, Array], tuple[Agent, Array]]


def in_place(
    on_wake: Sequence[WakeFn],
    starts: Sequence[int],
    local: tuple[str, ...],
    channel: Channel = PERFECT,
) -> Callable[..., AsynchronousState]:
    """One training after the other; every device takes those of its own agents."""

    def run(
        key: Key,
        t: Array,
        tables: tuple[Waves, ...],
        state: AsynchronousState,
        train: Split,
        valid: Split,
    ) -> AsynchronousState:
        num_own = train.size.shape[0]
        first = sharding.first_agent(num_own)

        def train_all(task: int, wave: Waves, state: AsynchronousState) -> PyTree:
            start = starts[task]
            groups = leaf_groups(state.mailbox, task)
            place = wave.agent - first  # [E] among this device's agents
            is_mine = _is_mine(wave, place, num_own)
            mine = jnp.argsort(~is_mine)  # stable: mine first

            def one_training(i: Array, state: AsynchronousState) -> AsynchronousState:
                event = _take(mine[i], _per_event(wave))
                at = place[mine[i]]
                agents, mailbox, loss, _ = state
                agent, data, validation = _read((agents, train, valid), task, start, at)
                mail = _read(mailbox, task, start, at, event.slot)
                agent, last = _wake(
                    on_wake[task],
                    groups,
                    local,
                    key,
                    event,
                    agent,
                    mail,
                    data,
                    validation,
                )
                state = AsynchronousState(
                    _write(agents, agent, task, start, at),
                    mailbox,
                    _put(loss, last, at),
                )
                return jax.lax.optimization_barrier(state)  # see `mixing._mix_block`

            # In a loop of its own: XLA:CPU copies all mailboxes once per training where
            # one loop both reads and empties them.
            def one_emptying(i: Array, mailbox: PyTree) -> PyTree:
                event, at = _take(mine[i], _per_event(wave)), place[mine[i]]
                emptied = jax.tree.map(
                    lambda leaf: jnp.where(event.has_mail, jnp.zeros_like(leaf), leaf),
                    _read(mailbox, task, start, at, event.slot),
                )
                return jax.lax.optimization_barrier(
                    _write(mailbox, emptied, task, start, at, event.slot)
                )

            num_mine = is_mine.sum()
            state = jax.lax.fori_loop(0, num_mine, one_training, state)
            mailbox = jax.lax.fori_loop(0, num_mine, one_emptying, state.mailbox)
            return state._replace(mailbox=mailbox)

        def post_all(task: int, wave: Waves, state: AsynchronousState) -> PyTree:
            start = starts[task]
            groups = leaf_groups(state.mailbox, task)
            place = wave.agent - first
            is_mine = _is_mine(wave, place, num_own)

            def one_posting(i: Array, state: AsynchronousState) -> AsynchronousState:
                at = jnp.clip(place[i], 0, num_own - 1)
                sender = _read(state.agents.variables, task, start, at)
                message = sharding.broadcast_from_owner(
                    posted(key, t, wave.training[i], sender, local, channel),
                    jnp.asarray(is_mine[i]),
                )
                to = wave.receiver[i] - first  # [K]
                is_mine_too = (to >= 0) & (to < num_own)
                order = jnp.argsort(~is_mine_too)

                def one_message(k: Array, mailbox: PyTree) -> PyTree:
                    at, slot = to[order[k]], wave.receiver_slot[i, order[k]]
                    share = wave.coefficient[i, order[k]]  # [G]
                    # A receiver of another task has no place for this task's leaves:
                    # they count nothing, and whoever is met instead stays the same.
                    total = jax.tree.map(
                        lambda group, box, m: _added(box, share[group], m),
                        groups,
                        _read(mailbox, task, start, at, slot),
                        message,
                    )
                    return jax.lax.optimization_barrier(
                        _write(mailbox, total, task, start, at, slot)
                    )

                mailbox = jax.lax.fori_loop(
                    0, is_mine_too.sum(), one_message, state.mailbox
                )
                return state._replace(mailbox=mailbox)

            return jax.lax.fori_loop(0, wave.width, one_posting, state)

        def one_wave(number: Array, state: AsynchronousState) -> AsynchronousState:
            of_tasks = [_take(number, table) for table in tables]
            for task, wave in enumerate(of_tasks):
                state = train_all(task, wave, state)
            for task, wave in enumerate(of_tasks):
                state = post_all(task, wave, state)
            return state

        return jax.lax.fori_loop(0, _num_waves(tables), one_wave, state)

    return run


def _added(box: Array, share: Array, message: Array) -> Array:
    return jnp.where(share > 0, box + share.astype(message.dtype) * message, box)


def _is_mine(wave: Waves, place: Array, num_own: int) -> Array:
    is_event = jnp.arange(len(place)) < wave.width
    return is_event & (place >= 0) & (place < num_own)


def in_batches(
    on_wake: Sequence[WakeFn],
    starts: Sequence[int],
    local: tuple[str, ...],
    channel: Channel = PERFECT,
) -> Callable[..., AsynchronousState]:
    """All trainings of a wave at once, a batch per task; unused places do not count."""

    def run(
        key: Key,
        t: Array,
        tables: tuple[Waves, ...],
        state: AsynchronousState,
        train: Split,
        valid: Split,
    ) -> AsynchronousState:
        no_agent = train.size.shape[0]

        def one_task(
            task: int, wave: Waves, state: AsynchronousState
        ) -> tuple[AsynchronousState, PyTree]:
            start = starts[task]
            is_event = jnp.arange(wave.agent.shape[0]) < wave.width
            at = jnp.where(is_event, wave.agent, no_agent)  # [E]
            agents, mailbox, loss, _ = state
            agent, data, validation = _read(
                (agents, train, valid), task, start, wave.agent
            )
            mail = _read(mailbox, task, start, wave.agent, wave.slot)
            groups = leaf_groups(mailbox, task)
            agent, last = jax.vmap(
                lambda *one: _wake(on_wake[task], groups, local, key, *one)
            )(_per_event(wave), agent, mail, data, validation)
            agents = in_task(
                lambda leaf, first, new: (
                    jnp.asarray(leaf).at[_place(leaf, first, at)].set(new, mode="drop")
                ),
                agents,
                task,
                start,
                agent,
            )
            emptied = jnp.where(wave.has_mail, at, no_agent)
            mailbox = in_task(
                lambda leaf, first, _: (
                    jnp.asarray(leaf)
                    .at[_place(leaf, first, emptied), wave.slot]
                    .set(0, mode="drop")
                ),
                mailbox,
                task,
                start,
                mail,
            )
            loss = jnp.asarray(loss).at[at].set(last.astype(loss.dtype), mode="drop")
            message = jax.vmap(
                lambda number, sender: posted(key, t, number, sender, local, channel)
            )(wave.training, agent.variables)  # leaves [E, ...]
            return AsynchronousState(agents, mailbox, loss), message

        def post(task: int, wave: Waves, message: PyTree, mailbox: PyTree) -> PyTree:
            groups = leaf_groups(mailbox, task)
            is_event = jnp.arange(wave.agent.shape[0]) < wave.width
            for k in range(wave.receiver.shape[1]):
                to = jnp.where(is_event, wave.receiver[:, k], no_agent)
                share, slot = wave.coefficient[:, k], wave.receiver_slot[:, k]
                weighted = jax.tree.map(
                    lambda group, m, share=share: _weighted(share[:, group], m),
                    groups,
                    message,
                )

                def add(
                    leaf: Array,
                    first: int,
                    new: Array,
                    to: Array = to,
                    slot: Array = slot,
                ) -> Array:
                    at = _place(leaf, first, to), slot
                    return jnp.asarray(leaf).at[at].add(new, mode="drop")

                mailbox = in_task(
                    add,
                    mailbox,
                    task,
                    starts[task],
                    weighted,
                )
            return mailbox

        def one_wave(number: Array, state: AsynchronousState) -> AsynchronousState:
            of_tasks = [_take(number, table) for table in tables]
            messages = []
            for task, wave in enumerate(of_tasks):
                state, message = one_task(task, wave, state)
                messages.append(message)
            mailbox = state.mailbox
            for task, wave in enumerate(of_tasks):
                mailbox = post(task, wave, messages[task], mailbox)
            return state._replace(mailbox=mailbox)

        return jax.lax.fori_loop(0, _num_waves(tables), one_wave, state)

    return run


def _weighted(share: Array, message: Array) -> Array:
    """Every agent's message `[E, ...]` times its share `[E]`."""
    axes = (-1,) + (1,) * (message.ndim - 1)
    return share.astype(message.dtype).reshape(axes) * message


def _num_waves(tables: tuple[Waves, ...]) -> Array:
    widths = jnp.stack([jnp.asarray(table.width) for table in tables])
    return (widths.sum(0) > 0).sum()


class _Event(NamedTuple):
    """What a training of a wave needs to know."""

    training: Any
    slot: Any
    has_mail: Any
    is_partial: Any
    own: Any  # [G]


def _per_event(wave: Waves) -> _Event:
    return _Event(wave.training, wave.slot, wave.has_mail, wave.is_partial, wave.own)


def _wake(
    on_wake: WakeFn,
    groups: PyTree,
    local: tuple[str, ...],
    key: Key,
    event: _Event,
    agent: Agent,
    mail: PyTree,
    data: Split,
    validation: Split,
) -> tuple[Agent, Array]:
    """Merges the mail of ONE agent and lets it train."""
    merged = jax.tree.map(
        lambda group, leaf, add: jnp.where(
            event.has_mail, event.own[group].astype(leaf.dtype) * leaf + add, leaf
        ),
        groups,
        shared(agent.variables, local),
        mail,
    )
    agent = agent._replace(variables=with_shared(agent.variables, merged))
    key = jax.random.fold_in(key, event.training)
    return on_wake(key, agent, data, validation, event.is_partial)


def _take(at: Array, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[at], tree)


def _read(tree: PyTree, task: int, start: int, at: Array, *more: Array) -> PyTree:
    """Agents `at` of a task, the nearest ones in place of others."""
    return of_task(
        lambda leaf, first: jnp.asarray(leaf)[(_nearest(leaf, first, at), *more)],
        tree,
        task,
        start,
    )


def _write(
    tree: PyTree, new: PyTree, task: int, start: int, at: Array, *more: Array
) -> PyTree:
    """Overwrites ONE agent of a task, where `_read` reads it, in place."""
    return in_task(
        lambda leaf, first, new: _put(leaf, new, _nearest(leaf, first, at), *more),
        tree,
        task,
        start,
        new,
    )


def _nearest(leaf: Array, first: int, at: Array) -> Array:
    return jnp.clip(at - first, 0, leaf.shape[0] - 1)


def _place(leaf: Array, first: int, at: Array) -> Array:
    """Of agents in a leaf; outside of it for those it does not hold."""
    place, size = at - first, leaf.shape[0]
    return jnp.where((place >= 0) & (place < size), place, size)


def _put(leaf: Array, value: Array, *at: Array) -> Array:
    """Overwrites `leaf[at]` in place."""
    value = value.reshape((1,) * len(at) + leaf.shape[len(at) :])
    start = [jnp.asarray(index, jnp.int32) for index in at]
    start += [jnp.int32(0)] * (leaf.ndim - len(at))
    return jax.lax.dynamic_update_slice(leaf, value.astype(leaf.dtype), start)
