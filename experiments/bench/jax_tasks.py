"""The networks of the benchmarks as tasks of p2pjax."""

import flax.linen as nn
import jax.numpy as jnp

from experiments.bench.inputs import NUM_CLASSES, NUM_TAGS, Network
from experiments.bench.own_networks import WRITTEN
from p2pjax.nn import cnn, encoder, gru, mlp
from p2pjax.tasks._classification import classification
from p2pjax.tasks._next_token import next_token
from p2pjax.tasks.losses import softmax_cross_entropy, squared_error
from p2pjax.tasks.task import Task
from p2pjax.types import Array, Batch, Key, PyTree, Ratio, Variables


def task_of(network: Network) -> Task:
    """The task that trains a network."""
    if network["kind"] == "mlp":
        inputs, *widths = network["widths"]
        if network.get("sigmoid"):
            return classification(mlp.MLP(widths), (inputs,), squared_error)
        module: nn.Module = mlp.MLP(widths, nn.relu)
        return classification(module, (inputs,), softmax_cross_entropy)
    if network["kind"] == "cnn":
        module = cnn.CNN(network["channels"], network["dense"], NUM_CLASSES)
        image = tuple(network["image"])
        return classification(module, image, softmax_cross_entropy)
    if network["kind"] == "norm_cnn":
        written = WRITTEN[network["written"]](network)
        return classification(written, tuple(network["image"]), softmax_cross_entropy)
    if network["kind"] == "gru":
        units = network["units"]
        words = gru.NextWord(network["words"], units, units, units)
        return next_token(words, network["length"], ignore_token=1, momentum=None)
    return _tagging(network["words"], network["length"])


def _tagging(num_words: int, length: int) -> Task:
    """A tag for every token, by BERT-Tiny."""
    module = encoder.TokenModel(
        encoder.bert_tiny(num_words, dropout=0.0), encoder.TokenHead(NUM_TAGS)
    )

    def init_fn(key: Key) -> Variables:
        return Variables(
            module.init(key, jnp.zeros((1, length), jnp.int32))["params"], {}
        )

    def losses(variables: Variables, batch: Batch) -> Array:  # [B]
        logits = jnp.asarray(module.apply({"params": variables.params}, batch["x"]))
        return softmax_cross_entropy(logits, batch["y"]).mean(1)

    def loss_fn(variables: Variables, batch: Batch, key: Key) -> tuple[Array, PyTree]:
        del key
        return losses(variables, batch).mean(), variables.stats

    def evaluate_fn(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        total = losses(variables, batch).sum()
        return {"loss": Ratio(total, jnp.float32(batch["valid"].shape[0]))}

    return Task(init_fn, loss_fn, evaluate_fn)
