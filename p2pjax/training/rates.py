"""Learning rates that methods can read, for those that remember in units of them.

A correction that was learned with a learning rate of 0.1 is ten times too large when
the rate drops to 0.01. The rate is read where `optax.inject_hyperparams` keeps it, in
the optimizer's state, also when it follows a schedule or is swept over.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from p2pjax.tasks.task import Task, shapes_of
from p2pjax.training.learner import Learner, StepContext
from p2pjax.types import Array, Batch, InputError, Key, PyTree, Variables


class Rated(NamedTuple):
    """What an optimizer remembers, and the rates of the steps since the last reset."""

    opt_state: PyTree
    total: Array  # []; 0 before the first step


def learning_rates(opt_state: PyTree) -> list[Array]:
    """Those that `optax.inject_hyperparams` keeps in a state.

    Args:
      opt_state: of an optimizer.

    Example:
      >>> sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
      >>> len(learning_rates(sgd.init({"x": jnp.zeros(2)})))
      1
    """
    nodes = jax.tree.leaves(opt_state, is_leaf=_is_injected)
    injected = [node for node in nodes if _is_injected(node)]
    own = [n.hyperparams["learning_rate"] for n in injected if _has_rate(n)]
    return own + [rate for n in injected for rate in learning_rates(n.inner_state)]


def rated(task: Task, learner: Learner, name: str) -> Learner:
    """A learner whose state is `Rated`, or the same where no rate can be read.

    A rate that cannot be read is taken for a constant. Schedules that optax hides are
    refused.

    Args:
      task: what agents learn.
      learner: whose rate it is.
      name: of the method, for messages.
    """
    state = jax.eval_shape(learner.init, shapes_of(task))
    scheduled = optax.ScaleByScheduleState
    nodes = jax.tree.leaves(state, is_leaf=lambda n: isinstance(n, scheduled))
    if any(isinstance(node, scheduled) for node in nodes):
        raise InputError(
            f"Need a learning rate that {name} can read, because what it remembers "
            "grows and falls with it, got a schedule inside of the optimizer: write "
            "optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)."
        )
    num_rates = len(learning_rates(state))
    if num_rates > 1:
        raise InputError(
            f"Need one learning rate for {name}, which remembers in units of it, got "
            f"{num_rates}: inject one."
        )
    return _counting_rates(learner) if num_rates else learner


def _counting_rates(learner: Learner) -> Learner:
    def counted(total: Array, opt_state: PyTree) -> Rated:
        (rate,) = learning_rates(opt_state)
        return Rated(opt_state, total + rate.astype(total.dtype))

    def init_fn(variables: Variables) -> Rated:
        return Rated(learner.init(variables), jnp.zeros(()))

    def step_fn(
        key: Key, variables: Variables, state: Rated, batch: Batch, context: StepContext
    ) -> tuple[Variables, Rated, Array]:
        variables, opt_state, loss = learner.step(
            key, variables, state.opt_state, batch, context
        )
        return variables, counted(state.total, opt_state), loss

    def update_fn(
        variables: Variables, gradient: PyTree, state: Rated, context: StepContext
    ) -> tuple[PyTree, Rated]:
        assert learner.update is not None
        updates, opt_state = learner.update(
            variables, gradient, state.opt_state, context
        )
        return updates, counted(state.total, opt_state)

    has_update = learner.update is not None
    return learner._replace(
        init=init_fn, step=step_fn, update=update_fn if has_update else None
    )


def without_total(opt_state: PyTree) -> PyTree:
    """The state of all agents with which the next steps are counted, if they are.

    Args:
      opt_state: leaves `[N, ...]`.

    Example:
      >>> without_total(Rated((), jnp.array([0.1, 0.2]))).total.tolist()
      [0.0, 0.0]
    """
    if not isinstance(opt_state, Rated):
        return opt_state
    return opt_state._replace(total=jnp.zeros_like(opt_state.total))


def rate_change(before: Rated, after: Rated) -> Array:
    """Rates of these steps over those of the steps before, `[N]`.

    1 before the first steps, and after steps with rates of 0 (as in a warm-up).

    Args:
      before: state of all agents, with rates of the steps before.
      after: with rates of these steps.

    Example:
      >>> rates = [Rated((), jnp.array(total)) for total in ([0.5, 0.0], [0.25, 0.1])]
      >>> rate_change(*rates).tolist()
      [0.5, 1.0]
    """
    is_known = before.total > 0
    return jnp.where(is_known, after.total / jnp.where(is_known, before.total, 1), 1)


def check_plain(task: Task, learner: Learner, name: str) -> None:
    """Refuses learners that remember their steps, as SGD with momentum and Adam do.

    Args:
      task: what agents learn.
      learner: of one agent.
      name: of the method, for the message.

    Example:
      >>> import p2pjax as pj
      >>> task = pj.classification(pj.nn.MLP((4, 2)), (3,))
      >>> check_plain(task, pj.gradient_descent(task, optax.sgd(0.1)), "It")  # no error
    """
    state = jax.eval_shape(learner.init, shapes_of(task))
    if any(leaf.ndim for leaf in jax.tree.leaves(state)):
        raise InputError(
            f"Need an optimizer without momentum for {name}, which has its own, got "
            "one that remembers its steps: use optax.sgd(learning_rate)."
        )


def _is_injected(node: PyTree) -> bool:
    return hasattr(node, "hyperparams") and hasattr(node, "inner_state")


def _has_rate(node: PyTree) -> bool:
    return "learning_rate" in node.hyperparams
