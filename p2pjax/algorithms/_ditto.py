"""Ditto: each agent has a model of its own, drawn towards that of a server.

Li et al. (2021), "Ditto: fair and robust federated learning through personalization",
https://arxiv.org/abs/2012.04221.
"""

from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.adversity import byzantine_agents
from p2pjax.engines.assembly import assemble
from p2pjax.engines.options import ServerOptions
from p2pjax.engines.server import ServerState, server_rounds
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import (
    Learner,
    StepContext,
    as_learner,
    check_penalty_weight,
    proximal,
)
from p2pjax.training.local_training import own_steps
from p2pjax.training.local_updates import epochs, steps_of
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    Key,
    Models,
    PyTree,
    Variables,
)


class DittoState(NamedTuple):
    """FedAvg's state, and the models that agents use themselves."""

    shared: ServerState
    variables: Variables  # leaves [N, ...]; never leave their agent
    opt_state: PyTree  # leaves [N, ...]


def ditto(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    penalty_weight: float,
    **options: Unpack[ServerOptions],
) -> Algorithm:
    """FedAvg; beside it the chosen clients train models of their own as long.

    Li et al. (2021), https://arxiv.org/abs/2012.04221. An own model's loss has
    `penalty_weight / 2` times the squared distance to the server's model at the start
    of the round. Own models are the ones that are evaluated; they are never averaged.

    Args:
      task: what each agent learns.
      optimizer: of optax, for both models.
      batch_size: B.
      penalty_weight: lambda, 0 or more; 0 is local training.
      **options: see `ServerOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.ditto(task, optax.sgd(0.1), batch_size=32, penalty_weight=0.1)
      >>> method.round_is
      "1 local epoch of each chosen client with the server's model, ..."
    """
    check_penalty_weight(penalty_weight)
    agent_loop = options.get("agent_loop", AUTO)
    attack = options.get("attack")
    updates = options.get("local_updates", epochs(1))
    learner = as_learner(task, optimizer)
    server = server_rounds(
        task, learner, batch_size=batch_size, name="Ditto", **options
    )
    train = own_steps(learner, batch_size, agent_loop)

    def init_fn(key: Key, data: FederatedData) -> DittoState:
        shared = server.init(key, data)
        own = jax.tree.map(jnp.copy, (shared.variables, shared.opt_state))
        return DittoState(shared, *own)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        return server.plan(rng, data, num_rounds)

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: DittoState, data: FederatedData
    ) -> tuple[DittoState, Info]:
        key_shared, key_own = jax.random.split(key)
        anchor = server.models(state.shared).reported.params
        num_steps = steps_of(updates, data.train.size, batch_size)
        shared, info = server.round(key_shared, t, inputs, state.shared, data)
        trains = info.received > 0  # those whom the server's message has reached
        variables, opt_state, _ = train(
            key_own,
            t * num_steps,
            trains.astype(jnp.int32) * num_steps,
            state.variables,
            state.opt_state,
            data.train,
            StepContext(penalty=proximal(penalty_weight, anchor)),
        )
        assert info.steps is not None and info.examples is not None
        # Both models go through the same examples.
        info = info._replace(steps=2 * info.steps, examples=2 * info.examples)
        return DittoState(shared, variables, opt_state), info

    def models_fn(state: DittoState) -> Models:
        byzantine = byzantine_agents(attack, state.shared.memory)
        return Models(state.variables, is_byzantine=byzantine)

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is=f"{updates.described} of each chosen client with the server's model, "
        "its mean, and as much training of the clients' own models",
        agent_loop=agent_loop,
        attack=attack,
    )
