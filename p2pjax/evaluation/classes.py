"""Accuracy by class: a model that always says the commonest label is found out."""

import jax.numpy as jnp

from p2pjax.types import Array, Evaluate, FederatedData, Models

BY_CLASS = "class_accuracy"


def with_balance(evaluate: Evaluate) -> Evaluate:
    """Also `balanced_accuracy` and `worst_class_accuracy`, `[N]` each.

    They are the mean and the least of the accuracies of the classes that an agent's
    test set has.

    Args:
      evaluate: of a task that tells `class_accuracy`, `[N, k]`.

    Returns:
      A function of `Models` and `FederatedData`, for `evaluate` of `simulate`.

    Example:
      >>> def scores(models, data):
      ...     return {"class_accuracy": jnp.array([[1.0, 0.5], [0.25, jnp.nan]])}
      >>> found = with_balance(scores)(None, None)
      >>> found["balanced_accuracy"].tolist(), found["worst_class_accuracy"].tolist()
      ([0.75, 0.25], [0.5, 0.25])
    """

    def evaluate_fn(models: Models, data: FederatedData) -> dict[str, Array]:
        values = evaluate(models, data)
        return {**values, **balance(values[BY_CLASS])}

    return evaluate_fn


def balance(of_classes: Array) -> dict[str, Array]:
    """Mean and least of the accuracies of the classes that each agent has, `[N]` each.

    Args:
      of_classes: `[N, k]`, not a number for classes that an agent has not.

    Example:
      >>> found = balance(jnp.array([[1.0, 0.5], [0.25, jnp.nan]]))
      >>> {name: values.tolist() for name, values in found.items()}
      {'balanced_accuracy': [0.75, 0.25], 'worst_class_accuracy': [0.5, 0.25]}
    """
    return {
        "balanced_accuracy": jnp.nanmean(of_classes, axis=1),
        "worst_class_accuracy": jnp.nanmin(of_classes, axis=1),
    }
