"""Methods in which each agent trains and then fetches models of peers that it chooses.

`pull` owns what they have in common; a `Selection` is what distinguishes PENS, DAC,
PANM and L2C. All agents fetch what the others have after training in the same round.
What is reported is the trained model before it is averaged (Sajina 2025), so a round
is: average with the peers chosen last time, train, choose.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.adverse_pull import (
    Merging,
    check_pull,
    check_slots,
    keeps_messages,
    merged,
    merging,
    messages_of,
)
from p2pjax.engines.adversity import (
    attacked,
    byzantine_agents,
    inputs_and_attackers,
    no_attackers,
    poisoned_agents,
    with_attackers,
)
from p2pjax.engines.assembly import assemble
from p2pjax.exchange import shared
from p2pjax.exchange.aggregation import Combined
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel, lost_to_self
from p2pjax.exchange.encoding import message_bits, num_bytes
from p2pjax.exchange.mixing import is_peer
from p2pjax.exchange.pipeline import Exchange, Memory, begin, make_exchange
from p2pjax.exchange.rejections import none_rejected, rejected_of, with_rejected
from p2pjax.exchange.robust import Rule
from p2pjax.exchange.shared import Local, Sharing, sharing_plan, where_shared
from p2pjax.graphs import schedule
from p2pjax.graphs.conversion import GraphLike, as_topology
from p2pjax.graphs.topology import Topology
from p2pjax.partial.schemes import Scheme, SchemeFn
from p2pjax.partial.slices import what_is_sent
from p2pjax.selection import pair_values, tables
from p2pjax.selection.base import Fetched, Selection
from p2pjax.selection.pair_values import PairValues
from p2pjax.selection.peer_evaluation import Probe
from p2pjax.selection.peer_view import (
    arrivals,
    graph_of_rounds,
    initial_graph,
    make_peer_view,
    mix_params,
    self_only_peers,
)
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner, StepContext, as_learner
from p2pjax.training.local_training import identical_models, own_steps
from p2pjax.training.local_updates import LocalUpdates, epochs, steps_of
from p2pjax.training.poisoning import poisoned
from p2pjax.training.samplers import examples_between
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    Key,
    Links,
    Models,
    Peers,
    PyTree,
    Variables,
    num_agents,
)


class PullState(NamedTuple):
    """All agents' trained models, and whom they will average with."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    peers: Peers  # [N, K]
    selection_state: PyTree
    before: PyTree  # leaves [N, ...]: parameters before training; () if not needed
    decoded: PyTree = ()  # leaves [N, ...]: messages; () if they are the models
    merging: Merging | tuple[()] = ()  # of the robust rule; () without one
    memory: Memory | tuple[()] = ()  # of the exchange


def pull(
    task: Task,
    optimizer: Learner | optax.GradientTransformation,
    selection: Selection,
    graph: GraphLike | None = None,
    *,
    batch_size: int,
    local_updates: LocalUpdates = epochs(1),
    rewire_every: int | None = None,
    equal_weights: bool = False,
    probe: Probe | None = None,
    local_patterns: Local = shared.FULL,
    scheme: Scheme | SchemeFn | None = None,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    aggregate: Rule | None = None,
    agent_loop: int = AUTO,
    name: str = "This selection",
) -> Algorithm:
    """A round is local training of each agent and one choice of peers.

    Args:
      task: what each agent learns.
      optimizer: of optax, or a `Learner`.
      selection: how peers are chosen.
      graph: whom an agent may choose: one graph, a sequence that is used in turn, or a
        function that draws graphs of one width; None permits all others. What agents
        remember of each other is `[N, V]` where V neighbours stay the same, else
        `[N, N]`.
      batch_size: B.
      local_updates: in a round, `epochs(e)` or `steps(k)`.
      rewire_every: rounds after which the next graph comes; None keeps the first.
      equal_weights: whether models count the same in means, not by their data.
      probe: common examples, for selections that compare predictions.
      local_patterns: leaves that are not sent, see `exchange.shared`.
      scheme: partial models of all agents, of which alone agents fetch what they
        share, such as `partial.level(0.5)`; what stays is the receiver's own where
        agents try each other's models.
      channel: what happens to messages on their way. What does not arrive has an
        infinite loss and is not averaged.
      attack: what Byzantine agents send or learn from; None: all are honest. Peers are
        judged by what they send.
      aggregate: a robust rule in place of the mean over the chosen peers.
      agent_loop: see `agent_loop.map_agents`.
      name: of the method, for messages.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> from p2pjax.selection.pens import pens
      >>> task = pj.classification(pj.nn.MLP((16, 10)), (64,))
      >>> selection = pj.selection.limit_requests(pens(num_peers=2), max_requests=4)
      >>> pj.pull(task, optax.sgd(0.1), selection, batch_size=32).round_is
      'average with the peers chosen last time, ...choose peers'
    """
    if graph is not None:
        graph = as_topology(graph)
        schedule.check_rewiring(graph, rewire_every)
    check_pull(channel, attack, aggregate, name)
    learner = as_learner(task, optimizer)
    if attack is not None and attack.poison is not None:
        learner = poisoned(learner, attack.poison)
    local = what_is_sent(task, local_patterns, scheme)
    train = own_steps(learner, batch_size, agent_loop)
    view_fn = make_peer_view(
        task,
        equal_weights=equal_weights,
        probe=probe,
        local=local,
        agent_loop=agent_loop,
        is_fixed=graph is not None and rewire_every is None,
    )

    def exchange_of(variables: Variables) -> Exchange:
        plan = sharing_plan(variables, local)
        return make_exchange(plan, channel, attack, aggregate, eager=True)

    def averaged_of(state: PullState) -> tuple[Variables, Array | tuple[()]]:
        """The models with which agents go on, and how many were rejected."""
        exchange = exchange_of(state.variables)
        own = shared.shared_leaves(state.variables)
        if exchange.manner is None:
            found = Combined(_mixed(exchange, state, own, local))
        else:
            found = merged(
                exchange, state.merging, state.decoded, own, state.before, state.peers
            )
        models = shared.with_shared_leaves(state.variables, found.models)
        return models, found.rejected

    def init_fn(key: Key, data: FederatedData) -> PullState:
        key_model, key_memory, key_shapes = jax.random.split(key, 3)
        size = num_agents(data)
        variables = identical_models(key_model, task, size)
        view = view_fn(initial_graph(graph, size), variables, variables.params, data)
        memory = selection.init(key_memory, view)
        exchange = exchange_of(variables)
        message = shared.shared_leaves(variables)
        decoded: PyTree = ()
        if keeps_messages(exchange):
            decoded = jax.tree.map(jnp.copy, message)
        before: PyTree = ()
        if selection.merges_updates:
            before = jax.tree.map(jnp.copy, variables.params)
        peers = self_only_peers(key_shapes, selection, memory, view)
        check_slots(aggregate, peers.ids.shape[1], name)
        waiting: Merging | tuple[()] = ()
        if aggregate is not None:
            waiting = Merging(jax.random.fold_in(key, 0), jnp.int32(0))
            if aggregate.needs_losses:
                waiting = waiting._replace(loss=jnp.zeros(peers.ids.shape))
        return PullState(
            variables,
            jax.vmap(learner.init)(variables),
            peers,
            memory,
            before,
            decoded,
            waiting,
            begin(exchange, key, message, no_attackers(attack, size)),
        )

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        size = num_agents(data)
        permitted = graph_of_rounds(rng, graph, rewire_every, size, num_rounds)
        return attacked(attack, permitted, size, num_rounds)

    def round_fn(
        key: Key,
        t: Array,
        inputs: PyTree,
        state: PullState,
        data: FederatedData,
    ) -> tuple[PullState, Info]:
        key_train, key_select = jax.random.split(key)
        size = num_agents(data)
        permitted, attackers = inputs_and_attackers(inputs)
        if permitted is None:
            permitted = tables.all_others(size)
        averaged, rejected = averaged_of(state)
        num_steps = steps_of(local_updates, data.train.size, batch_size)  # [N]
        first = t * num_steps
        variables, opt_state, loss = train(
            key_train,
            first,
            num_steps,
            averaged,
            state.opt_state,
            data.train,
            StepContext(is_byzantine=poisoned_agents(attack, attackers)),
        )
        exchange = exchange_of(variables)
        models = shared.shared_leaves(variables)
        messages, memory = messages_of(
            exchange,
            key,
            t,
            models,
            shared.shared_leaves(averaged),
            with_attackers(
                with_rejected(none_rejected(state.memory), rejected), attackers
            ),
        )
        view = view_fn(permitted, variables, averaged.params, data, messages)
        if channel.loss_probability:
            key_arrive = jax.random.fold_in(key, 1)
            view = view._replace(
                arrived=arrivals(
                    view, lambda sent: exchange.arrive(key_arrive, t, sent)
                )
            )
        peers, fetched, selection_state = selection.select(
            key_select, t, state.selection_state, view
        )
        if view.arrived is not None:
            asked = Topology(peers.ids, is_peer(peers))
            peers = lost_to_self(peers, pair_values.recalled(view.arrived, asked))
        before = averaged.params if selection.merges_updates else ()
        state = PullState(
            variables,
            opt_state,
            peers,
            selection_state,
            before,
            messages if keeps_messages(exchange) else (),
            merging(aggregate, key, t, peers, view, batch_size),
            memory,
        )
        info = fetch_info(loss, peers, fetched, view.model_size, arrived=view.arrived)
        if channel.format is not None:
            plan = sharing_plan(variables, local)
            size_of_one = num_bytes(message_bits(channel.format, plan, models))
            info = info._replace(bytes=info.payload * (size_of_one / view.model_size))
        return state, info._replace(
            examples=examples_between(
                first, first + num_steps, data.train.size, batch_size
            ),
            steps=num_steps.astype(jnp.float32),
            rejected=rejected_of(memory),
        )

    def models_fn(state: PullState) -> Models:
        byzantine = byzantine_agents(attack, state.memory)
        averaged, _ = averaged_of(state)
        return Models(state.variables, state.variables, averaged, byzantine)

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is="average with the peers chosen last time, "
        + local_updates.described
        + " of each agent, choose peers",
        agent_loop=agent_loop,
        attack=attack,
    )


def _mixed(exchange: Exchange, state: PullState, own: PyTree, local: Sharing) -> PyTree:
    """The mean of what arrived."""
    messages = own if isinstance(state.decoded, tuple) else state.decoded
    mixed = exchange.combine(messages, own, lambda owner: state.peers, None)
    if not isinstance(state.before, tuple):
        # own + sum of weight * (after - before); statistics are averaged as they are
        mixed["params"] = jax.tree.map(
            lambda own, after, before: own + (after - before),
            state.before,
            mixed["params"],
            mix_params(state.before, state.peers, local),
        )
        mixed = where_shared(sharing_plan(state.variables, local), mixed, own)
    return mixed


def fetch_info(
    loss: Array,
    peers: Peers,
    fetched: Fetched,
    model_size: int,
    times: Array | int = 1,
    arrived: PairValues | None = None,
) -> Info:
    """What is reported of a round in which models were fetched so many times.

    Args:
      loss: of training, `[N]`.
      peers: whose models are merged.
      fetched: whose models were looked at.
      model_size: parameters of a model.
      times: how often they were fetched, `[N, C]` or the same of all.
      arrived: how many times it arrived, of each agent; None: each time.
    """
    used = fetched.mask.astype(jnp.float32) * times
    numbers = fetched.payload * times * model_size
    none = jnp.zeros(used.shape[0], jnp.float32)
    is_merged = is_peer(peers) & (peers.weight > 0)
    received = used
    if arrived is not None:
        found = pair_values.recalled(arrived, Topology(fetched.ids, fetched.mask))
        received = jnp.where(fetched.mask, found.astype(jnp.float32), 0)
    counted = fetched.counted
    if counted is not None:
        counted = none.at[fetched.ids].add(jnp.where(counted, used, 0))
    return Info(
        train_loss=loss,
        sent=none.at[fetched.ids].add(used),
        received=received.sum(1),
        payload=none.at[fetched.ids].add(numbers),
        links=Links(fetched.ids, received),
        merged=Links(peers.ids, is_merged.astype(jnp.float32)),
        counted=counted,
    )
