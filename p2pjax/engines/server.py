"""Methods with a server: some clients train its model, and it takes their mean.

McMahan et al. (2017), "Communication-efficient learning of deep networks from
decentralized data", https://arxiv.org/abs/1602.05629; server optimizers are those of
Reddi et al. (2021), "Adaptive federated optimization",
https://arxiv.org/abs/2003.00295. FedAvg, FedProx, FedPer and Ditto differ in what
clients minimise and in what they send.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.adverse_server import (
    check_server,
    check_size,
    robust_mean,
    takes_updates,
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
from p2pjax.engines.clients import (
    check_clients,
    chosen_clients,
    participants,
    server_info,
)
from p2pjax.exchange import shared
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel
from p2pjax.exchange.encoding import message_bits, num_bytes
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.pipeline import (
    Exchange,
    Members,
    Memory,
    begin,
    make_exchange,
    send,
)
from p2pjax.exchange.rejections import none_rejected, rejected_of
from p2pjax.exchange.robust import Rule
from p2pjax.exchange.shared import Local, message_size, sharing_plan, where_shared
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import (
    Learner,
    Penalty,
    StepContext,
    as_learner,
    initial_opt_state,
)
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
    Models,
    PyTree,
    Variables,
    num_agents,
)


class Pending(NamedTuple):
    """A mean still to be taken, where models are scored before and after it."""

    key: Key
    t: Array  # [] round
    weight: Array  # [N] what each client will count; all 0 before the first round
    model: PyTree  # leaves [1, ...]: what the server has had so far
    sends: Array  # [N] who sends, whether it arrives or not


class ServerState(NamedTuple):
    """The server's model, in every agent's row; what learners and server remember."""

    variables: Variables  # leaves [N, ...]; rows differ in leaves that stay local
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    server: PyTree  # leaves [1, ...]; () without a server optimizer
    pending: Pending | tuple[()] = ()
    memory: Memory | tuple[()] = ()  # of the exchange


def server_rounds(
    task: Task,
    optimizer: Learner | optax.GradientTransformation,
    *,
    batch_size: int,
    num_clients: int | None = None,
    local_updates: LocalUpdates = epochs(1),
    server_opt: optax.GradientTransformation | None = None,
    penalty: Callable[[PyTree], Penalty] | None = None,
    local_patterns: Local = shared.FULL,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    aggregate: Rule | None = None,
    score_before: bool = False,
    agent_loop: int = AUTO,
    name: str = "This method",
) -> Algorithm:
    """A round: some clients train the server's model, the server takes their mean.

    Clients count as much as they have examples. With `agent_loop` VMAP the agents that
    were not chosen take as long as the others. The training loss of those is the mean
    of the chosen. A client that the server's message does not reach does not train in
    that round, and one whose own message is lost does not count in it.

    Args:
      task: what each agent learns.
      optimizer: of optax, or a `Learner`.
      batch_size: B.
      num_clients: agents chosen in a round, uniformly and without replacement; None
        for all.
      local_updates: of a chosen client, `epochs(e)` or `steps(k)`.
      server_opt: takes the mean change of the clients' parameters, with a minus sign,
        as a gradient; None takes the mean of their models.
      penalty: of the clients' losses in a round, made of the parameters `[N, ...]` with
        which they start it; None for none.
      local_patterns: leaves that are not sent, see `exchange.shared`.
      channel: what happens to messages on their way. Where it clips, compresses or
        adds noise, clients send what they have learned, not their models.
      attack: what Byzantine clients send or learn from; None: all are honest.
      aggregate: a robust rule in place of the mean, of the clients that arrived; the
        server's model is the centre of rules that have one.
      score_before: also score the clients' models before they are averaged.
      agent_loop: see `agent_loop.map_agents`.
      name: of the method, for messages.
    """
    check_clients(num_clients)
    check_server(channel, attack, aggregate, name)
    learner = as_learner(task, optimizer)
    if attack is not None and attack.poison is not None:
        learner = poisoned(learner, attack.poison)
    local = shared.local_paths(task, local_patterns)
    train = own_steps(learner, batch_size, agent_loop)

    def exchange_of(variables: Variables) -> Exchange:
        return make_exchange(
            sharing_plan(variables, local),
            channel,
            attack,
            aggregate,
            updates=takes_updates(channel),
            eager=True,
        )

    def init_fn(key: Key, data: FederatedData) -> ServerState:
        variables = identical_models(key, task, num_agents(data))
        opt_state = jax.vmap(learner.init)(variables)
        server: PyTree = ()
        if server_opt is not None:
            model = first_row(variables.params)
            server = jax.vmap(partial(initial_opt_state, server_opt))(model)
        memory = begin(
            exchange_of(variables),
            key,
            shared.shared_leaves(variables),
            no_attackers(attack, num_agents(data)),
        )
        if not score_before:
            return ServerState(variables, opt_state, server, memory=memory)
        model = jax.tree.map(jnp.copy, first_row(shared.shared_leaves(variables)))
        pending = Pending(
            jax.random.fold_in(key, 0),
            jnp.int32(0),
            jnp.zeros(num_agents(data), jnp.float32),
            model,
            jnp.zeros(num_agents(data), bool),
        )
        return ServerState(variables, opt_state, server, pending, memory)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        size = num_agents(data)
        check_size(aggregate, size if num_clients is None else num_clients)
        is_chosen = chosen_clients(rng, data, num_clients, num_rounds)
        return attacked(attack, is_chosen, size, num_rounds)

    def averaged(
        key: Key,
        t: Array,
        variables: Variables,
        old: PyTree,
        weight: Array,
        sends: Array,
        server: PyTree,
        memory: Memory | tuple[()],
    ) -> tuple[Variables, PyTree, Memory | tuple[()]]:
        """What the clients have after the server has taken the mean, and the server."""
        plan = sharing_plan(variables, local)
        exchange = exchange_of(variables)
        message = shared.shared_leaves(variables)
        if exchange.manner is None:
            sent = send(exchange, key, t, message)
            mean = exchange.combine(sent, message, lambda owner: Members(weight), None)
            has_any = weight.sum() > 0
        else:
            mean, has_any, memory = robust_mean(
                exchange, key, t, message, first_row(old), weight, sends, memory
            )
        new_server = server
        if server_opt is not None:
            mean, new_server = _server_step(server_opt, server, plan, old, mean)
        if score_before or channel.loss_probability or exchange.manner is not None:
            # There may be nothing to average.
            kept = where_shared(plan, _broadcast(old, message), message)
            mean = _where(has_any, mean, kept)
            new_server = _where(has_any, new_server, server)
        return shared.with_shared_leaves(variables, mean), new_server, memory

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: ServerState, data: FederatedData
    ) -> tuple[ServerState, Info]:
        is_chosen, attackers = inputs_and_attackers(inputs)
        before, server = state.variables, state.server
        memory = none_rejected(state.memory)
        if isinstance(state.pending, Pending):
            sent_with, sent_at, weight, old, sends = state.pending
            before, server, memory = averaged(
                sent_with, sent_at, before, old, weight, sends, server, memory
            )
        memory = with_attackers(memory, attackers)
        plan = sharing_plan(before, local)
        trains, counts = participants(make_exchange(plan, channel), key, t, is_chosen)
        num_steps = steps_of(local_updates, data.train.size, batch_size)  # [N]
        first = t * num_steps
        trained, opt_state, loss = train(
            key,
            first,
            trains.astype(jnp.int32) * num_steps,
            before,
            state.opt_state,
            data.train,
            StepContext(
                penalty=None if penalty is None else penalty(before.params),
                is_byzantine=poisoned_agents(attack, attackers),
            ),
        )
        weight = jnp.where(counts, data.train.size, 0).astype(jnp.float32)
        size = message_size(plan)
        examples = examples_between(
            first, first + num_steps, data.train.size, batch_size
        )
        info = server_info(
            loss, is_chosen, size, size, jnp.where(trains, examples, 0), trains
        )
        info = info._replace(steps=jnp.where(trains, num_steps, 0).astype(jnp.float32))
        if channel.format is not None:
            message = shared.shared_leaves(before)
            bits = message_bits(channel.format, plan, message)
            info = info._replace(bytes=info.sent * num_bytes(bits))
        if score_before:
            model = first_row(shared.shared_leaves(before))
            pending = Pending(key, t, weight, model, trains)
            info = info._replace(rejected=rejected_of(memory))
            return ServerState(trained, opt_state, server, pending, memory), info
        old = shared.shared_leaves(before)
        variables, server, memory = averaged(
            key, t, trained, old, weight, trains, server, memory
        )
        info = info._replace(rejected=rejected_of(memory))
        return ServerState(variables, opt_state, server, memory=memory), info

    def models_fn(state: ServerState) -> Models:
        byzantine = byzantine_agents(attack, state.memory)
        if not isinstance(state.pending, Pending):
            return Models(
                state.variables, averaged=state.variables, is_byzantine=byzantine
            )
        key, t, weight, old, sends = state.pending
        mean, *_ = averaged(
            key, t, state.variables, old, weight, sends, state.server, state.memory
        )
        return Models(mean, state.variables, mean, byzantine)

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is=f"{local_updates.described} of each chosen client, then the server's "
        "mean",
        agent_loop=agent_loop,
        attack=attack,
    )


def first_row(tree: PyTree) -> PyTree:
    """The first agent's, leaves `[1, ...]`."""
    return jax.tree.map(lambda leaf: leaf[:1], tree)


def _server_step(
    server_opt: optax.GradientTransformation,
    server: PyTree,
    plan: MixPlan,
    before: PyTree,
    mean: PyTree,
) -> tuple[PyTree, PyTree]:
    """Moves the shared parameters of all rows by one step of the server's optimizer."""
    change = jax.tree.map(jnp.subtract, first_row(before), first_row(mean))
    gradient = where_shared(plan, change, jax.tree.map(jnp.zeros_like, change))
    with jax.numpy_dtype_promotion("standard"):
        updates, server = jax.vmap(server_opt.update)(
            gradient["params"], server, first_row(before["params"])
        )
    params = jax.tree.map(
        lambda old, update, new: jnp.broadcast_to(old + update, new.shape),
        first_row(before["params"]),
        updates,
        mean["params"],
    )
    return where_shared(plan, {**mean, "params": params}, mean), server


def _broadcast(rows: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda row, x: jnp.broadcast_to(row, x.shape), rows, like)


def _where(condition: Array, one: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
