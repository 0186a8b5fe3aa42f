"""Prediction of the next token of a text."""

import flax.linen as nn
import jax.numpy as jnp

from p2pjax.tasks.losses import softmax_cross_entropy
from p2pjax.tasks.task import Task
from p2pjax.types import Array, Batch, Key, PyTree, Ratio, Variables


def next_token(
    module: nn.Module, length: int, *, uncounted: int, momentum: float | None = 0.9
) -> Task:
    """Predict `batch["y"]` from the tokens `batch["x"]` before it.

    Args:
      module: flax module from tokens `[B, length]` to logits `[B, vocab]`, called with
        `train`, `valid` and `momentum` as `gru.NextWord` is.
      length: tokens of a window.
      uncounted: the token (out of vocabulary) that is learned but not counted in the
        accuracy when it is the target.
      momentum: what running statistics keep at first; it is part of the agent's
        variables (`stats["momentum"]`), so that a method can change it. None: the
        module has no running statistics.
    """

    def init_fn(key: Key) -> Variables:
        tokens = jnp.zeros((1, length), jnp.int32)
        collections = dict(module.init(key, tokens))
        params = collections.pop("params")
        if momentum is not None:
            collections["momentum"] = jnp.asarray(momentum, jnp.float32)
        return Variables(params, collections)

    def loss_fn(variables: Variables, batch: Batch, key: Key) -> tuple[Array, PyTree]:
        del key
        stats = dict(variables.stats)
        now = stats.pop("momentum", 1.0)
        logits, changed = module.apply(
            {"params": variables.params, **stats},
            batch["x"].astype(jnp.int32),
            train=True,
            momentum=now,
            valid=batch["valid"],
            mutable=["batch_stats"],
        )
        losses = softmax_cross_entropy(logits, batch["y"].astype(jnp.int32))
        valid = batch["valid"].astype(losses.dtype)
        mean = (losses * valid).sum() / jnp.maximum(valid.sum(), 1)
        return mean, {**variables.stats, **changed}

    def evaluate_fn(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        stats = {k: v for k, v in variables.stats.items() if k != "momentum"}
        tokens = batch["x"].astype(jnp.int32)
        logits = jnp.asarray(
            module.apply({"params": variables.params, **stats}, tokens)
        )
        target = batch["y"].astype(jnp.int32)
        valid = batch["valid"].astype(logits.dtype)
        counted = valid * (target != uncounted).astype(logits.dtype)
        right = (logits.argmax(-1) == target).astype(logits.dtype)
        losses = softmax_cross_entropy(logits, target)
        return {
            "accuracy": Ratio((right * counted).sum(), counted.sum()),
            "loss": Ratio((losses * valid).sum(), valid.sum()),
        }

    return Task(init_fn, loss_fn, evaluate_fn)
