"""Models of their own, each held to the mean of all.

Evgeniou, Pontil (2004), "Regularized multi-task learning": one of the relations between
tasks of Smith et al. (2017), "Federated multi-task learning" (MOCHA),
https://arxiv.org/abs/1705.10467. Here clients minimise by their own optimizer, not by
the dual method of MOCHA.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.assembly import assemble
from p2pjax.engines.clients import server_info
from p2pjax.exchange import shared
from p2pjax.exchange.pipeline import Members, make_exchange
from p2pjax.exchange.shared import message_size, sharing_plan
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import (
    Learner,
    StepContext,
    as_learner,
    check_penalty_weight,
    proximal,
)
from p2pjax.training.local_training import identical_models, own_steps
from p2pjax.training.local_updates import LocalUpdates, epochs, steps_of
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

State = tuple[Variables, PyTree]  # models and optimizer states, leaves [N, ...]


def mean_regularized(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    penalty_weight: float,
    local_updates: LocalUpdates = epochs(1),
    agent_loop: int = AUTO,
) -> Algorithm:
    """Own models, with `penalty_weight / 2` times the squared distance to their mean.

    A round: clients send their models, receive the mean, and train their own towards
    their data and that mean. Without a penalty weight it is local training.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent keeps its own state of it.
      batch_size: B.
      penalty_weight: 0 or more.
      local_updates: in a round.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> options = {"batch_size": 32, "penalty_weight": 0.1}
      >>> mean_regularized(task, optax.sgd(0.1), **options).round_is
      'the mean of all models, then 1 local epoch of each agent near it'
    """
    check_penalty_weight(penalty_weight)
    learner = as_learner(task, optimizer)
    train = own_steps(learner, batch_size, agent_loop)

    def init_fn(key: Key, data: FederatedData) -> State:
        variables = identical_models(key, task, num_agents(data))
        return variables, jax.vmap(learner.init)(variables)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> tuple[()]:
        del rng, data, num_rounds
        return ()

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: State, data: FederatedData
    ) -> tuple[State, Info]:
        del inputs
        variables, opt_state = state
        only_params = variables._replace(stats={})
        plan = sharing_plan(only_params, shared.FULL)
        own = shared.shared_leaves(only_params)
        mean = make_exchange(plan).combine(own, own, lambda owner: Members(), None)
        num_steps = steps_of(local_updates, data.train.size, batch_size)
        first = t * num_steps
        penalty = proximal(penalty_weight, mean["params"])
        variables, opt_state, loss = train(
            key,
            first,
            num_steps,
            variables,
            opt_state,
            data.train,
            StepContext(penalty=penalty),
        )
        size = message_size(plan)
        is_there = jnp.ones(num_agents(data), bool)
        last = first + num_steps
        examples = examples_between(first, last, data.train.size, batch_size)
        info = server_info(loss, is_there, size, size, examples)
        return (variables, opt_state), info._replace(
            steps=num_steps.astype(jnp.float32)
        )

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        lambda state: Models(state[0]),
        round_is=f"the mean of all models, then {local_updates.described} of each "
        "agent near it",
        agent_loop=agent_loop,
    )
