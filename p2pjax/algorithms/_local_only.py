"""Everybody learns alone: the reference that collaboration has to beat.

Also home of `local_epochs`, the training of methods that take whole local epochs.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner
from p2pjax.training.local_training import identical_models, local_epochs
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    Key,
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
    learner: Learner,
    *,
    batch_size: int,
    num_epochs: int = 1,
    agent_loop: int = AUTO,
) -> Algorithm:
    """A round is a pass of every agent over its own data, or more; nobody sends.

    Args:
      task: what every agent learns.
      learner: how.
      batch_size: B.
      num_epochs: passes in a round.
      agent_loop: see `agent_loop.map_agents`.
    """
    train = local_epochs(learner, batch_size, agent_loop)

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
        epochs = jnp.full(num_agents(data), num_epochs, jnp.int32)
        variables, opt_state, loss = train(
            key,
            t * num_epochs,
            epochs,
            state.variables,
            state.opt_state,
            data.train,
        )
        none = jnp.zeros(num_agents(data), jnp.float32)
        examples = data.train.size.astype(jnp.float32)
        info = Info(loss, none, none, none, examples=examples)
        return LocalOnlyState(variables, opt_state), info

    return Algorithm(init_fn, plan_fn, round_fn, lambda state: state.variables)
