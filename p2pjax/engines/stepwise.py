"""Methods in which agents take a few local steps and then communicate, all together.

`gossip` owns what they have in common: the clock, the graphs, the loop over exchanges,
the counting. A `GossipProtocol` is what distinguishes D-PSGD, D2, SGP and GoSGD: what
an agent sends and what it makes of what arrives.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.adversity import (
    byzantine_agents,
    check_gossip,
    no_attackers,
    plan_attack,
)
from p2pjax.engines.assembly import assemble
from p2pjax.engines.communication import (
    GossipState,
    Pending,
    arrivals_of,
    at_new_rate,
    communicate,
    finished,
)
from p2pjax.engines.message_losses import judges
from p2pjax.engines.protocol import GossipProtocol, LocalStep, bytes_sent
from p2pjax.exchange import shared
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel
from p2pjax.exchange.pipeline import Attackers, Exchange, Memory, begin, make_exchange
from p2pjax.exchange.rejections import none_rejected, rejected_of
from p2pjax.exchange.robust import Rule
from p2pjax.exchange.shared import Local, message_size, sharing_plan
from p2pjax.graphs import schedule
from p2pjax.graphs.conversion import GraphLike, as_graph
from p2pjax.graphs.schedule import RewireEvery, Rewiring
from p2pjax.graphs.topology import Topology
from p2pjax.partial.schemes import Scheme, SchemeFn
from p2pjax.partial.slices import what_is_sent
from p2pjax.tasks.task import Task
from p2pjax.training import samplers
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.epochs import exchanges_of_rounds
from p2pjax.training.learner import Learner, StepContext, as_learner
from p2pjax.training.local_training import (
    identical_models,
    local_training,
    own_steps,
    with_gradient,
)
from p2pjax.training.local_updates import LocalUpdates, steps, steps_of
from p2pjax.training.poisoning import poisoned
from p2pjax.training.rates import rated, without_total
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    Links,
    Models,
    Peers,
    PyTree,
    Split,
    Variables,
    num_agents,
)

# (key, exchanges before, variables, optimizer state, split) -> (variables, optimizer
# state, losses [N]) and, where the protocol needs them, (gradient, update)
TrainFn = Callable[[Key, Array, Variables, PyTree, Split], tuple]


class GossipInputs(NamedTuple):
    """What the host knows of every round; leaves `[R, ...]`."""

    first_exchange: Array  # [R] exchanges before
    num_exchanges: Array  # [R]
    graph: PyTree  # prepared: [R, ...], or [R, W, ...] that are used in turn
    attackers: Attackers | None = None  # [R, ...]


def gossip(
    task: Task,
    optimizer: Learner | optax.GradientTransformation,
    protocol: GossipProtocol,
    graph: GraphLike,
    *,
    batch_size: int,
    local_updates: LocalUpdates = steps(1),
    rewire_every: RewireEvery = None,
    local_patterns: Local = shared.FULL,
    scheme: Scheme | SchemeFn | None = None,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    aggregate: Rule | None = None,
    score_before: bool = False,
    agent_loop: int = AUTO,
    train_fn: Callable[..., TrainFn] | None = None,
    name: str = "This protocol",
) -> Algorithm:
    """A method in which local training and communications of all agents alternate.

    With local steps a round is one network epoch (`training.epochs`): as many exchanges
    as it takes until all agents together have seen as many examples as there are. With
    local epochs it is these epochs and one exchange.

    Args:
      task: what each agent learns.
      optimizer: of optax, or a `Learner`.
      protocol: what is sent and how it is merged, such as `protocols.dpsgd()`.
      graph: who receives from whom, see `graphs.as_graph`: one graph, a sequence that
        is used in turn, or a function that draws a graph.
      batch_size: B.
      local_updates: between two exchanges, `steps(k)` or `epochs(e)`.
      rewire_every: rounds after which the next graph comes, or
        `graphs.COMMUNICATION`; None keeps the first.
      local_patterns: leaves that are not sent, see `exchange.shared`.
      scheme: partial models of all agents, of which alone agents send what they share,
        such as `partial.level(0.5)`.
      channel: what happens to messages on their way.
      attack: what Byzantine agents send or learn from; None: all are honest.
      aggregate: a robust rule in place of the protocol's mean.
      score_before: also score the models before the last exchange of a round.
      agent_loop: see `agent_loop.map_agents`.
      train_fn: makes the function that trains all agents, as
        `local_training.local_training` does; some exchange gradients before a step.
      name: of the method, for messages.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> task = pj.classification(pj.nn.MLP((16, 10)), (64,))
      >>> protocol, ring = pj.protocols.dpsgd(), pj.graphs.ring(4)
      >>> pj.gossip(task, optax.sgd(0.1), protocol, ring, batch_size=32).round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    samplers.check_batch_size(batch_size)
    graphs = as_graph(graph)
    schedule.check_rewiring(graphs, rewire_every, per_communication=True)
    check_gossip(protocol, channel, attack, aggregate, name, score_before)
    if channel.loss_probability and protocol.loss_warning:
        warnings.warn(protocol.loss_warning, stacklevel=3)
    if protocol.needs_gradient and local_updates != steps(1):
        raise InputError(
            f"{name} reads the gradient of each step, so it needs one local step "
            f"between exchanges, got {local_updates}."
        )
    learner = as_learner(task, optimizer)
    if attack is not None and attack.poison is not None:
        learner = poisoned(learner, attack.poison)
    if protocol.rescale is not None:
        learner = rated(task, learner, name)
    needs_before = protocol.needs_before or (attack is not None and attack.needs_before)
    local = what_is_sent(task, local_patterns, scheme)
    per_exchange = isinstance(rewire_every, Rewiring)

    def exchange_of(variables: Variables) -> Exchange:
        return make_exchange(sharing_plan(variables, local), channel, attack, aggregate)

    def graph_of(graphs: PyTree, number: Array | int) -> PyTree:
        if not per_exchange:
            return graphs
        return jax.tree.map(
            lambda leaf: jnp.asarray(leaf)[number % leaf.shape[0]], graphs
        )

    def prepared_graphs(
        rng: np.random.Generator, size: int, num_exchanges: np.ndarray
    ) -> tuple[PyTree, Topology | Peers]:
        """Of every round, `[R, ...]`, or `[R, W, ...]` used in turn; and as drawn."""
        drawn, in_turn = schedule.graphs_of_run(
            rng, graphs, rewire_every, size, num_exchanges
        )
        prepared = protocol.prepare_graph(drawn)
        used = in_turn if per_exchange else in_turn[:, 0]
        return jax.tree.map(lambda leaf: np.asarray(leaf)[used], prepared), drawn

    def first_graph(size: int) -> PyTree:
        """One graph, for its shapes: all others are as wide."""
        with jax.ensure_compile_time_eval():  # also inside of jit
            first, _ = prepared_graphs(
                np.random.default_rng(0), size, np.ones(1, np.int32)
            )
        return graph_of(jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], first), 0)

    def init_fn(key: Key, data: FederatedData) -> GossipState:
        variables = identical_models(key, task, num_agents(data))
        opt_state = jax.vmap(learner.init)(variables)
        message = shared.shared_leaves(variables)
        attackers = no_attackers(attack, num_agents(data))
        memory = begin(exchange_of(variables), key, message, attackers)
        state = GossipState(variables, opt_state, protocol.init(message), memory=memory)
        if not score_before:
            return state
        pending = Pending(
            jax.random.fold_in(key, 0),
            jnp.int32(0),
            first_graph(num_agents(data)),
            jax.tree.map(jnp.copy, message) if needs_before else (),
            jnp.zeros((), bool),
        )
        return state._replace(pending=pending)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> GossipInputs:
        sizes = np.asarray(data.train.size)
        num_exchanges = exchanges_of_rounds(
            sizes, batch_size, local_updates, num_rounds
        )
        first = np.cumsum(num_exchanges, dtype=np.int32) - num_exchanges
        prepared, drawn = prepared_graphs(rng, len(sizes), num_exchanges)
        attackers = plan_attack(attack, aggregate, drawn, len(sizes), num_rounds)
        if score_before:
            schedule.check_width(
                protocol.senders(prepared).shape[-1],
                protocol.senders(first_graph(len(sizes))).shape[-1],
            )
        return GossipInputs(first, num_exchanges, prepared, attackers)

    def round_fn(
        key: Key,
        t: Array,
        inputs: GossipInputs,
        state: GossipState,
        data: FederatedData,
    ) -> tuple[GossipState, Info]:
        train = _make_train(
            learner, protocol, local_updates, batch_size, agent_loop, train_fn, data
        )
        plan = sharing_plan(state.variables, local)
        exchange = make_exchange(plan, channel, attack, aggregate)
        context = StepContext()
        state = state._replace(memory=none_rejected(state.memory))
        if inputs.attackers is not None:
            assert isinstance(state.memory, Memory)
            state = state._replace(
                memory=state.memory._replace(attackers=inputs.attackers)
            )
            if attack is not None and attack.poison is not None:
                context = StepContext(is_byzantine=inputs.attackers.is_byzantine)

        judge_of = None
        if aggregate is not None and aggregate.needs_losses:
            judge_of = judges(
                task, exchange, local_updates, batch_size, data, agent_loop
            )

        def one_exchange(number: Array, carry: PyTree) -> PyTree:
            state, totals = carry
            key_train, key_send = jax.random.split(jax.random.fold_in(key, number))
            graph = graph_of(inputs.graph, number)
            if score_before:
                state = finished(exchange, protocol, state, needs_before)
            before, judge = shared.shared_leaves(state.variables), None
            old = state.opt_state
            variables, opt_state, loss, *more = train(
                key_train,
                inputs.first_exchange + number,
                state.variables,
                without_total(old),
                data.train,
                *([context] if context.is_byzantine is not None else []),
            )
            if judge_of is not None:
                done = inputs.first_exchange + number + 1  # exchanges, with this one
                judge = judge_of(key_train, done, variables)
            step = LocalStep(before, shared.shared_leaves(variables), *more)
            state = state._replace(variables=variables, opt_state=opt_state)
            state = at_new_rate(protocol, state, old)
            if score_before:
                outgoing = protocol.send(key_send, graph, step, state.protocol_state)
                arrived = arrivals_of(
                    exchange, protocol, key_send, t, None, graph, outgoing, state
                )
                before = before if needs_before else ()
                pending = Pending(key_send, t, graph, before, jnp.ones((), bool))
                state = state._replace(pending=pending)
            else:
                state, outgoing, arrived = communicate(
                    exchange,
                    protocol,
                    key_send,
                    t,
                    inputs.first_exchange + number,
                    graph,
                    step,
                    state,
                    judge,
                )
            used = outgoing.sent.astype(jnp.float32)
            if per_exchange:  # the senders change, so they are counted at once
                used = jnp.zeros_like(loss).at[protocol.senders(graph)].add(used)
            arrived = arrived.astype(jnp.float32)
            return state, jax.tree.map(jnp.add, totals, (loss, used, arrived))

        senders = protocol.senders(graph_of(inputs.graph, 0))
        none = jnp.zeros(senders.shape, jnp.float32)
        zero = none[:, 0]
        state, (loss, sent, arrived) = jax.lax.fori_loop(
            0,
            inputs.num_exchanges,
            one_exchange,
            (state, (zero, zero if per_exchange else none, none)),
        )
        if not per_exchange:
            sent = jnp.zeros_like(loss).at[senders].add(sent)
        num_steps = steps_of(local_updates, data.train.size, batch_size)
        first = jnp.asarray(inputs.first_exchange) * num_steps
        last = first + jnp.asarray(inputs.num_exchanges) * num_steps
        info = Info(
            loss / jnp.maximum(inputs.num_exchanges, 1).astype(jnp.float32),
            sent,
            arrived.sum(1),
            sent * (protocol.num_models * message_size(plan)),
            links=None if per_exchange else Links(senders, arrived),
            weight=protocol.weight(state.protocol_state),
            examples=samplers.examples_between(
                first, last, data.train.size, batch_size
            ),
            steps=(last - first).astype(jnp.float32),
            bytes=bytes_sent(protocol, plan, state.variables, sent, channel.format),
            rejected=rejected_of(state.memory),
        )
        return state, info

    def models_fn(state: GossipState) -> Models:
        byzantine = byzantine_agents(attack, state.memory)
        if not score_before:
            return Models(
                state.variables, averaged=state.variables, is_byzantine=byzantine
            )
        exchange = exchange_of(state.variables)
        averaged = finished(exchange, protocol, state, needs_before).variables
        return Models(averaged, state.variables, averaged, byzantine)

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is=(
            f"{local_updates.described} of each agent and one exchange"
            if local_updates.num_epochs
            else "a network epoch: until all agents together have seen as many "
            "examples as there are, with an exchange after "
            f"{local_updates.described} of each"
        ),
        agent_loop=agent_loop,
        attack=attack,
    )


def _make_train(
    learner: Learner,
    protocol: GossipProtocol,
    updates: LocalUpdates,
    batch_size: int,
    agent_loop: int,
    train_fn: Callable[..., TrainFn] | None,
    data: FederatedData,
) -> TrainFn:
    """Training of all agents between two exchanges."""
    sampler = samplers.shuffled_epochs(batch_size, samplers.max_size(data))
    num_steps = updates.num_steps
    if updates.num_epochs:
        take = own_steps(learner, batch_size, agent_loop)

        def train_epochs(key: Key, number: Array, *agents: PyTree) -> tuple:
            taken = steps_of(updates, data.train.size, batch_size)
            return take(key, number * taken, taken, *agents)

        return train_epochs
    if train_fn is not None:
        train = train_fn(learner, sampler, num_steps, agent_loop)
    elif protocol.needs_gradient:
        train = with_gradient(learner, sampler, agent_loop)
    else:
        train = local_training(learner, sampler, num_steps, agent_loop)
    if num_steps == 1:
        return train
    return lambda key, number, *agents: train(key, number * num_steps, *agents)
