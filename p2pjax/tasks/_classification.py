"""Classification of vectors or images."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.tasks.losses import ExampleLoss, predicted
from p2pjax.tasks.task import Task, as_float
from p2pjax.types import Array, Batch, Key, PyTree, Ratio, Variables

# Images on which a convolutional network is evaluated at once on a CPU, so that they
# stay in the cache. Microseconds per image of 32 x 32 x 3 on one core, in blocks of 25,
# 50, 100 and 400: 6 and 16 channels (`cifar_cnn_code`) 62, 53, 69, 162, with gradients
# 222, 248, 272, 248; 32 and 64 channels, 512 cells 333, 371, 392, 705, with gradients
# 1237, 1131, 1133, 1456. (An MLP 784-300-100-10, which does not need it: 12.2, 11.4,
# 10.1, 8.0.)
BLOCK = 50


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
