"""What one agent has to learn: pure functions of ONE agent.

A `Task` never sees the agents axis; `training` and `evaluation` batch it.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.tasks.network import Network
from p2pjax.types import (
    Array,
    Batch,
    FederatedData,
    InputError,
    Key,
    PyTree,
    Ratio,
    Variables,
    Wiring,
)


def _nothing_to_check() -> None:
    pass


def _any_labels(data: FederatedData) -> None:
    del data


class Task(NamedTuple):
    """Functions of one agent.

    Attributes:
      init: key -> `Variables`; with a key that is not traced it also checks.
      loss: (variables, batch, key) -> (loss, new statistics), in training mode.
      evaluate: (variables, batch) -> sums over the valid examples.
      norm: paths of the network's normalisation layers, such as `Block_0/BatchNorm_0`.
      check: tries the network on random numbers and refuses what would go wrong without
        a word; outside of any trace, and a second call is free.
      predict: (variables, batch) -> class probabilities `[B, k]`; None if there are no
        classes.
      wiring: which part's cells lie along which axis of which leaf of the parameters,
        for partial averaging; None if it is not known.
      check_labels: refuses labels that the network has no output for, on the host.
      network: what is trained, for methods that look inside; None if it is not known.
      example: shape and dtype of a batch of one example that the network takes.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import p2pjax as pj
      >>> def loss(variables, batch, key):  # the mean of the examples has the lowest
      ...     return jnp.square(batch["x"] - variables.params["w"]).mean(), {}
      >>> start = pj.Variables({"w": jnp.zeros(())}, {})
      >>> task = pj.Task(lambda key: start, loss, lambda variables, batch: {})
      >>> task.loss(start, {"x": jnp.array([1.0, 3.0])}, jax.random.key(0))[0].item()
      5.0
    """

    init: Callable[[Key], Variables]
    loss: Callable[[Variables, Batch, Key], tuple[Array, PyTree]]
    evaluate: Callable[[Variables, Batch], dict[str, Ratio]]
    norm: frozenset[str] = frozenset()
    check: Callable[[], None] = _nothing_to_check
    predict: Callable[[Variables, Batch], Array] | None = None
    wiring: Wiring | None = None
    check_labels: Callable[[FederatedData], None] = _any_labels
    network: Network | None = None
    example: jax.ShapeDtypeStruct | None = None


def shapes_of(task: Task) -> Variables:
    """Shapes and dtypes of ONE agent's variables; no backend starts."""
    return jax.eval_shape(lambda: task.init(jax.random.key(0)))


def checked_init(
    init: Callable[[Key], Variables], check: Callable[[], None]
) -> Callable[[Key], Variables]:
    """The same, after the check where it is possible: outside of traces."""

    def init_fn(key: Key) -> Variables:
        is_traced = isinstance(key, jax.core.Tracer) or isinstance(
            jax.random.key_data(key),
            jax.core.Tracer,  # of a key from outside
        )
        if not is_traced:
            check()
        return init(key)

    return init_fn


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
