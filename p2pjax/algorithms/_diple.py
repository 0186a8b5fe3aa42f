"""DiPLe: cycles of averaging with peers towards whom the loss falls.

Zheng, Naghizadeh, Yener (2022), "DiPLe: Learning directed collaboration graphs for
peer-to-peer personalized learning"; the cycle as in Sajina (2025). A cycle is a local
epoch, a choice of peers and their weights (`selection.diple`), and a few times: a
mini-batch, an average with these peers, a mini-batch. The model that did best on the
agent's own training data ends the cycle.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.engines.pulling import fetch_info
from p2pjax.exchange import mixing, shared
from p2pjax.exchange.shared import sharing_plan
from p2pjax.graphs import schedule
from p2pjax.graphs.topology import Graphs, Topology
from p2pjax.selection import tables
from p2pjax.selection.base import Selection
from p2pjax.selection.diple import line_search
from p2pjax.selection.peer_view import graph_of_rounds, initial_graph, make_peer_view
from p2pjax.tasks.task import Task
from p2pjax.training import samplers
from p2pjax.training.agent_loop import AUTO, map_agents
from p2pjax.training.learner import Learner
from p2pjax.training.local_training import identical_models, own_steps
from p2pjax.training.samplers import whole_set
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    PyTree,
    Variables,
    num_agents,
)


class DiPLeState(NamedTuple):
    """All agents' models at the end of a cycle."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    memory: PyTree  # of the selection


class _Best(NamedTuple):
    """The best model of the cycle so far."""

    variables: Variables  # leaves [N, ...]
    loss: Array  # [N]


def diple(
    task: Task,
    learner: Learner,
    selection: Selection | None = None,
    graph: Graphs | None = None,
    *,
    batch_size: int,
    num_iterations: int = 5,
    rewire_every: int | None = None,
    local: Sequence[str] = shared.FULL,
    agent_loop: int = AUTO,
) -> Algorithm:
    """A round is a cycle; `Info.examples` counts what it trained on.

    Args:
      task: what every agent learns.
      learner: how.
      selection: `diple.line_search()` if None, or that under a cap or with
        partial views.
      graph: whom an agent may choose, see `pull`.
      batch_size: B.
      num_iterations: averages in a cycle; the models are fetched anew for each.
      rewire_every: cycles after which the next graph comes; None keeps the first.
      local: leaves that are not sent, see `exchange`.
      agent_loop: see `agent_loop.map_agents`.
    """
    if num_iterations < 1:
        raise InputError(f"Need one iteration or more, got {num_iterations}.")
    if graph is not None:
        schedule.check_rewiring(graph, rewire_every)
    choose = line_search() if selection is None else selection
    take = own_steps(learner, batch_size, agent_loop)
    look = make_peer_view(
        task, equal_weights=False, probe=None, local=local, agent_loop=agent_loop
    )
    extra_steps = 2 * num_iterations

    def init_fn(key: Key, data: FederatedData) -> DiPLeState:
        key_model, key_memory = jax.random.split(key)
        size = num_agents(data)
        variables = identical_models(key_model, task, size)
        view = look(initial_graph(graph, size), variables, variables.params, data)
        memory = choose.init(key_memory, view)
        return DiPLeState(variables, jax.vmap(learner.init)(variables), memory)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> Topology | None:
        size = num_agents(data)
        return graph_of_rounds(rng, graph, rewire_every, size, num_rounds)

    def round_fn(
        key: Key,
        t: Array,
        permitted: Topology | None,
        state: DiPLeState,
        data: FederatedData,
    ) -> tuple[DiPLeState, Info]:
        key_epoch, key_select, key_steps = jax.random.split(key, 3)
        sizes = jnp.asarray(data.train.size)
        epoch = samplers.steps_per_epoch(sizes, batch_size)  # [N]
        start = t * (epoch + extra_steps)
        variables, opt_state, loss = take(
            key_epoch, start, epoch, state.variables, state.opt_state, data.train
        )
        if permitted is None:
            permitted = tables.all_others(len(sizes))
        view = look(permitted, variables, state.variables.params, data)
        peers, pulled, memory = choose.select(key_select, t, state.memory, view)
        plan = sharing_plan(variables, local)

        def own_loss(variables: Variables) -> Array:
            def one_agent(_: PyTree, agent: PyTree) -> tuple[PyTree, Array]:
                variables, examples, size = agent
                return (), view.loss(variables, whole_set(examples, size))

            agents = (variables, data.train.examples, data.train.size)
            return map_agents(one_agent, agent_loop)((), agents)[1]

        def one_step(key: Key, number: Array, carry: PyTree) -> PyTree:
            variables, opt_state = carry
            steps = start + epoch + number
            one = jnp.ones_like(epoch)
            variables, opt_state, _ = take(
                key, steps, one, variables, opt_state, data.train
            )
            return variables, opt_state

        def iterate(number: Array, carry: PyTree) -> PyTree:
            keys = jax.random.split(jax.random.fold_in(key_steps, number))
            (variables, opt_state), best = carry
            variables, opt_state = one_step(keys[0], 2 * number, (variables, opt_state))
            mixed = mixing.mix(
                shared.shared_leaves(variables),
                plan,
                lambda owner: mixing.fastest_combine(peers, owner),
            )
            variables = shared.with_shared_leaves(variables, mixed)
            best = _better(best, _Best(variables, own_loss(variables)))
            variables, opt_state = one_step(
                keys[1], 2 * number + 1, (variables, opt_state)
            )
            best = _better(best, _Best(variables, own_loss(variables)))
            return (variables, opt_state), best

        none_yet = _Best(variables, jnp.full(len(sizes), jnp.inf))
        (_, opt_state), best = jax.lax.fori_loop(
            0, num_iterations, iterate, ((variables, opt_state), none_yet)
        )
        state = DiPLeState(best.variables, opt_state, memory)
        info = fetch_info(loss, peers, pulled, view.model_size, 1 + num_iterations)
        stop = start + epoch + extra_steps
        examples = [
            samplers.examples_in_steps(steps, sizes, batch_size)
            for steps in (stop, start)
        ]
        return state, info._replace(examples=examples[0] - examples[1])

    return Algorithm(init_fn, plan_fn, round_fn, lambda state: state.variables)


def _better(old: _Best, new: _Best) -> _Best:
    is_new = new.loss < old.loss

    def choose(before: Array, after: Array) -> Array:
        mask = is_new.reshape((-1,) + (1,) * (after.ndim - 1))
        return jnp.where(mask, after, before)

    return jax.tree.map(choose, old, new)
