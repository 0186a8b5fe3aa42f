"""Classification of vectors or images."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from p2pjax.nn.wirings import wiring_of
from p2pjax.tasks._examples import fit_to_inputs, inputs_of, label_check
from p2pjax.tasks._network_check import check_network
from p2pjax.tasks.losses import (
    ExampleLoss,
    by_class,
    class_probabilities,
    is_right,
    softmax_cross_entropy,
)
from p2pjax.tasks.network import num_outputs
from p2pjax.tasks.task import Task, checked_init
from p2pjax.types import (
    Array,
    Batch,
    FederatedData,
    InputError,
    Key,
    PyTree,
    Ratio,
    Variables,
)

# Images on which a convolutional network is evaluated at once on a CPU, so that they
# stay in the cache. Microseconds per image of 32 x 32 x 3 on one core, in blocks of 25,
# 50, 100 and 400: 6 and 16 channels (`cifar_cnn_code`) 62, 53, 69, 162, with gradients
# 222, 248, 272, 248; 32 and 64 channels, 512 cells 333, 371, 392, 705, with gradients
# 1237, 1131, 1133, 1456. (An MLP 784-300-100-10, which does not need it: 12.2, 11.4,
# 10.1, 8.0.)
BLOCK = 50


def classification(
    network: Any,
    data: FederatedData | tuple[int, ...],
    loss: ExampleLoss = softmax_cross_entropy,
    *,
    per_class: bool = False,
) -> Task:
    """Classify `batch["x"]` into `batch["y"]`; bytes are pixels and become [0, 1].

    The network is trained in training mode, with dropout and batch statistics if it has
    them, and evaluated in evaluation mode. Whole numbers are given to it as floats,
    unless it takes only whole numbers, as those that begin with an embedding.

    Args:
      network: from inputs `[B, ...]` to logits `[B, k]`: a Linen module, a constructor
        of an NNX network (`lambda rngs: Net(rngs)`), or a `Network` of plain functions.
      data: the agents' data, or the shape of one example.
      loss: loss of every example of a batch.
      per_class: also evaluate `class_accuracy` `[k]`, not a number for a class without
        examples.

    Example:
    >>> import flax.linen as nn, jax
    >>> from p2pjax.tasks import classification
    >>> task = classification(nn.Sequential([nn.LayerNorm(), nn.Dense(3)]), (5,))
    >>> sorted(task.norm)
    ['layers_0']
    >>> jax.eval_shape(task.init, jax.random.key(0)).params["layers_1"]["bias"].shape
    (3,)
    """
    inputs = inputs_of(data)
    made, x_shape, prepare = fit_to_inputs(network, inputs)
    outputs = num_outputs(made, x_shape)
    num_classes = max(2, outputs)
    if outputs == 1 and loss is softmax_cross_entropy:
        raise InputError(
            "Need two outputs or more for softmax_cross_entropy, got 1: give the "
            "network more outputs, or use losses.binary_cross_entropy."
        )
    check_labels = label_check(outputs)
    if isinstance(data, FederatedData):
        check_labels(data)

    def apply(variables: Variables, x: Array) -> Array:
        return jnp.asarray(made.apply(variables, prepare(x), None, False)[0])

    def loss_fn(variables: Variables, batch: Batch, key: Key) -> tuple[Array, PyTree]:
        logits, stats = made.apply(
            variables, prepare(batch["x"]), key, True, batch["valid"]
        )
        losses = loss(jnp.asarray(logits), batch["y"])
        valid = batch["valid"].astype(losses.dtype)
        mean = (losses * valid).sum() / jnp.maximum(valid.sum(), 1)
        return mean, stats

    def evaluate_all(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        logits = apply(variables, batch["x"])
        valid = batch["valid"].astype(logits.dtype)
        right = is_right(logits, batch["y"]).astype(logits.dtype)
        losses = loss(logits, batch["y"])
        sums = {
            "accuracy": Ratio((right * valid).sum(), valid.sum()),
            "loss": Ratio((losses * valid).sum(), valid.sum()),
        }
        if per_class:
            sums["class_accuracy"] = by_class(right, batch["y"], valid, num_classes)
        return sums

    def evaluate_fn(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        num_examples = batch["valid"].shape[0]
        if num_examples <= BLOCK or not _convolves(variables.params):
            return evaluate_all(variables, batch)
        in_blocks = partial(_sum_of_blocks, evaluate_all)
        return jax.lax.platform_dependent(
            variables, batch, cpu=in_blocks, default=evaluate_all
        )

    def predict_fn(variables: Variables, batch: Batch) -> Array:
        return class_probabilities(apply(variables, batch["x"]))

    check = cache(partial(check_network, made, x_shape, inputs.highest))
    init_fn = checked_init(made.init, check)
    return Task(
        init_fn,
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
