"""Variational learning: descent on the free energy per example.

Blundell et al. (2015), "Weight uncertainty in neural networks" (Bayes by backprop): the
expected loss of weights drawn from the posterior, and the divergence of the posterior
from the prior divided by the number of examples.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from p2pjax.nn.gaussian import Gaussian
from p2pjax.tasks.task import Task
from p2pjax.training.learner import (
    Learner,
    StepContext,
    gradient_descent,
    initial_opt_state,
)
from p2pjax.types import Array, Batch, InputError, Key, PyTree, Variables


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


def with_deviation_rate(
    optimizer: optax.GradientTransformation, factor: float
) -> optax.GradientTransformation:
    """The same optimizer, whose steps are so many times as long for deviations.

    Deviations stand as logarithms or nearly so, and means as they are: Adam at 1e-3
    needs a thousand steps to change a deviation by a factor of e.

    Args:
      optimizer: of trees of `Gaussian` in free coordinates.
      factor: of all steps of `stddev`; 1 leaves the optimizer as it is.

    Example:
      >>> import jax
      >>> from p2pjax.nn.gaussian import Gaussian
      >>> faster = with_deviation_rate(optax.sgd(1.0), 10.0)
      >>> q = Gaussian(jnp.ones(()), jnp.ones(()))
      >>> updates, _ = faster.update(q, faster.init(q), q)
      >>> jax.tree.map(float, updates)
      Gaussian(mean=-1.0, stddev=-10.0)
    """
    if not 0 < factor < float("inf"):
        raise InputError(f"Need a positive factor of deviations, got {factor}.")
    if factor == 1:
        return optimizer

    def scaled(leaf: PyTree) -> PyTree:
        if not _is_gaussian(leaf):
            return leaf
        longer = jax.tree.map(lambda step: step * factor, leaf.stddev)
        return leaf._replace(stddev=longer)

    def update_fn(
        updates: PyTree, state: PyTree, params: PyTree = None
    ) -> tuple[PyTree, PyTree]:
        updates, state = optimizer.update(updates, state, params)
        return jax.tree.map(scaled, updates, is_leaf=_is_gaussian), state

    return optax.GradientTransformation(optimizer.init, update_fn)


def _is_gaussian(leaf: PyTree) -> bool:
    return isinstance(leaf, Gaussian)
