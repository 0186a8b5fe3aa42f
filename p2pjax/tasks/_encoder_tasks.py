"""Tasks on an encoder of tokens: predict a masked token, or label every word.

Sajina (2025), second study. Both are a `encoder.TokenModel`, parameters
`encoder` and `head`, so that agents of either task can share the encoder. Token 0 is
padding.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.datasets import label_sets
from p2pjax.datasets.label_sets import LabelSet
from p2pjax.nn.encoder import Encoder, TokenHead, TokenModel
from p2pjax.tasks import ner_metrics
from p2pjax.tasks._examples import check_below, label_check
from p2pjax.tasks._linen_network import shapes_and_norm
from p2pjax.tasks.losses import is_known, is_right, softmax_cross_entropy
from p2pjax.tasks.network import Network
from p2pjax.tasks.task import Task
from p2pjax.types import (
    Array,
    Batch,
    FederatedData,
    Key,
    PyTree,
    Ratio,
    Variables,
)

EVALUATION_BATCH = 64  # examples at a time, so that states of a test set need no room


def masked_token(encoder: Encoder, length: int, mask_id: int) -> Task:
    """Predict `batch["y"]`, the token that `mask_id` stands for in `batch["tokens"]`.

    Nothing behind the mask is attended to, so this is next-token prediction.

    Args:
      encoder: of the tokens; there are as many outputs as it knows tokens.
      length: of sequences, `tokens` is `[B, length]`.
      mask_id: token of the mask, once in every sequence.

    Example:
      >>> import p2pjax as pj
      >>> encoder = pj.nn.bert_tiny(vocab_size=20)
      >>> task = pj.masked_token(encoder, length=8, mask_id=1)
      >>> shapes = jax.eval_shape(task.init, jax.random.key(0)).params
      >>> sorted(shapes), shapes["head"]["output"]["kernel"].shape
      (['encoder', 'head'], (128, 20))
    """
    module = TokenModel(encoder, TokenHead(encoder.vocab_size))

    def logits(params: PyTree, batch: Batch, key: Key | None) -> Array:
        tokens = batch["tokens"].astype(jnp.int32)
        position = (tokens == mask_id).argmax(1)
        attended = jnp.arange(length)[None] <= position[:, None]
        return _apply(module, params, tokens, attended, position, key)

    def loss_fn(variables: Variables, batch: Batch, key: Key) -> tuple[Array, PyTree]:
        output = logits(variables.params, batch, key)
        losses = softmax_cross_entropy(output, batch["y"].astype(jnp.int32))
        return _mean(losses, batch["valid"]), variables.stats

    def evaluate_fn(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        def one_batch(batch: Batch) -> tuple[Array, Array]:
            output = logits(variables.params, batch, None)
            target = batch["y"].astype(jnp.int32)
            return is_right(output, target), softmax_cross_entropy(output, target)

        right, losses = _in_batches(one_batch, batch)
        return _ratios(right, losses, batch["valid"])

    def predict_fn(variables: Variables, batch: Batch) -> Array:
        def one_batch(batch: Batch) -> Array:
            return jax.nn.softmax(logits(variables.params, batch, None))

        return _in_batches(one_batch, batch)

    def check_fn(data: FederatedData) -> None:
        _check_tokens(encoder, data)
        label_check(encoder.vocab_size)(data)

    init_fn = partial(_init, module, length)
    norm = shapes_and_norm(init_fn)[1]
    return Task(
        init_fn,
        loss_fn,
        evaluate_fn,
        norm,
        predict=predict_fn,
        check_labels=check_fn,
        network=_network(module, length),
        example=_example(length),
    )


def tagging(encoder: Encoder, length: int, labels: LabelSet) -> Task:
    """Label words; the first piece of a word stands for it.

    Examples have `tokens` `[B, length]`, the `positions` of words in them `[B, P]` and
    the words' `labels` `[B, P]`, 0 where there are no more. The score is `f1`, that of
    entities (`ner_metrics.macro_f1`); `accuracy` counts words.

    Args:
      encoder: of the tokens.
      length: of sequences.
      labels: what can be predicted.

    Example:
      >>> import p2pjax as pj
      >>> people = label_sets.label_set(["O", "B-PER", "I-PER"])  # and four of its own
      >>> task = pj.tagging(pj.nn.bert_tiny(vocab_size=20), length=8, labels=people)
      >>> shapes = jax.eval_shape(task.init, jax.random.key(0)).params
      >>> shapes["head"]["output"]["kernel"].shape
      (128, 6)
    """
    module = TokenModel(encoder, TokenHead(len(labels.names)))

    def logits(params: PyTree, batch: Batch, key: Key | None) -> Array:
        tokens = batch["tokens"].astype(jnp.int32)
        positions = batch["positions"].astype(jnp.int32)
        return _apply(module, params, tokens, tokens != 0, positions, key)

    def loss_fn(variables: Variables, batch: Batch, key: Key) -> tuple[Array, PyTree]:
        target = batch["labels"].astype(jnp.int32)
        losses = softmax_cross_entropy(logits(variables.params, batch, key), target)
        return _mean(losses, _is_word(batch)), variables.stats

    def evaluate_fn(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        def one_batch(batch: Batch) -> tuple[Array, Array]:
            output = logits(variables.params, batch, None)
            target = batch["labels"].astype(jnp.int32)
            # What is not finite predicts no label.
            predicted = jnp.where(
                is_known(output), output.argmax(-1), label_sets.PADDING
            )
            return predicted, softmax_cross_entropy(output, target)

        predicted, losses = _in_batches(one_batch, batch)  # [M, P]
        is_word = _is_word(batch)
        target = jnp.where(is_word, batch["labels"].astype(jnp.int32), 0)
        counts = ner_metrics.found(predicted, target, labels)
        values = _ratios(predicted == target, losses, is_word)
        return values | {"f1": ner_metrics.macro_f1(counts)}

    def check_fn(data: FederatedData) -> None:
        _check_tokens(encoder, data)
        check_below(data, "positions", "N, M, P", length, "positions of words")
        label_check(len(labels.names), "labels", "N, M, P")(data)

    init_fn = partial(_init, module, length)
    norm = shapes_and_norm(init_fn)[1]
    return Task(
        init_fn,
        loss_fn,
        evaluate_fn,
        norm,
        check_labels=check_fn,
        network=_network(module, length),
        example=_example(length),
    )


def _check_tokens(encoder: Encoder, data: FederatedData) -> None:
    check_below(data, "tokens", "N, M, length", encoder.vocab_size, "tokens")


def _init(module: TokenModel, length: int, key: Key) -> Variables:
    tokens = jnp.zeros((1, length), jnp.int32)
    return Variables(module.init(key, tokens)["params"], {})


def _example(length: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, length), np.dtype(np.int32))


def _network(module: TokenModel, length: int) -> Network:
    """Logits of all tokens."""
    return Network(
        partial(_init, module, length),
        lambda params, tokens: module.apply({"params": params}, tokens),
    )


def _apply(
    module: TokenModel,
    params: PyTree,
    tokens: Array,
    attended: Array,
    positions: Array,
    key: Key | None,
) -> Array:
    return jnp.asarray(
        module.apply(
            {"params": params},
            tokens,
            attention_mask=attended,
            positions=positions,
            deterministic=key is None,
            rngs=None if key is None else {"dropout": key},
        )
    )


def _is_word(batch: Batch) -> Array:
    return (batch["labels"] != label_sets.PADDING) & batch["valid"][:, None]


def _mean(losses: Array, counted: Array) -> Array:
    weight = counted.astype(losses.dtype)
    return (losses * weight).sum() / jnp.maximum(weight.sum(), 1)


def _ratios(right: Array, losses: Array, counted: Array) -> dict[str, Ratio]:
    weight = counted.astype(losses.dtype)
    return {
        "accuracy": Ratio((right.astype(losses.dtype) * weight).sum(), weight.sum()),
        "loss": Ratio((losses * weight).sum(), weight.sum()),
    }


def _in_batches(fn: Callable[[Batch], PyTree], batch: Batch) -> PyTree:
    """`fn` of all examples `[M, ...]`, a few of them at a time."""
    num_examples = batch["valid"].shape[0]
    size = min(EVALUATION_BATCH, num_examples)
    missing = -num_examples % size

    def cut(leaf: Array) -> Array:
        padded = jnp.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1))
        return padded.reshape(-1, size, *leaf.shape[1:])

    results = jax.lax.map(fn, {name: cut(leaf) for name, leaf in batch.items()})
    return jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:num_examples], results
    )
