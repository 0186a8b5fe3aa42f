"""Everybody learns alone: the reference that collaboration has to beat.

Also home of `local_epochs`, the training of methods that take whole local epochs.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax import data
from p2pjax.algorithms.base import Algorithm
from p2pjax.algorithms.stepwise import identical_models
from p2pjax.data import AgentData, World, num_agents
from p2pjax.tasks import Task
from p2pjax.training import AUTO, Extra, Learner, map_agents, take_steps
from p2pjax.types import Array, Info, Key, PyTree, Variables


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
      agent_loop: see `training.map_agents`.
    """
    train = local_epochs(learner, batch_size, agent_loop)

    def init_fn(key: Key, world: World) -> LocalOnlyState:
        variables = identical_models(key, task, num_agents(world))
        return LocalOnlyState(variables, jax.vmap(learner.init)(variables))

    def plan_fn(rng: np.random.Generator, world: World, num_rounds: int) -> tuple[()]:
        del rng, world, num_rounds
        return ()

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: LocalOnlyState, world: World
    ) -> tuple[LocalOnlyState, Info]:
        del inputs
        epochs = jnp.full(num_agents(world), num_epochs, jnp.int32)
        variables, opt_state, loss = train(
            key,
            t * num_epochs,
            epochs,
            state.variables,
            state.opt_state,
            world.train,
        )
        none = jnp.zeros(num_agents(world), jnp.float32)
        examples = world.train.size.astype(jnp.float32)
        info = Info(loss, none, none, none, examples=examples)
        return LocalOnlyState(variables, opt_state), info

    return Algorithm(init_fn, plan_fn, round_fn, lambda state: state.variables)


def local_epochs(
    learner: Learner, batch_size: int, agent_loop: int
) -> Callable[..., tuple[Variables, PyTree, Array]]:
    """Training of all agents for whole passes over their own data.

    Returns:
      `train(key, first_epoch, num_epochs, variables, opt_state, data, extra)` with the
      passes done before, and those to do now `[N]`. It returns variables, optimizer
      states and mean losses `[N]`. Who has nothing to do costs nothing in a looping
      `agent_loop`. Leaves of `extra` are `[N, ...]`.
    """
    take = own_steps(learner, batch_size, agent_loop)

    def train(
        key: Key,
        first_epoch: Array,
        num_epochs: Array,
        variables: Variables,
        opt_state: PyTree,
        agents: AgentData,
        extra: Extra = Extra(),
    ) -> tuple[Variables, PyTree, Array]:
        steps = data.steps_per_epoch(jnp.asarray(agents.size), batch_size)
        return take(
            key,
            first_epoch * steps,
            num_epochs * steps,
            variables,
            opt_state,
            agents,
            extra,
        )

    return train


def own_steps(
    learner: Learner, batch_size: int, agent_loop: int
) -> Callable[..., tuple[Variables, PyTree, Array]]:
    """Training of all agents for numbers of steps of their own.

    Returns:
      `train(key, first_step, num_steps, variables, opt_state, data, extra)` with the
      steps done before and those to do now, `[N]` each, else as `local_epochs`. The
      steps go through passes over the agent's data, one after the other.
    """

    def train(
        key: Key,
        first_step: Array,
        num_steps: Array,
        variables: Variables,
        opt_state: PyTree,
        agents: AgentData,
        extra: Extra = Extra(),
    ) -> tuple[Variables, PyTree, Array]:
        largest = next(iter(agents.examples.values())).shape[1]
        sampler = data.shuffled_epochs(batch_size, largest)

        def one_agent(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
            key, examples, size, first_step, num_steps, extra = inputs
            return take_steps(
                learner,
                sampler,
                key,
                examples,
                size,
                extra,
                carry,
                first_step,
                num_steps,
            )

        keys = jax.random.split(key, agents.size.shape[0])
        own = (keys, agents.examples, agents.size, first_step, num_steps, extra)
        carry, losses = map_agents(one_agent, agent_loop)((variables, opt_state), own)
        return *carry, losses

    return train
