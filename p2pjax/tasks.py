"""What one agent has to learn: pure functions of ONE agent.

A `Task` never sees the agents axis; `training` and `simulate` batch it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from p2pjax.types import Array, Batch, InputError, Key, PyTree, Ratio, Variables

# Images on which a convolutional network is evaluated at once on a CPU, so that they
# stay in the cache. Microseconds per image of 32 x 32 x 3 on one core, in blocks of 25,
# 50, 100 and 400: 6 and 16 channels (`cifar_cnn_code`) 62, 53, 69, 162, with gradients
# 222, 248, 272, 248; 32 and 64 channels, 512 cells 333, 371, 392, 705, with gradients
# 1237, 1131, 1133, 1456. (An MLP 784-300-100-10, which does not need it: 12.2, 11.4,
# 10.1, 8.0.)
BLOCK = 50

ExampleLoss = Callable[[Array, Array], Array]  # logits [B, k], labels [B] -> [B]


class Task(NamedTuple):
    """Functions of one agent."""

    init: Callable[[Key], Variables]
    loss: Callable[[Variables, Batch, Key], tuple[Array, PyTree]]  # training mode
    evaluate: Callable[[Variables, Batch], dict[str, Ratio]]  # sums over valid examples


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


def softmax_cross_entropy(logits: Array, labels: Array) -> Array:
    """Cross-entropy of the softmax over outputs."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def classification(
    module: nn.Module, input_shape: tuple[int, ...], loss: ExampleLoss
) -> Task:
    """Classify `batch["x"]` into `batch["y"]`; integer images are scaled to [0, 1].

    Args:
      module: flax module from inputs `[B, *input_shape]` to logits `[B, k]`.
      input_shape: shape of one example.
      loss: loss of every example of a batch.
    """

    def init_fn(key: Key) -> Variables:
        collections = dict(module.init(key, jnp.zeros((1, *input_shape), jnp.float32)))
        return Variables(collections.pop("params"), collections)

    def apply(variables: Variables, x: Array) -> Array:
        collections = {"params": variables.params, **variables.stats}
        return jnp.asarray(module.apply(collections, as_float(x)))

    def loss_fn(variables: Variables, batch: Batch, key: Key) -> tuple[Array, PyTree]:
        del key
        losses = loss(apply(variables, batch["x"]), batch["y"])
        valid = batch["valid"].astype(losses.dtype)
        mean = (losses * valid).sum() / jnp.maximum(valid.sum(), 1)
        return mean, variables.stats

    def evaluate_all(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        logits = apply(variables, batch["x"])
        valid = batch["valid"].astype(logits.dtype)
        right = (predicted(logits) == batch["y"]).astype(logits.dtype)
        losses = loss(logits, batch["y"])
        return {
            "accuracy": Ratio((right * valid).sum(), valid.sum()),
            "loss": Ratio((losses * valid).sum(), valid.sum()),
        }

    def evaluate_fn(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        num_examples = batch["valid"].shape[0]
        if num_examples <= BLOCK or not _convolves(variables.params):
            return evaluate_all(variables, batch)
        in_blocks = partial(_sum_of_blocks, evaluate_all)
        return jax.lax.platform_dependent(
            variables, batch, cpu=in_blocks, default=evaluate_all
        )

    return Task(init_fn, loss_fn, evaluate_fn)


def _convolves(params: PyTree) -> bool:
    return any(leaf.ndim == 4 for leaf in jax.tree.leaves(params))


def _sum_of_blocks(
    evaluate: Callable[[Variables, Batch], dict[str, Ratio]],
    variables: Variables,
    batch: Batch,
) -> dict[str, Ratio]:
    """The same, a few examples at a time; blocks of padding alone are passed over."""
    num_examples = batch["valid"].shape[0]
    num_blocks = -(-num_examples // BLOCK)
    width = -(-num_examples // num_blocks)

    def split(leaf: Array) -> Array:  # [M, ...] to [blocks, width, ...]
        more = [(0, num_blocks * width - num_examples)] + [(0, 0)] * (leaf.ndim - 1)
        return jnp.pad(leaf, more).reshape(num_blocks, width, *leaf.shape[1:])

    blocks = jax.tree.map(split, batch)
    shapes = jax.eval_shape(evaluate, variables, jax.tree.map(lambda b: b[0], blocks))
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def add(sums: PyTree, block: Batch) -> tuple[PyTree, None]:
        found = jax.lax.cond(
            block["valid"].any(), evaluate, lambda *_: nothing, variables, block
        )
        return jax.tree.map(jnp.add, sums, found), None

    return jax.lax.scan(add, nothing, blocks)[0]


def next_token(
    module: nn.Module, length: int, *, uncounted: int, momentum: float | None = 0.9
) -> Task:
    """Predict `batch["y"]` from the tokens `batch["x"]` before it.

    Args:
      module: flax module from tokens `[B, length]` to logits `[B, vocab]`, called with
        `train`, `valid` and `momentum` as `models.gru.NextWord` is.
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


def probabilities(
    module: nn.Module, prepare: Callable[[Array], Array] | None = None
) -> Callable[[Variables, Batch], Array]:
    """What a module's softmax makes of `batch["x"]`, `[B, k]`: for `Probe`.

    Args:
      module: as in `classification`, or `next_token`.
      prepare: of the inputs; `as_float` if None.
    """

    def predict_fn(variables: Variables, batch: Batch) -> Array:
        stats = {k: v for k, v in variables.stats.items() if k != "momentum"}
        x = (as_float if prepare is None else prepare)(batch["x"])
        logits = module.apply({"params": variables.params, **stats}, x)
        return jax.nn.softmax(jnp.asarray(logits))

    return predict_fn


def as_float(x: Array) -> Array:
    """Bytes are pixels and become [0, 1]; other numbers keep their value."""
    if x.dtype == jnp.uint8:
        return x.astype(jnp.float32) / 255
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


def check_labels(labels: Array, num_outputs: int) -> None:
    """Refuses labels the network has no output for (host side)."""
    num_classes = max(2, num_outputs)  # see `predicted`
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise InputError(
            f"Need labels from 0 to {num_classes - 1}, one per output of the network, "
            f"got {labels.min()} to {labels.max()}: give the network more outputs or "
            "choose the variant of the data that fits."
        )
