"""DiPLe: cycles of averaging with peers towards whom the loss falls.

Zheng, Naghizadeh, Yener (2022), "DiPLe: Learning directed collaboration graphs for
peer-to-peer personalized learning", https://doi.org/10.1109/ITW54588.2022.9965838; the
cycle as in Sajina (2025). A cycle is a local
epoch, a choice of peers and their weights (`selection.diple`), and a few times: a
mini-batch, an average with these peers, a mini-batch. The model that did best on the
agent's own training data ends the cycle.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.assembly import assemble
from p2pjax.engines.pulling import fetch_info
from p2pjax.exchange import shared
from p2pjax.exchange.channel import PERFECT, Channel, check_channel, lost_to_self
from p2pjax.exchange.mixing import is_peer
from p2pjax.exchange.pipeline import make_exchange, send
from p2pjax.exchange.shared import Local, sharing_plan
from p2pjax.graphs import schedule
from p2pjax.graphs.conversion import GraphLike, as_topology
from p2pjax.graphs.topology import Topology
from p2pjax.partial.schemes import Scheme, SchemeFn
from p2pjax.partial.slices import what_is_sent
from p2pjax.selection import pair_values, tables
from p2pjax.selection.base import Selection
from p2pjax.selection.diple import line_search
from p2pjax.selection.pair_values import PairValues
from p2pjax.selection.peer_view import (
    arrivals,
    graph_of_rounds,
    initial_graph,
    make_peer_view,
)
from p2pjax.tasks.task import Task
from p2pjax.training import samplers
from p2pjax.training.agent_loop import AUTO, map_agents
from p2pjax.training.learner import Learner, as_learner
from p2pjax.training.local_training import identical_models, own_steps
from p2pjax.training.samplers import whole_set
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    Models,
    PyTree,
    Variables,
    num_agents,
)


class DiPLeState(NamedTuple):
    """All agents' models at the end of a cycle."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    selection_state: PyTree


class _Best(NamedTuple):
    """The best model of the cycle so far."""

    variables: Variables  # leaves [N, ...]
    loss: Array  # [N]


def diple(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike | None = None,
    *,
    batch_size: int,
    num_peers: int = 3,
    tolerance: float = 0.005,
    selection: Selection | None = None,
    from_start: bool = False,
    num_iterations: int = 5,
    rewire_every: int | None = None,
    local_patterns: Local = shared.FULL,
    scheme: Scheme | SchemeFn | None = None,
    channel: Channel = PERFECT,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Directed collaboration graphs (Zheng, Naghizadeh, Yener 2022).

    https://doi.org/10.1109/ITW54588.2022.9965838. A round is a cycle: a local epoch of
    each agent, then `num_iterations` times a step, an average and a step. So how much
    agents learn between exchanges is part of the method. An agent asks for the models
    of peers once to look at them, and for those it averages with in each iteration.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: whom each agent may choose, see `graphs.as_graph`; None permits all others.
      batch_size: B.
      num_peers: to look at in a cycle.
      tolerance: to which a peer's share is known.
      selection: instead of these two, such as `line_search(on_valid=True)`, or one
        under a limit of requests or with partial views.
      from_start: whether agents look at peers from the model that a cycle starts with,
        the best of the last averages, and not from what they learned since.
      num_iterations: averages in a cycle; the models are fetched anew for each.
      rewire_every: cycles after which the next graph comes; None keeps the first.
      local_patterns: leaves that are not sent, see `exchange.shared`.
      scheme: partial models of all agents, of which alone agents send what they share.
      channel: what happens to messages on their way.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.rotated(2))
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.diple(task, optax.sgd(0.1), batch_size=32, num_peers=2)
      >>> method.round_is
      'a cycle: one local epoch, a choice of peers, 5 times a step...'
    """
    if num_iterations < 1:
        raise InputError(f"Need one iteration or more, got {num_iterations}.")
    if graph is not None:
        graph = as_topology(graph)
        schedule.check_rewiring(graph, rewire_every)
    check_channel(channel, "DiPLe")
    if selection is None:
        selection = line_search(num_peers=num_peers, tolerance=tolerance)
    choose = selection
    learner = as_learner(task, optimizer)
    local = what_is_sent(task, local_patterns, scheme)
    take = own_steps(learner, batch_size, agent_loop)
    view_fn = make_peer_view(
        task,
        equal_weights=False,
        probe=None,
        local=local,
        agent_loop=agent_loop,
        is_fixed=graph is not None and rewire_every is None,
    )
    extra_steps = 2 * num_iterations

    def init_fn(key: Key, data: FederatedData) -> DiPLeState:
        key_model, key_memory = jax.random.split(key)
        size = num_agents(data)
        variables = identical_models(key_model, task, size)
        view = view_fn(initial_graph(graph, size), variables, variables.params, data)
        selection_state = choose.init(key_memory, view)
        opt_state = jax.vmap(learner.init)(variables)
        return DiPLeState(variables, opt_state, selection_state)

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
        exchange = make_exchange(sharing_plan(variables, local), channel)
        messages = send(exchange, key, t, shared.shared_leaves(variables))
        looks = state.variables if from_start else variables
        view = view_fn(permitted, looks, state.variables.params, data, messages)
        arrived: PairValues | None = None
        if channel.loss_probability:
            key_arrive = jax.random.fold_in(key, 1)
            arrived = arrivals(view, lambda sent: exchange.arrive(key_arrive, t, sent))
            view = view._replace(arrived=arrived)
        peers, fetched, selection_state = choose.select(
            key_select, t, state.selection_state, view
        )
        asked = Topology(peers.ids, is_peer(peers) & (peers.weight > 0))
        times = None if arrived is None else _counted(arrived)

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
            (variables, opt_state), best, times = carry
            variables, opt_state = one_step(keys[0], 2 * number, (variables, opt_state))
            own, heard = shared.shared_leaves(variables), peers
            messages = send(exchange, keys[0], t, own)
            if times is not None:
                key_arrive = jax.random.fold_in(keys[0], 1)
                now = arrivals(view, lambda sent: exchange.arrive(key_arrive, t, sent))
                times = _counted(_only(now, asked), times)
                heard = lost_to_self(peers, pair_values.recalled(now, asked))
            mixed = exchange.combine(messages, own, lambda owner: heard, None)
            variables = shared.with_shared_leaves(variables, mixed)
            best = _better(best, _Best(variables, own_loss(variables)))
            variables, opt_state = one_step(
                keys[1], 2 * number + 1, (variables, opt_state)
            )
            best = _better(best, _Best(variables, own_loss(variables)))
            return (variables, opt_state), best, times

        none_yet = _Best(variables, jnp.full(len(sizes), jnp.inf))
        (_, opt_state), best, times = jax.lax.fori_loop(
            0, num_iterations, iterate, ((variables, opt_state), none_yet, times)
        )
        state = DiPLeState(best.variables, opt_state, selection_state)
        is_asked_again = tables.contains(asked, Topology(fetched.ids, fetched.mask))
        asked_for = 1 + num_iterations * is_asked_again.astype(jnp.float32)
        info = fetch_info(loss, peers, fetched, view.model_size, asked_for, times)
        stop = start + epoch + extra_steps
        return state, info._replace(
            examples=samplers.examples_between(start, stop, sizes, batch_size),
            steps=(stop - start).astype(jnp.float32),
        )

    def models_fn(state: DiPLeState) -> Models:
        # The best of a cycle may be an average, or one after a step from it.
        return Models(state.variables, averaged=state.variables)

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is=f"a cycle: one local epoch, a choice of peers, {num_iterations} times "
        "a step, an average and a step",
        agent_loop=agent_loop,
    )


def _only(pairs: PairValues, table: Topology) -> PairValues:
    """The values of a table's peers; those of all others are false."""
    none = pair_values.with_values(pairs, jnp.zeros_like(pair_values.values(pairs)))
    return pair_values.noted(none, table, pair_values.recalled(pairs, table))


def _counted(arrived: PairValues, before: PairValues | None = None) -> PairValues:
    """How often messages have arrived, with those of this time."""
    count = pair_values.values(arrived).astype(jnp.int32)
    if before is not None:
        count = pair_values.values(before) + count
    return pair_values.with_values(arrived, count)


def _better(old: _Best, new: _Best) -> _Best:
    is_new = new.loss < old.loss

    def choose(before: Array, after: Array) -> Array:
        mask = is_new.reshape((-1,) + (1,) * (after.ndim - 1))
        return jnp.where(mask, after, before)

    return jax.tree.map(choose, old, new)
