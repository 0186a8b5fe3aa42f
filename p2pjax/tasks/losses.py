"""Losses of every example of a batch, and what logits predict."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from p2pjax.types import Array, Ratio

ExampleLoss = Callable[[Array, Array], Array]  # logits [B, k], labels [B] -> [B]


def squared_error(logits: Array, labels: Array) -> Array:
    """Half the squared distance of sigmoid outputs to the one-hot label.

    Args:
      logits: `[B, k]`.
      labels: `[B]`, from 0.

    Returns:
      The loss of each example, `[B]`.

    Example:
      >>> squared_error(jnp.zeros((2, 3)), jnp.array([0, 2])).tolist()
      [0.375, 0.375]
    """
    target = _target(logits, labels)
    return jnp.square(jax.nn.sigmoid(logits) - target).sum(-1) / 2


def binary_cross_entropy(logits: Array, labels: Array) -> Array:
    """Cross-entropy of every sigmoid output against the one-hot label, summed.

    Args:
      logits: `[B, k]`.
      labels: `[B]`, from 0.

    Returns:
      The loss of each example, `[B]`.

    Example:
      >>> print(binary_cross_entropy(jnp.zeros((1, 2)), jnp.array([0])))  # 2 log 2
      [1.386...]
    """
    target = _target(logits, labels)
    return optax.sigmoid_binary_cross_entropy(logits, target).sum(-1)


def _target(logits: Array, labels: Array) -> Array:
    """One-hot labels; a single output is the second of two classes."""
    if logits.shape[-1] == 1:
        return labels[:, None].astype(logits.dtype)
    return jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)


def predicted(logits: Array) -> Array:
    """The most active output; a single output decides between two classes.

    Args:
      logits: `[B, k]`, or `[B, 1]`.

    Returns:
      Class of each example, `[B]`.

    Example:
      >>> predicted(jnp.array([[0.1, 0.7, 0.2]])).tolist()
      [1]
    """
    if logits.shape[-1] == 1:
        return (logits[..., 0] > 0).astype(jnp.int32)
    return logits.argmax(-1)


def is_right(logits: Array, labels: Array) -> Array:
    """Whether predictions are those of the labels; what is not finite is wrong.

    An output of minus infinity is a class that is ruled out, unless all are.

    Args:
      logits: `[..., k]`, or `[..., 1]`.
      labels: `[...]`.

    Returns:
      bool `[...]`.

    Example:
      >>> logits = jnp.array([[2.0, 1.0], [jnp.nan, jnp.nan]])
      >>> is_right(logits, jnp.array([0, 0])).tolist()
      [True, False]
    """
    return (predicted(logits) == labels) & is_known(logits)


def by_class(right: Array, labels: Array, valid: Array, num_classes: int) -> Ratio:
    """How many examples of each class are right, and how many there are, `[k]` each.

    Args:
      right: 1 for right predictions, `[B]`.
      labels: `[B]`.
      valid: 1 for examples that count, `[B]`.
      num_classes: k.

    Example:
      >>> right, labels = jnp.array([1.0, 0.0, 1.0]), jnp.array([0, 0, 1])
      >>> found = by_class(right, labels, jnp.ones(3), 2)
      >>> found.total.tolist(), found.weight.tolist()
      ([1.0, 1.0], [2.0, 1.0])
    """
    of_class = jax.nn.one_hot(labels, num_classes, dtype=valid.dtype)
    of_class = of_class * valid[:, None]  # [B, k]
    return Ratio(right @ of_class, of_class.sum(0))


def is_known(logits: Array) -> Array:
    """Whether outputs `[..., k]` say anything: bool `[...]`, see `is_right`.

    Args:
      logits: `[..., k]`.

    Example:
      >>> is_known(jnp.array([[0.0, -jnp.inf], [jnp.inf, 0.0]])).tolist()
      [True, False]
    """
    return jnp.isfinite(logits.max(-1))


def class_probabilities(logits: Array) -> Array:
    """Softmax over outputs, `[B, k]`; of a single output both classes, `[B, 2]`.

    Args:
      logits: `[B, k]`, or `[B, 1]`.

    Example:
      >>> class_probabilities(jnp.zeros((1, 4))).tolist()
      [[0.25, 0.25, 0.25, 0.25]]
    """
    if logits.shape[-1] == 1:
        logits = jnp.concatenate([jnp.zeros_like(logits), logits], -1)
    return jax.nn.softmax(logits)


def softmax_cross_entropy(logits: Array, labels: Array) -> Array:
    """Cross-entropy of the softmax over outputs.

    Args:
      logits: `[B, k]`.
      labels: `[B]`, from 0.

    Returns:
      The loss of each example, `[B]`.

    Example:
      >>> losses = softmax_cross_entropy(jnp.zeros((2, 10)), jnp.array([3, 7]))
      >>> losses.shape, f"{losses[0]:.3f}"  # log 10
      ((2,), '2.303')
    """
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
