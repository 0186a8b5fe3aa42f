"""Each agent learns alone: the baseline that collaboration has to beat."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.assembly import assemble
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner, as_learner
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


class LocalOnlyState(NamedTuple):
    """All agents' models and what their learners remember."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]


def local_only(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    local_updates: LocalUpdates = epochs(1),
    agent_loop: int = AUTO,
) -> Algorithm:
    """Local training without any communication.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      batch_size: B.
      local_updates: in a round, `epochs(e)` or `steps(k)`.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.local_only(task, optax.sgd(0.1), batch_size=32)
      >>> method.round_is
      '1 local epoch of each agent'
    """
    learner = as_learner(task, optimizer)
    train = own_steps(learner, batch_size, agent_loop)

    def init_fn(key: Key, data: FederatedData) -> LocalOnlyState:
        variables = identical_models(key, task, num_agents(data))
        return LocalOnlyState(variables, jax.vmap(learner.init)(variables))

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> tuple[()]:
        del rng, data, num_rounds
        return ()

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: LocalOnlyState, data: FederatedData
    ) -> tuple[LocalOnlyState, Info]:
        del inputs
        num_steps = steps_of(local_updates, data.train.size, batch_size)
        first = t * num_steps
        variables, opt_state, loss = train(key, first, num_steps, *state, data.train)
        none = jnp.zeros(num_agents(data), jnp.float32)
        examples = examples_between(
            first, first + num_steps, data.train.size, batch_size
        )
        info = Info(
            loss,
            none,
            none,
            none,
            examples=examples,
            steps=num_steps.astype(jnp.float32),
        )
        return LocalOnlyState(variables, opt_state), info

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        lambda state: Models(state.variables),
        round_is=f"{local_updates.described} of each agent",
        agent_loop=agent_loop,
    )
