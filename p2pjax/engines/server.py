"""FedAvg: a server averages the models of a few clients in every round.

McMahan et al. (2017), "Communication-efficient learning of deep networks from
decentralized data"; server optimizers are those of Reddi et al. (2021), "Adaptive
federated optimization".
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.exchange import mixing, shared
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.shared import message_size, sharing_plan, where_shared
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner, Penalty, StepContext
from p2pjax.training.local_training import identical_models, local_epochs
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


class ServerState(NamedTuple):
    """The server's model, in every agent's row; what learners and server remember."""

    variables: Variables  # leaves [N, ...]; rows differ in leaves that stay local
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    server: PyTree  # leaves [1, ...]; () without a server optimizer


def server_rounds(
    task: Task,
    learner: Learner,
    *,
    batch_size: int,
    num_clients: int | None,
    num_epochs: int = 1,
    server_opt: optax.GradientTransformation | None = None,
    penalty: Callable[[PyTree], Penalty] | None = None,
    local: Sequence[str] = shared.FULL,
    agent_loop: int = AUTO,
) -> Algorithm:
    """A round: some clients train the server's model, the server takes their mean.

    Clients count as much as they have examples. Each of them receives and sends one
    message per round. With `agent_loop` VMAP the agents that were not chosen take as
    long as the others. The training loss of those is the mean of the chosen.

    Args:
      task: what every agent learns.
      learner: how.
      batch_size: B.
      num_clients: agents chosen in a round, uniformly and without replacement; None
        for all.
      num_epochs: passes of a chosen client over its data.
      server_opt: takes the mean change of the clients' parameters, with a minus sign,
        as a gradient; None takes the mean of their models.
      penalty: of the clients' losses in a round, made of the parameters `[N, ...]` with
        which they start it; None for none.
      local: leaves that are not sent, see `exchange`.
      agent_loop: see `agent_loop.map_agents`.
    """
    check_clients(num_clients, num_epochs)
    train = local_epochs(learner, batch_size, agent_loop)

    def init_fn(key: Key, data: FederatedData) -> ServerState:
        variables = identical_models(key, task, num_agents(data))
        opt_state = jax.vmap(learner.init)(variables)
        if server_opt is None:
            return ServerState(variables, opt_state, ())
        server = jax.vmap(server_opt.init)(_first_row(variables.params))
        return ServerState(variables, opt_state, server)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> np.ndarray:
        return chosen_clients(rng, data, num_clients, num_rounds)

    def round_fn(
        key: Key, t: Array, is_chosen: Array, state: ServerState, data: FederatedData
    ) -> tuple[ServerState, Info]:
        before = state.variables
        trained, opt_state, loss = train(
            key,
            t * num_epochs,
            is_chosen.astype(jnp.int32) * num_epochs,
            before,
            state.opt_state,
            data.train,
            StepContext()
            if penalty is None
            else StepContext(penalty=penalty(before.params)),
        )
        plan = sharing_plan(trained, local)
        weight = jnp.where(is_chosen, data.train.size, 0).astype(jnp.float32)
        message = mixing.mix(
            shared.shared_leaves(trained),
            plan,
            lambda owner: mixing.by_group_mean(owner, weight),
        )
        server = state.server
        if server_opt is not None:
            old = shared.shared_leaves(before)
            message, server = _server_step(server_opt, server, plan, old, message)
        size = message_size(plan)
        info = server_info(loss, is_chosen, size, size, weight * num_epochs)
        variables = shared.with_shared_leaves(trained, message)
        return ServerState(variables, opt_state, server), info

    return Algorithm(init_fn, plan_fn, round_fn, lambda state: state.variables)


def check_clients(num_clients: int | None, num_epochs: int) -> None:
    """Refuses rounds in which nobody does anything."""
    if (num_clients is not None and num_clients < 1) or num_epochs < 1:
        raise InputError(
            "Need one client or more and one epoch or more in a round, got "
            f"num_clients={num_clients} and num_epochs={num_epochs}."
        )


def chosen_clients(
    rng: np.random.Generator,
    data: FederatedData,
    num_clients: int | None,
    num_rounds: int,
) -> np.ndarray:
    """Who is chosen in every round, `[R, N]`: uniformly and without replacement."""
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
    loss: Array, is_chosen: Array, up: int, down: int, examples: Array
) -> Info:
    """What a round reports in which clients and a server sent so many parameters.

    The training loss of agents that were not chosen is the mean of the chosen;
    `examples` `[N]` are those that were trained on.
    """
    chosen = is_chosen.astype(jnp.float32)
    mean_loss = (loss * chosen).sum() / chosen.sum()
    return Info(
        jnp.where(is_chosen, loss, mean_loss),
        chosen,
        chosen,
        chosen * up,
        delivered=chosen * down,
        examples=examples,
    )


def _server_step(
    server_opt: optax.GradientTransformation,
    server: PyTree,
    plan: MixPlan,
    before: PyTree,
    mean: PyTree,
) -> tuple[PyTree, PyTree]:
    """Moves the shared parameters of all rows by one step of the server's optimizer."""
    change = jax.tree.map(jnp.subtract, _first_row(before), _first_row(mean))
    gradient = where_shared(plan, change, jax.tree.map(jnp.zeros_like, change))
    updates, server = jax.vmap(server_opt.update)(
        gradient["params"], server, _first_row(before["params"])
    )
    params = jax.tree.map(
        lambda old, update: old + jnp.broadcast_to(update, old.shape),
        before["params"],
        updates,
    )
    return where_shared(plan, {**mean, "params": params}, mean), server


def _first_row(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[:1], tree)
