"""How ONE agent learns from a batch.

Nothing here assumes gradients: `gradient_descent` is one learner among others.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from p2pjax.tasks.task import Task
from p2pjax.types import Array, Batch, InputError, Key, PyTree, Variables


class Penalty(NamedTuple):
    """Adds `sum(curvature * w**2 / 2 - pull * w)` to the loss of parameters w.

    Up to a constant that is `sum(curvature * (w - anchor)**2) / 2` where the pull is
    curvature times anchor; sums of such penalties are one again. Both trees are those
    of the parameters, a leaf may be one number for all.
    """

    curvature: PyTree
    pull: PyTree


class StepContext(NamedTuple):
    """What else a step of one agent may depend on; None where unused."""

    rate: Array | None = None  # scales this agent's updates
    frozen: Mapping[str, Array] | None = None  # parts of the parameters that stay
    penalty: Penalty | None = None  # part of what is minimised, not of the loss told
    num_examples: Array | None = None  # that it learns from; the agent loop says so


class Learner(NamedTuple):
    """Local learning of ONE agent."""

    init: Callable[[Variables], PyTree]
    step: Callable[
        [Key, Variables, PyTree, Batch, StepContext], tuple[Variables, PyTree, Array]
    ]


def gradient_descent(task: Task, optimizer: optax.GradientTransformation) -> Learner:
    """One optimizer step on the mean loss of the batch.

    Parts of the parameters (their top-level names) in `StepContext.frozen` change
    neither their values nor what the optimizer remembers of them; what the loss itself
    keeps up to date, such as batch-norm statistics, goes on. Use it with optimizers
    made by `per_module_state`.
    """

    def init_fn(variables: Variables) -> PyTree:
        return optimizer.init(variables.params)

    def step_fn(
        key: Key,
        variables: Variables,
        opt_state: PyTree,
        batch: Batch,
        extra: StepContext,
    ) -> tuple[Variables, PyTree, Array]:
        def loss_of(params: PyTree) -> tuple[Array, PyTree]:
            return task.loss(variables._replace(params=params), batch, key)

        (loss, stats), gradient = jax.value_and_grad(loss_of, has_aux=True)(
            variables.params
        )
        if extra.penalty is not None:
            gradient = jax.tree.map(
                lambda g, w, curvature, pull: g + (curvature * w - pull),
                gradient,
                variables.params,
                *extra.penalty,
            )
        updates, new_state = optimizer.update(gradient, opt_state, variables.params)
        if extra.rate is not None:
            rate = extra.rate
            updates = jax.tree.map(lambda u: u * rate.astype(u.dtype), updates)
        params = optax.apply_updates(variables.params, updates)
        if extra.frozen is not None:
            params = _keep(extra.frozen, variables.params, params)
            new_state = _keep(extra.frozen, opt_state, new_state)
        return Variables(params, stats), new_state, loss

    return Learner(init_fn, step_fn)


def proximal(strength: float, anchor: PyTree) -> Penalty:
    """`strength / 2` times the squared distance of every agent's parameters to its own.

    Args:
      strength: 0 or more.
      anchor: parameters, leaves `[N, ...]`.
    """
    return Penalty(
        jax.tree.map(lambda w: jnp.full(w.shape[0], strength, w.dtype), anchor),
        jax.tree.map(lambda w: strength * w, anchor),
    )


def per_module_state(
    optimizer: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Keeps the state of every top-level part of the parameters on its own.

    So the steps of a part that is frozen for a while are not counted. Optimizers that
    look at all parameters together (clipping by the global norm) see one part each.
    """

    def init_fn(params: PyTree) -> PyTree:
        return {name: optimizer.init(part) for name, part in params.items()}

    def update_fn(
        updates: PyTree, state: PyTree, params: PyTree | None = None
    ) -> tuple[PyTree, PyTree]:
        done = {
            name: optimizer.update(
                part, state[name], None if params is None else params[name]
            )
            for name, part in updates.items()
        }
        return (
            {name: update for name, (update, _) in done.items()},
            {name: state for name, (_, state) in done.items()},
        )

    return optax.GradientTransformation(init_fn, update_fn)


def _keep(frozen: Mapping[str, Array], old: PyTree, new: PyTree) -> PyTree:
    """The old values of frozen parts."""

    def part_of(name: str) -> PyTree:
        if name not in frozen:
            return new[name]
        return jax.tree.map(
            lambda before, after: jnp.where(frozen[name], before, after),
            old[name],
            new[name],
        )

    return {name: part_of(name) for name in new}


def per_sample(learner: Learner) -> Learner:
    """Takes the examples of a batch one after the other, a step each.

    This is what a mini-batch means in Pilet, Frey and Taiani (2021).
    """

    def step_fn(
        key: Key,
        variables: Variables,
        opt_state: PyTree,
        batch: Batch,
        extra: StepContext,
    ) -> tuple[Variables, PyTree, Array]:
        def one(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
            key, example = inputs
            single = jax.tree.map(lambda leaf: leaf[None], example)
            variables, opt_state = carry
            variables, opt_state, loss = learner.step(
                key, variables, opt_state, single, extra
            )
            return (variables, opt_state), loss

        keys = jax.random.split(key, batch["valid"].shape[0])
        carry, losses = jax.lax.scan(one, (variables, opt_state), (keys, batch))
        return *carry, losses.mean()

    return Learner(learner.init, step_fn)


def check_penalty_weight(strength: float) -> None:
    """Refuses penalties that are none."""
    if not 0 <= strength < float("inf"):
        raise InputError(f"Need a strength of 0 or more, got {strength}.")
