"""Ditto: everybody has a model of its own, drawn towards that of a server.

Li et al. (2021), "Ditto: fair and robust federated learning through personalization".
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.engines.server import ServerState, server_rounds
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner, StepContext, check_penalty_weight, proximal
from p2pjax.training.local_training import local_epochs
from p2pjax.types import Algorithm, Array, FederatedData, Info, Key, PyTree, Variables


class DittoState(NamedTuple):
    """FedAvg's state, and the models that agents use themselves."""

    shared: ServerState
    variables: Variables  # leaves [N, ...]; never leave their agent
    opt_state: PyTree  # leaves [N, ...]


def ditto(
    task: Task,
    learner: Learner,
    *,
    strength: float,
    batch_size: int,
    num_clients: int | None,
    num_epochs: int = 1,
    agent_loop: int = AUTO,
    **options: Any,
) -> Algorithm:
    """FedAvg; beside it the chosen clients train their own models for as many passes.

    An own model's loss has `strength / 2` times the squared distance to the server's
    model at the start of the round. Own models are the ones that are evaluated.

    Args:
      task: what every agent learns.
      learner: how, both times.
      strength: lambda, 0 or more; 0 is local training.
      batch_size: B.
      num_clients: agents chosen in a round; None for all.
      num_epochs: passes of a chosen client over its data, with each model.
      agent_loop: see `agent_loop.map_agents`.
      **options: others of `fedavg`.
    """
    check_penalty_weight(strength)
    server = server_rounds(
        task,
        learner,
        batch_size=batch_size,
        num_clients=num_clients,
        num_epochs=num_epochs,
        agent_loop=agent_loop,
        **options,
    )
    train = local_epochs(learner, batch_size, agent_loop)

    def init_fn(key: Key, data: FederatedData) -> DittoState:
        shared = server.init(key, data)
        return DittoState(shared, shared.variables, shared.opt_state)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        return server.plan(rng, data, num_rounds)

    def round_fn(
        key: Key, t: Array, is_chosen: Array, state: DittoState, data: FederatedData
    ) -> tuple[DittoState, Info]:
        key_shared, key_own = jax.random.split(key)
        penalty = proximal(strength, server.models(state.shared).params)
        variables, opt_state, _ = train(
            key_own,
            t * num_epochs,
            is_chosen.astype(jnp.int32) * num_epochs,
            state.variables,
            state.opt_state,
            data.train,
            StepContext(penalty=penalty),
        )
        shared, info = server.round(key_shared, t, is_chosen, state.shared, data)
        return DittoState(shared, variables, opt_state), info

    return Algorithm(init_fn, plan_fn, round_fn, lambda state: state.variables)
