"""Training of all agents between two averagings, each with the cells that it has."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from p2pjax.partial.sharing import SharingPlan, held_parameters
from p2pjax.training.learner import Learner, StepContext
from p2pjax.training.local_training import local_training, own_steps
from p2pjax.training.samplers import Sampler
from p2pjax.types import Array, Batch, Key, PyTree, Split, Variables


def partial_training(
    learner: Learner,
    sampler: Sampler,
    num_steps: Callable[[Array], Array] | None,
    agent_loop: int,
    sharing: SharingPlan,
) -> Callable[..., tuple[Variables, PyTree, Array]]:
    """Training of all agents in a round; `partial_rounds` says how long.

    Parameters of cells that an agent does not have stay as they are, 0: of a network
    that masks these cells itself their gradients are 0 anyway.

    Args:
      learner: how agents learn.
      sampler: which examples a mini-batch has.
      num_steps: examples of each agent `[N]` -> its mini-batches; None for one.
      agent_loop: see `agent_loop.map_agents`.
      sharing: who has which cells.
    """
    if sharing.masks_updates:
        learner = _keeping_absent(learner)
    one_step = local_training(learner, sampler, 1, agent_loop)
    many_steps = own_steps(learner, sampler, agent_loop)

    def train(
        key: Key,
        t: Array,
        variables: Variables,
        opt_state: PyTree,
        data: Split,
        context: StepContext,
    ) -> tuple[Variables, PyTree, Array]:
        if sharing.masks_updates:
            present = held_parameters(sharing, variables.params)
            context = context._replace(present=present)
        if num_steps is None:
            return one_step(key, t, variables, opt_state, data, context)
        steps = num_steps(data.size)
        return many_steps(key, t * steps, steps, variables, opt_state, data, context)

    return train


def _keeping_absent(learner: Learner) -> Learner:
    """Also of learners that do not ask which parameters are there."""

    def step_fn(
        key: Key,
        variables: Variables,
        opt_state: PyTree,
        batch: Batch,
        context: StepContext,
    ) -> tuple[Variables, PyTree, Array]:
        new, opt_state, loss = learner.step(key, variables, opt_state, batch, context)
        params = jax.tree.map(jnp.where, context.present, new.params, variables.params)
        return new._replace(params=params), opt_state, loss

    return learner._replace(step=step_fn)
