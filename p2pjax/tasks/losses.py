"""Losses of every example of a batch, and what logits predict."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from p2pjax.types import Array

ExampleLoss = Callable[[Array, Array], Array]  # logits [B, k], labels [B] -> [B]


def squared_error(logits: Array, labels: Array) -> Array:
    """Half the squared distance of sigmoid outputs to the one-hot label."""
    target = _target(logits, labels)
    return jnp.square(jax.nn.sigmoid(logits) - target).sum(-1) / 2


def binary_cross_entropy(logits: Array, labels: Array) -> Array:
    """Cross-entropy of every sigmoid output against the one-hot label, summed."""
    target = _target(logits, labels)
    return optax.sigmoid_binary_cross_entropy(logits, target).sum(-1)


def _target(logits: Array, labels: Array) -> Array:
    """One-hot labels; a single output is the second of two classes."""
    if logits.shape[-1] == 1:
        return labels[:, None].astype(logits.dtype)
    return jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)


def predicted(logits: Array) -> Array:
    """The most active output; a single output decides between two classes."""
    if logits.shape[-1] == 1:
        return (logits[..., 0] > 0).astype(jnp.int32)
    return logits.argmax(-1)


def class_probabilities(logits: Array) -> Array:
    """Softmax over outputs, `[B, k]`; of a single output both classes, `[B, 2]`."""
    if logits.shape[-1] == 1:
        logits = jnp.concatenate([jnp.zeros_like(logits), logits], -1)
    return jax.nn.softmax(logits)


def softmax_cross_entropy(logits: Array, labels: Array) -> Array:
    """Cross-entropy of the softmax over outputs."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
