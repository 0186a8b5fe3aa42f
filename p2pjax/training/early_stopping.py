"""Local training as one act: until an agent's own held-out loss stops falling.

All agents are in one program, each with its own stop: a loop over epochs per agent
inside the loop over agents. Optimizers start anew every time.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.tasks.task import Task
from p2pjax.training import samplers
from p2pjax.training.agent_loop import AUTO, map_agents
from p2pjax.training.learner import Learner, StepContext
from p2pjax.training.local_training import own_steps, take_steps
from p2pjax.training.local_updates import epochs
from p2pjax.training.samplers import steps_per_epoch, whole_set
from p2pjax.types import (
    Array,
    FederatedData,
    InputError,
    Key,
    PyTree,
    Ratio,
    Variables,
    num_agents,
)


class LocalTraining(NamedTuple):
    """What every agent does between two communications."""

    # (key, round number, who trains [N], variables, world)
    #   -> (variables, mean loss of the last pass [N], passes [N])
    train: Callable[
        [Key, Array, Array, Variables, FederatedData], tuple[Variables, Array, Array]
    ]
    holds_out: bool  # whether it needs validation examples
    batch_size: int
    described: str  # in words


class LocalStopping(NamedTuple):
    """When an agent has learned what it can.

    Example:
      >>> LocalStopping(patience=5)
      LocalStopping(patience=5, min_gain=0.0001, max_epochs=500, first_accuracy=0.9)
    """

    patience: int = 20  # passes without a gain after which it stops
    min_gain: float = 1e-4  # of the held-out loss
    max_epochs: int = 500
    # In the first round an agent goes on until its training accuracy is above this.
    first_accuracy: float = 0.9


class _Progress(NamedTuple):
    """Of one agent; `best` is what it will return."""

    variables: Variables
    opt_state: PyTree
    best: Variables
    best_loss: Array  # held out
    accepted: Array  # whether the best is accurate enough for a first round
    stale: Array  # passes since the best
    epoch: Array
    loss: Array  # of the last pass


def until_converged(
    task: Task,
    learner: Learner,
    stop: LocalStopping = LocalStopping(),
    *,
    batch_size: int,
    agent_loop: int = AUTO,
) -> LocalTraining:
    """Every agent passes over its data until it stops gaining, and keeps its best pass.

    Args:
      task: what every agent learns; its `evaluate` names a loss and an accuracy.
      learner: how.
      stop: when.
      batch_size: B.
      agent_loop: see `agent_loop.map_agents`. With VMAP all wait for the slowest.
    """
    if stop.patience < 1 or stop.max_epochs < 1:
        raise InputError(
            "Need a patience and a maximum of one pass or more, got "
            f"patience={stop.patience} and max_epochs={stop.max_epochs}."
        )

    def train(
        key: Key, t: Array, active: Array, variables: Variables, data: FederatedData
    ) -> tuple[Variables, Array, Array]:
        train, valid = data.train, data.valid
        largest = next(iter(train.examples.values())).shape[1]
        sampler = samplers.shuffled_epochs(batch_size, largest)

        def one_agent(start: Variables, inputs: PyTree) -> tuple[Variables, PyTree]:
            key, active, (examples, size, order_seed), (held, held_size, _) = inputs
            num_steps = samplers.steps_per_epoch(size, batch_size)

            def is_accurate(variables: Variables) -> Array:
                return jax.lax.cond(
                    t == 0,
                    lambda: (
                        _measured(task, variables, examples, size, "accuracy")
                        > stop.first_accuracy
                    ),
                    lambda: jnp.ones((), bool),
                )

            def goes_on(now: _Progress) -> Array:
                is_waiting = (now.stale < stop.patience) | ~now.accepted
                return active & (now.epoch < stop.max_epochs) & is_waiting

            def one_epoch(now: _Progress) -> _Progress:
                (variables, opt_state), loss = take_steps(
                    learner,
                    sampler,
                    jax.random.fold_in(key, now.epoch),
                    examples,
                    size,
                    StepContext(order_seed=order_seed),
                    (now.variables, now.opt_state),
                    (t * stop.max_epochs + now.epoch) * num_steps,
                    num_steps,
                )
                held_loss = _measured(task, variables, held, held_size, "loss")
                held_loss = jnp.where(jnp.isnan(held_loss), jnp.inf, held_loss)
                accurate = is_accurate(variables)
                gains = held_loss < now.best_loss - stop.min_gain
                is_better = jnp.where(
                    now.accepted == accurate, gains | (now.epoch == 0), accurate
                )
                return _Progress(
                    variables,
                    opt_state,
                    best=_where(is_better, variables, now.best),
                    best_loss=jnp.where(is_better, held_loss, now.best_loss),
                    accepted=now.accepted | accurate,
                    stale=jnp.where(is_better, 0, now.stale + 1),
                    epoch=now.epoch + 1,
                    loss=loss,
                )

            zero = jnp.zeros((), jnp.int32)
            done = jax.lax.while_loop(
                goes_on,
                one_epoch,
                _Progress(
                    start,
                    learner.init(start),
                    best=start,
                    best_loss=jnp.full((), jnp.inf, jnp.float32),
                    accepted=jnp.zeros((), bool),
                    stale=zero,
                    epoch=zero,
                    loss=jnp.zeros((), jnp.float32),
                ),
            )
            return done.best, (done.loss, done.epoch)

        keys = jax.random.split(key, num_agents(data))
        inputs = (keys, active, train, valid)
        variables, (loss, passes) = map_agents(one_agent, agent_loop)(variables, inputs)
        return variables, loss, passes

    return LocalTraining(
        train, True, batch_size, "training until the held-out loss stops falling"
    )


def for_epochs(
    learner: Learner,
    num_epochs: int,
    *,
    batch_size: int,
    agent_loop: int = AUTO,
) -> LocalTraining:
    """Each agent passes over its data so many times.

    Args:
      learner: how.
      num_epochs: passes in a round.
      batch_size: B.
      agent_loop: see `agent_loop.map_agents`.
    """
    if num_epochs < 1:
        raise InputError(f"Need one epoch or more, got num_epochs={num_epochs}.")
    take = own_steps(learner, batch_size, agent_loop)

    def train(
        key: Key, t: Array, active: Array, variables: Variables, data: FederatedData
    ) -> tuple[Variables, Array, Array]:
        passes = active.astype(jnp.int32) * num_epochs
        opt_state = jax.vmap(learner.init)(variables)
        num_steps = steps_per_epoch(jnp.asarray(data.train.size), batch_size)
        variables, _, loss = take(
            key,
            t * num_epochs * num_steps,
            passes * num_steps,
            variables,
            opt_state,
            data.train,
        )
        return variables, loss, passes

    return LocalTraining(train, False, batch_size, epochs(num_epochs).described)


def held_out_loss(
    task: Task, variables: Variables, data: FederatedData, agent_loop: int
) -> Array:
    """Mean loss over all held-out examples, each agent judging its own model, `[]`.

    That is two numbers which every agent tells the others, not its examples.

    Args:
      task: what the agents learn.
      variables: their models, leaves `[N, ...]`.
      data: with validation examples.
      agent_loop: see `agent_loop.map_agents`.
    """

    def one_agent(_: PyTree, inputs: PyTree) -> tuple[PyTree, Ratio]:
        variables, (examples, size, _) = inputs
        return (), task.evaluate(variables, whole_set(examples, size))["loss"]

    sums = map_agents(one_agent, agent_loop)((), (variables, data.valid))[1]
    return sums.total.sum() / sums.weight.sum()


def _measured(
    task: Task, variables: Variables, examples: PyTree, size: Array, name: str
) -> Array:
    total, weight = task.evaluate(variables, whole_set(examples, size))[name]
    return total / weight


def _where(condition: Array, one: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
