"""How waves of trainings run: one agent after the other in place, or in batches.

Trainings of a wave do not need each other, so they are taken task by task: each task
is a program of its own (`task_groups`). Messages go into mailboxes when all of the wave
have trained. Leaves that all agents have are merged from every sender, leaves of one
task from senders of that task only; each group of leaves has coefficients of its own.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from p2pjax import sharding
from p2pjax.asynchronous import posting
from p2pjax.asynchronous.messages import Mailing, posted, shared
from p2pjax.asynchronous.rows import place_of, put, read, take, write, write_all
from p2pjax.asynchronous.task_groups import in_task, leaf_groups
from p2pjax.asynchronous.wakes import (
    AsynchronousState,
    WakeFn,
    attacks,
    opened,
    per_event,
    wake_one,
    with_message,
)
from p2pjax.asynchronous.waves import Waves
from p2pjax.types import Array, Key, PyTree, Split


def in_place(
    on_wake: Sequence[WakeFn],
    starts: Sequence[int],
    mailing: Mailing,
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
                event = take(mine[i], per_event(wave))
                at = place[mine[i]]
                agents, mailbox, loss = state.agents, state.mailbox, state.loss
                agent, data, validation = read((agents, train, valid), task, start, at)
                mail = read(mailbox, task, start, at, opened(event))
                agent, last, before = wake_one(
                    on_wake[task],
                    groups,
                    mailing,
                    key,
                    t,
                    event,
                    attacks(state, at),
                    agent,
                    mail,
                    data,
                    validation,
                )
                state = state._replace(
                    agents=write(agents, agent, task, start, at),
                    loss=put(loss, last, at),
                )
                if mailing.needs_before:
                    before = write(state.before, before, task, start, at)
                    state = state._replace(before=before)
                return jax.lax.optimization_barrier(state)  # see `mixing._mix_block`

            # In a loop of its own: XLA:CPU copies all mailboxes once per training where
            # one loop both reads and empties them.
            def one_emptying(i: Array, mailbox: PyTree) -> PyTree:
                event, at = take(mine[i], per_event(wave)), place[mine[i]]
                if mailing.holds_models:
                    variables = read(state.agents.variables, task, start, at)
                    emptied = shared(variables, mailing.local)
                else:
                    emptied = jax.tree.map(
                        lambda leaf: jnp.where(
                            event.has_mail, jnp.zeros_like(leaf), leaf
                        ),
                        read(mailbox, task, start, at, event.slot),
                    )
                return jax.lax.optimization_barrier(
                    write(mailbox, emptied, task, start, at, event.slot)
                )

            num_mine = is_mine.sum()
            state = jax.lax.fori_loop(0, num_mine, one_training, state)
            if mailing.is_apart:  # what comes next replaces what was there
                return state
            mailbox = jax.lax.fori_loop(0, num_mine, one_emptying, state.mailbox)
            return state._replace(mailbox=mailbox)

        def post_all(task: int, wave: Waves, state: AsynchronousState) -> PyTree:
            start = starts[task]
            groups = leaf_groups(state.mailbox, task)
            place = wave.agent - first

            def message_of(i: Array) -> PyTree:
                at = place[i]
                sender = read(state.agents.variables, task, start, at)
                before = None
                if mailing.needs_before:
                    before = read(state.before, task, start, at)
                return posted(
                    mailing,
                    key,
                    t,
                    wave.training[i],
                    sender,
                    attacks(state, at),
                    before,
                )

            def deliver(i: Array, message: PyTree, mailbox: PyTree) -> PyTree:
                to = wave.receiver[i] - first  # [K]
                is_mine = (to >= 0) & (to < num_own)
                order = jnp.argsort(~is_mine)

                def one_message(k: Array, mailbox: PyTree) -> PyTree:
                    at, slot = to[order[k]], wave.receiver_slot[i, order[k]]
                    share = wave.coefficient[i, order[k]]  # [G]
                    # A receiver of another task has no place for this task's leaves:
                    # they count nothing, and whoever is met instead stays the same.
                    box = read(mailbox, task, start, at, slot)
                    total = with_message(mailing, t, groups, share, box, message)
                    return jax.lax.optimization_barrier(
                        write(mailbox, total, task, start, at, slot)
                    )

                return jax.lax.fori_loop(0, is_mine.sum(), one_message, mailbox)

            mailbox = posting.post_all(
                wave.width, wave.agent // num_own, message_of, deliver, state.mailbox
            )
            return state._replace(mailbox=mailbox)

        def one_wave(number: Array, state: AsynchronousState) -> AsynchronousState:
            of_tasks = [take(number, table) for table in tables]
            for task, wave in enumerate(of_tasks):
                state = train_all(task, wave, state)
            for task, wave in enumerate(of_tasks):
                state = post_all(task, wave, state)
            return state

        if mailing.needs_before:
            models = shared(state.agents.variables, mailing.local)
            state = state._replace(before=models)
        state = jax.lax.fori_loop(0, _num_waves(tables), one_wave, state)
        return state._replace(before=())

    return run


def _is_mine(wave: Waves, place: Array, num_own: int) -> Array:
    is_event = jnp.arange(len(place)) < wave.width
    return is_event & (place >= 0) & (place < num_own)


def in_batches(
    on_wake: Sequence[WakeFn],
    starts: Sequence[int],
    mailing: Mailing,
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
            agents, mailbox, loss = state.agents, state.mailbox, state.loss
            agent, data, validation = read(
                (agents, train, valid), task, start, wave.agent
            )
            slots = opened(per_event(wave))  # [E], or [E, M]
            who = wave.agent[:, None] if slots.ndim == 2 else wave.agent
            mail = read(mailbox, task, start, who, slots)
            groups = leaf_groups(mailbox, task)
            is_byzantine = attacks(state, wave.agent)
            agent, last, before = jax.vmap(
                lambda *one: wake_one(on_wake[task], groups, mailing, key, t, *one)
            )(per_event(wave), is_byzantine, agent, mail, data, validation)
            agents = write_all(agents, agent, task, start, at)
            if mailing.holds_models:
                new = shared(agent.variables, mailing.local)
                mailbox = write_all(mailbox, new, task, start, at, wave.slot)
            elif not mailing.is_apart:
                emptied = jnp.where(wave.has_mail, at, no_agent)
                none = jax.tree.map(lambda _: 0, mail)
                mailbox = write_all(mailbox, none, task, start, emptied, wave.slot)
            loss = jnp.asarray(loss).at[at].set(last.astype(loss.dtype), mode="drop")
            message = jax.vmap(
                lambda number, *sender: posted(mailing, key, t, number, *sender)
            )(wave.training, agent.variables, is_byzantine, before)  # leaves [E, ...]
            return state._replace(agents=agents, mailbox=mailbox, loss=loss), message

        def post(task: int, wave: Waves, message: PyTree, mailbox: PyTree) -> PyTree:
            groups = leaf_groups(mailbox, task)
            if mailing.rule is not None:
                return post_in_turn(task, groups, wave, message, mailbox)
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
                    at = place_of(leaf, first, to), slot
                    return jnp.asarray(leaf).at[at].add(new, mode="drop")

                mailbox = in_task(
                    add,
                    mailbox,
                    task,
                    starts[task],
                    weighted,
                )
            return mailbox

        def post_in_turn(
            task: int, groups: PyTree, wave: Waves, message: PyTree, mailbox: PyTree
        ) -> PyTree:
            """Receivers of one sender differ; two senders may have the same."""

            def one_sender(i: Array, mailbox: PyTree) -> PyTree:
                to, slot, share, mine = take(
                    i,
                    (wave.receiver, wave.receiver_slot, wave.coefficient, message),
                )
                new = jax.vmap(
                    lambda share, box: with_message(
                        mailing, t, groups, share, box, mine
                    )
                )(share, read(mailbox, task, starts[task], to, slot))
                return write_all(mailbox, new, task, starts[task], to, slot)

            return jax.lax.fori_loop(0, wave.width, one_sender, mailbox)

        def one_wave(number: Array, state: AsynchronousState) -> AsynchronousState:
            of_tasks = [take(number, table) for table in tables]
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
