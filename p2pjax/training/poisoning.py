"""Byzantine agents that train as others do, on batches that were tampered with."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from p2pjax.training.learner import Learner, StepContext
from p2pjax.types import Array, Batch, Key, PyTree, Variables

POISON = 7  # folded into the key of a step


def poisoned_batch(
    poison: Callable[[Key, Batch], Batch],
    key: Key,
    batch: Batch,
    is_byzantine: Array | None,
) -> Batch:
    """What ONE agent learns from.

    Args:
      poison: (key, batch) of ONE Byzantine agent -> what it learns from.
      key: of what is done with the batch.
      batch: as honest agents have it.
      is_byzantine: whether the agent is one; None: no agent is.
    """
    if is_byzantine is None:
        return batch
    key = jax.random.fold_in(key, POISON)
    return jax.tree.map(
        lambda bad, good: jnp.where(is_byzantine, bad, good),
        dict(poison(key, batch)),
        dict(batch),
    )


def poisoned(learner: Learner, poison: Callable[[Key, Batch], Batch]) -> Learner:
    """A learner whose Byzantine agents learn from poisoned batches.

    `StepContext.is_byzantine` says who they are.

    Args:
      learner: of all agents.
      poison: (key, batch) of ONE agent -> what it learns from.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> from p2pjax.training.learner import as_learner
      >>> task = pj.classification(pj.nn.MLP((4, 2)), (3,))
      >>> flip = pj.attacks.label_flip((0,), num_classes=2).poison
      >>> poisoned(as_learner(task, optax.sgd(0.1)), flip).gradient is None
      False
    """

    def given(key: Key, batch: Batch, context: StepContext) -> Batch:
        return poisoned_batch(poison, key, batch, context.is_byzantine)

    def step_fn(
        key: Key,
        variables: Variables,
        opt_state: PyTree,
        batch: Batch,
        context: StepContext,
    ) -> tuple[Variables, PyTree, Array]:
        batch = given(key, batch, context)
        return learner.step(key, variables, opt_state, batch, context)

    def gradient_fn(
        key: Key, variables: Variables, batch: Batch, context: StepContext
    ) -> tuple[Array, PyTree, PyTree]:
        assert learner.gradient is not None
        batch = given(key, batch, context)
        return learner.gradient(key, variables, batch, context)

    has_gradient = learner.gradient is not None
    return learner._replace(
        step=step_fn, gradient=gradient_fn if has_gradient else None
    )
