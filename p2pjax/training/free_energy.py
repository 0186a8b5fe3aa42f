"""Variational learning: descent on the free energy per example.

Blundell et al. (2015), "Weight uncertainty in neural networks" (Bayes by backprop): the
expected loss of weights drawn from the posterior, and the divergence of the posterior
from the prior divided by the number of examples.
"""

from collections.abc import Callable

import jax.numpy as jnp
import optax

from p2pjax.tasks.task import Task
from p2pjax.training.learner import (
    Learner,
    StepContext,
    gradient_descent,
    initial_opt_state,
)
from p2pjax.types import Array, Batch, Key, PyTree, Variables


def free_energy_descent(
    task: Task,
    optimizer: optax.GradientTransformation,
    divergence: Callable[[PyTree], Array],
) -> Learner:
    """One optimizer step on the loss and the divergence per example.

    Args:
      task: in free coordinates.
      optimizer: of those.
      divergence: free coordinates -> divergence of the posterior from the prior.
    """

    def step_fn(
        key: Key,
        variables: Variables,
        opt_state: PyTree,
        batch: Batch,
        context: StepContext,
    ) -> tuple[Variables, PyTree, Array]:
        num_examples = jnp.asarray(context.num_examples)

        def loss_fn(variables: Variables, batch: Batch, key: Key):
            loss, stats = task.loss(variables, batch, key)
            per_example = divergence(variables.params) / num_examples.astype(loss.dtype)
            return loss + per_example, stats

        learner = gradient_descent(task._replace(loss=loss_fn), optimizer)
        return learner.step(key, variables, opt_state, batch, context)

    def init_fn(variables: Variables) -> PyTree:
        return initial_opt_state(optimizer, variables.params)

    return Learner(init_fn, step_fn)
