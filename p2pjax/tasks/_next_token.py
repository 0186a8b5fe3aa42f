"""Prediction of the next token of a text."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.nn.wirings import wiring_of
from p2pjax.tasks._examples import as_tokens, inputs_of, label_check
from p2pjax.tasks._network_check import check_network
from p2pjax.tasks.losses import is_right, softmax_cross_entropy
from p2pjax.tasks.network import as_network, num_outputs
from p2pjax.tasks.task import Task, checked_init
from p2pjax.types import Array, Batch, FederatedData, Key, PyTree, Ratio, Variables


def next_token(
    network: Any,
    data: FederatedData | int,
    *,
    ignore_token: int | None = None,
    momentum: float | None = 0.9,
) -> Task:
    """Predict `batch["y"]` from the tokens `batch["x"]` before it.

    Args:
      network: from tokens `[B, length]` to logits `[B, vocab]`; see `classification`.
      data: the agents' data, or the tokens of a window.
      ignore_token: the token (out of vocabulary) that is learned but not counted in the
        accuracy when it is the target; None counts all.
      momentum: what running statistics keep at first, for networks that are called with
        `momentum`, as `gru.NextWord` is; it is part of the agent's variables
        (`stats["momentum"]`), so that a method can change it. None: it is not, and the
        network's default holds.

    Example:
    >>> import jax
    >>> from p2pjax.nn.gru import NextWord
    >>> from p2pjax.tasks import next_token
    >>> task = next_token(NextWord(20, 4, 4, 4, batch_norm=True), 6, ignore_token=1)
    >>> sorted(task.norm)
    ['dense_norm', 'gru_norm']
    """
    inputs = inputs_of((data,) if isinstance(data, int | np.integer) else data)
    x_shape = jax.ShapeDtypeStruct((1, *inputs.shape), np.dtype(np.int32))
    made = as_network(network, x_shape)
    outputs = num_outputs(made, x_shape)
    check_labels = label_check(outputs)
    if isinstance(data, FederatedData):
        check_labels(data)

    def init_fn(key: Key) -> Variables:
        variables = made.init(key)
        stats = dict(variables.stats)
        if stats.pop("momentum", None) is not None and momentum is not None:
            stats["momentum"] = jnp.asarray(momentum, jnp.float32)
        return Variables(variables.params, stats)

    def evaluated(variables: Variables, batch: Batch) -> Array:
        return jnp.asarray(made.apply(variables, as_tokens(batch["x"]), None, False)[0])

    def loss_fn(variables: Variables, batch: Batch, key: Key) -> tuple[Array, PyTree]:
        logits, stats = made.apply(
            variables, as_tokens(batch["x"]), key, True, batch["valid"]
        )
        losses = softmax_cross_entropy(logits, as_tokens(batch["y"]))
        valid = batch["valid"].astype(losses.dtype)
        mean = (losses * valid).sum() / jnp.maximum(valid.sum(), 1)
        return mean, stats

    def evaluate_fn(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        logits = evaluated(variables, batch)
        target = as_tokens(batch["y"])
        valid = batch["valid"].astype(logits.dtype)
        counted = valid
        if ignore_token is not None:
            counted = valid * (target != ignore_token).astype(logits.dtype)
        right = is_right(logits, target).astype(logits.dtype)
        losses = softmax_cross_entropy(logits, target)
        return {
            "accuracy": Ratio((right * counted).sum(), counted.sum()),
            "loss": Ratio((losses * valid).sum(), valid.sum()),
        }

    def predict_fn(variables: Variables, batch: Batch) -> Array:
        return jax.nn.softmax(evaluated(variables, batch))

    check = cache(partial(check_network, made, x_shape, inputs.highest))
    return Task(
        checked_init(init_fn, check),
        loss_fn,
        evaluate_fn,
        made.norm,
        check,
        predict_fn,
        wiring_of(network),
        check_labels,
        made,
        x_shape,
    )
