"""Learners that do more with a gradient than step along it.

Momentum that can begin anew, gradients at the worst point nearby, and gradients that
are corrected and added up. Each is made of a learner that descends along a gradient.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from p2pjax.tasks.task import Task, shapes_of
from p2pjax.training.learner import Learner, StepContext
from p2pjax.types import Array, Batch, InputError, Key, PyTree, Variables


class Momentum(NamedTuple):
    """What an optimizer remembers, and the last displacement."""

    opt_state: PyTree
    displacement: PyTree  # of the parameters


class Corrected(NamedTuple):
    """What an optimizer remembers, the correction, and the corrected gradients."""

    opt_state: PyTree
    correction: PyTree  # added to each gradient
    total: PyTree  # of corrected gradients since the last reset
    num_steps: Array  # [], since then


def with_momentum(learner: Learner, momentum: float) -> Learner:
    """Heavy ball: `d <- momentum * d + update`, `y <- y + d`; the state is `Momentum`.

    Args:
      learner: whose updates they are, of an optimizer without momentum.
      momentum: 0 or more, less than 1.
    """
    gradient_fn, update_fn = _halves(learner, "momentum")

    def init_fn(variables: Variables) -> Momentum:
        return Momentum(learner.init(variables), _zeros(variables.params))

    def update(
        variables: Variables, gradient: PyTree, state: Momentum, context: StepContext
    ) -> tuple[PyTree, Momentum]:
        updates, opt_state = update_fn(variables, gradient, state.opt_state, context)
        moved = jax.tree.map(lambda d, u: momentum * d + u, state.displacement, updates)
        return moved, Momentum(opt_state, moved)

    return _descending(init_fn, gradient_fn, update)


def sharpness_aware(learner: Learner, rho: float) -> Learner:
    """Steps along the gradient at `y + rho * g / |g|`, on the same batch (SAM).

    Foret et al. (2021), https://arxiv.org/abs/2010.01412. The norm is over all
    parameters of the agent. Batch-norm statistics and the loss that is told are those
    of the first pass.

    Args:
      learner: whose gradients and updates they are.
      rho: how far away, 0 or more.
    """
    gradient_fn, update_fn = _halves(learner, "sharpness-aware steps")

    def gradient(
        key: Key, variables: Variables, batch: Batch, context: StepContext
    ) -> tuple[Array, PyTree, PyTree]:
        loss, stats, first = gradient_fn(key, variables, batch, context)
        norm = _norm(first)
        scale = jnp.where(norm > 0, rho / jnp.where(norm > 0, norm, 1), 0)
        away = jax.tree.map(
            lambda y, g: y + scale.astype(g.dtype) * g, variables.params, first
        )
        _, _, second = gradient_fn(key, variables._replace(params=away), batch, context)
        return loss, stats, second

    return _descending(learner.init, gradient, update_fn)


def with_correction(learner: Learner) -> Learner:
    """Adds `Corrected.correction` to each gradient, and adds these gradients up.

    Args:
      learner: whose gradients and updates they are.
    """
    gradient_fn, update_fn = _halves(learner, "corrections of gradients")

    def init_fn(variables: Variables) -> Corrected:
        return Corrected(
            learner.init(variables),
            _zeros(variables.params),
            _zeros(variables.params),
            jnp.zeros((), jnp.int32),
        )

    def update(
        variables: Variables, gradient: PyTree, state: Corrected, context: StepContext
    ) -> tuple[PyTree, Corrected]:
        corrected = jax.tree.map(jnp.add, gradient, state.correction)
        updates, opt_state = update_fn(variables, corrected, state.opt_state, context)
        total = jax.tree.map(jnp.add, state.total, corrected)
        return updates, Corrected(
            opt_state, state.correction, total, state.num_steps + 1
        )

    return _descending(init_fn, gradient_fn, update)


def mean_gradient(state: Corrected) -> PyTree:
    """Of the corrected gradients of all agents, leaves `[N, ...]`; 0 without steps.

    Args:
      state: leaves `[N, ...]`.
    """

    def mean(total: Array) -> Array:
        number = jnp.maximum(state.num_steps, 1).astype(total.dtype)
        return total / number.reshape((-1,) + (1,) * (total.ndim - 1))

    return jax.tree.map(mean, state.total)


def with_new_correction(state: Corrected, correction: PyTree) -> Corrected:
    """All agents begin to add up anew, with another correction.

    Args:
      state: leaves `[N, ...]`.
      correction: leaves `[N, ...]`.
    """
    return Corrected(
        state.opt_state,
        correction,
        _zeros(state.total),
        jnp.zeros_like(state.num_steps),
    )


def check_remembers_nothing(task: Task, learner: Learner, name: str) -> None:
    """Refuses optimizers with a memory of their own, such as momentum or Adam's.

    Args:
      task: what agents learn.
      learner: of one agent.
      name: of the method, for the message.
    """
    state = jax.eval_shape(learner.init, shapes_of(task))
    if any(leaf.ndim for leaf in jax.tree.leaves(state)):
        raise InputError(
            f"Need an optimizer without momentum for {name}, which has its own, got "
            "one that remembers: use optax.sgd(0.1) and give momentum to the method."
        )


def _halves(learner: Learner, what: str) -> tuple:
    if learner.gradient is None or learner.update is None:
        raise InputError(
            "Need a learner that descends along a gradient, as optimizers of optax do, "
            f"for {what}, got one that does not tell its gradient."
        )
    return learner.gradient, learner.update


def _descending(init_fn, gradient_fn, update_fn) -> Learner:
    def step_fn(
        key: Key,
        variables: Variables,
        opt_state: PyTree,
        batch: Batch,
        context: StepContext,
    ) -> tuple[Variables, PyTree, Array]:
        loss, stats, gradient = gradient_fn(key, variables, batch, context)
        updates, opt_state = update_fn(variables, gradient, opt_state, context)
        params = optax.apply_updates(variables.params, updates)
        return Variables(params, stats), opt_state, loss

    return Learner(init_fn, step_fn, gradient_fn, update_fn)


def _zeros(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.zeros_like, tree)


def _norm(tree: PyTree) -> Array:
    """Euclidean, over all leaves."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(tree)))
