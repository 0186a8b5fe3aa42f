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

from p2pjax.engines.assembly import assemble
from p2pjax.exchange import shared
from p2pjax.exchange.channel import PERFECT, Channel, check_channel
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.pipeline import Exchange, Members, make_exchange, send
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
from p2pjax.training.samplers import examples_between
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


class Pending(NamedTuple):
    """A mean still to be taken, where models are scored before and after it."""

    key: Key
    t: Array  # [] round
    weight: Array  # [N] what each client will count; all 0 before the first round
    model: PyTree  # leaves [1, ...]: what the server has had so far


class ServerState(NamedTuple):
    """The server's model, in every agent's row; what learners and server remember."""

    variables: Variables  # leaves [N, ...]; rows differ in leaves that stay local
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    server: PyTree  # leaves [1, ...]; () without a server optimizer
    pending: Pending | tuple[()] = ()


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
      channel: what happens to messages on their way.
      score_before: also score the clients' models before they are averaged.
      agent_loop: see `agent_loop.map_agents`.
      name: of the method, for messages.
    """
    check_clients(num_clients)
    check_channel(channel, name)
    learner = as_learner(task, optimizer)
    local = shared.local_paths(task, local_patterns)
    train = own_steps(learner, batch_size, agent_loop)

    def init_fn(key: Key, data: FederatedData) -> ServerState:
        variables = identical_models(key, task, num_agents(data))
        opt_state = jax.vmap(learner.init)(variables)
        server: PyTree = ()
        if server_opt is not None:
            model = first_row(variables.params)
            server = jax.vmap(partial(initial_opt_state, server_opt))(model)
        if not score_before:
            return ServerState(variables, opt_state, server)
        model = jax.tree.map(jnp.copy, first_row(shared.shared_leaves(variables)))
        pending = Pending(
            jax.random.fold_in(key, 0),
            jnp.int32(0),
            jnp.zeros(num_agents(data), jnp.float32),
            model,
        )
        return ServerState(variables, opt_state, server, pending)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> np.ndarray:
        return chosen_clients(rng, data, num_clients, num_rounds)

    def averaged(
        key: Key,
        t: Array,
        variables: Variables,
        old: PyTree,
        weight: Array,
        server: PyTree,
    ) -> tuple[Variables, PyTree]:
        """What the clients have after the server has taken the mean, and the server."""
        plan = sharing_plan(variables, local)
        exchange = make_exchange(plan, channel)
        message = shared.shared_leaves(variables)
        sent = send(exchange, key, t, message)
        mean = exchange.combine(sent, message, lambda owner: Members(weight), None)
        new_server = server
        if server_opt is not None:
            mean, new_server = _server_step(server_opt, server, plan, old, mean)
        if score_before or channel.loss_probability:  # there may be nothing to average
            has_any = weight.sum() > 0
            kept = where_shared(plan, _broadcast(old, message), message)
            mean = _where(has_any, mean, kept)
            new_server = _where(has_any, new_server, server)
        return shared.with_shared_leaves(variables, mean), new_server

    def round_fn(
        key: Key, t: Array, is_chosen: Array, state: ServerState, data: FederatedData
    ) -> tuple[ServerState, Info]:
        before, server = state.variables, state.server
        if isinstance(state.pending, Pending):
            sent_with, sent_at, weight, old = state.pending
            before, server = averaged(sent_with, sent_at, before, old, weight, server)
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
            StepContext()
            if penalty is None
            else StepContext(penalty=penalty(before.params)),
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
        if score_before:
            model = first_row(shared.shared_leaves(before))
            pending = Pending(key, t, weight, model)
            return ServerState(trained, opt_state, server, pending), info
        variables, server = averaged(
            key, t, trained, shared.shared_leaves(before), weight, server
        )
        return ServerState(variables, opt_state, server), info

    def models_fn(state: ServerState) -> Models:
        if not isinstance(state.pending, Pending):
            return Models(state.variables, averaged=state.variables)
        key, t, weight, old = state.pending
        mean, _ = averaged(key, t, state.variables, old, weight, state.server)
        return Models(mean, trained=state.variables, averaged=mean)

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is=f"{local_updates.described} of each chosen client, then the server's "
        "mean",
        agent_loop=agent_loop,
    )


def check_clients(num_clients: int | None) -> None:
    """Refuses rounds in which no client takes part."""
    if num_clients is not None and num_clients < 1:
        raise InputError(
            f"Need one client or more in a round, got num_clients={num_clients}."
        )


def chosen_clients(
    rng: np.random.Generator,
    data: FederatedData,
    num_clients: int | None,
    num_rounds: int,
) -> np.ndarray:
    """Who is chosen in every round, `[R, N]`: uniformly and without replacement.

    Args:
      rng: draws the clients.
      data: of all agents.
      num_clients: of a round; None for all.
      num_rounds: R.
    """
    size = num_agents(data)
    num_clients = size if num_clients is None else num_clients
    if num_clients > size:
        raise InputError(
            f"Need at most {size} clients (the number of agents), got "
            f"num_clients={num_clients}."
        )
    is_chosen = np.arange(size) < num_clients
    return rng.permuted(np.tile(is_chosen, (num_rounds, 1)), axis=1)


def server_info(
    loss: Array,
    is_chosen: Array,
    up: int,
    down: int,
    examples: Array,
    is_reached: Array | None = None,
) -> Info:
    """What a round reports in which clients and a server sent so many parameters.

    The training loss of agents that did not train is the mean of the others.

    Args:
      loss: of training, `[N]`.
      is_chosen: `[N]` to whom the server sent its model.
      up: parameters that a client sends.
      down: parameters that the server sends to a client.
      examples: `[N]` that were trained on.
      is_reached: `[N]` to whom it arrived, who then trained and answered; None: all.
    """
    chosen = is_chosen.astype(jnp.float32)
    is_reached = is_chosen if is_reached is None else is_reached
    reached = is_reached.astype(jnp.float32)
    mean_loss = (loss * reached).sum() / jnp.maximum(reached.sum(), 1)
    return Info(
        jnp.where(is_reached, loss, mean_loss),
        reached,
        reached,
        reached * up,
        delivered=chosen * down,
        examples=examples,
        served=chosen,
    )


def first_row(tree: PyTree) -> PyTree:
    """The first agent's, leaves `[1, ...]`."""
    return jax.tree.map(lambda leaf: leaf[:1], tree)


def participants(
    exchange: Exchange, key: Key, t: Array, is_chosen: Array
) -> tuple[Array, Array]:
    """Whom the server's message reaches, and whose answer reaches the server, `[N]`.

    Args:
      exchange: of the round.
      key: of the round.
      t: its number.
      is_chosen: `[N]` to whom the server sends.
    """
    keys = [jax.random.fold_in(key, way) for way in (1, 2)]
    reached = exchange.arrive(keys[0], t, is_chosen[:, None])[:, 0]
    answers = exchange.arrive(keys[1], t, reached[:, None])[:, 0]
    return reached, answers


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
