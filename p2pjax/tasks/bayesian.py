"""Tasks of ONE agent whose weights are normal, not numbers.

Blundell et al. (2015), "Weight uncertainty in neural networks" (Bayes by backprop).
`training.free_energy` has the learner.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.nn.gaussian import Coordinates, Gaussian
from p2pjax.nn.variational import draw
from p2pjax.tasks._examples import label_check
from p2pjax.tasks.losses import by_class, is_right
from p2pjax.tasks.task import Task, as_float
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

INITIAL_STDDEV = 0.048587  # softplus(-3)


Objective = Callable[[Array], Array]  # losses of all draws [S, B] -> of examples [B]


def expected(losses: Array) -> Array:
    """Mean loss over the draws: an evidence lower bound."""
    return losses.mean(0)


def of_mean_probability(losses: Array) -> Array:
    """Loss of the mean probability over the draws, as in the authors' code.

    It is never above `expected`, and no bound of the evidence.
    """
    return jnp.log(jnp.asarray(len(losses), losses.dtype)) - jax.nn.logsumexp(
        -losses, axis=0
    )


def variational_classification(
    module: nn.Module,
    input_shape: tuple[int, ...],
    *,
    num_samples: int,
    num_test_samples: int | None = None,
    flipout: bool = True,
    dropout: float = 0.0,
    objective: Objective = expected,
    initial_stddev: float = INITIAL_STDDEV,
    as_inputs: Callable[[Array], Array] = as_float,
    ignore_label: int | None = None,
    per_class: bool = False,
) -> Task:
    """Classify `batch["x"]` into `batch["y"]` by networks drawn from a Gaussian.

    Blundell et al. (2015), https://arxiv.org/abs/1505.05424.
    `Variables.params` is a `Gaussian`. The prediction is the mean softmax output of
    `num_test_samples` networks, always the same draws for the same posterior.

    Args:
      module: of `nn.variational`, from `[B, *input_shape]` to logits `[B, k]`.
      input_shape: shape of one example.
      num_samples: networks drawn for every batch.
      num_test_samples: networks that predict; as many if not given.
      flipout: see `variational.draw`.
      dropout: in training, see there.
      objective: how the losses of the draws make one loss.
      initial_stddev: of all weights before the first step. What data do not say, an
        optimizer unsays only as fast as its rate: a small one claims much.
      as_inputs: what becomes of `batch["x"]`; `as_tokens` for tokens.
      ignore_label: that is learned but not counted in the accuracy; None counts all.
      per_class: also evaluate `class_accuracy` `[k]`, not a number for a class without
        examples.

    Example:
      >>> from p2pjax.nn.variational import Columns
      >>> task = variational_classification(Columns((4, 2)), (3,), num_samples=2)
      >>> weights = jax.eval_shape(task.init, jax.random.key(0)).params
      >>> weights._fields, sorted(weights.mean)
      (('mean', 'stddev'), ['client', 'server'])
    """
    num_test_samples = num_samples if num_test_samples is None else num_test_samples
    fewest = min(num_samples, num_test_samples)
    if fewest < 1:
        raise InputError(f"Need one draw of the weights or more, got {fewest}.")
    if not 0 <= dropout < 1:
        raise InputError(f"Need a dropout of 0 or more below 1, got {dropout}.")
    if not 0 < initial_stddev < float("inf"):
        raise InputError(f"Need a positive initial_stddev, got {initial_stddev}.")

    def example() -> Array:  # no backend starts where the task is made
        return as_inputs(jnp.zeros((1, *input_shape), jnp.float32))

    def init_fn(key: Key) -> Variables:
        mean = module.init(key, example())["params"]
        stddev = jax.tree.map(lambda leaf: jnp.full_like(leaf, initial_stddev), mean)
        return Variables(Gaussian(mean, stddev), {})

    def log_probabilities(key: Key, q: Gaussian, x: Array, train: bool) -> Array:
        """`[S, B, k]`."""
        inputs = as_inputs(x)
        num_draws = num_samples if train else num_test_samples

        def one_draw(key: Key) -> Array:
            rate = dropout if train else 0.0
            collections = draw(key, q, len(inputs), flipout=flipout, dropout=rate)
            return jax.nn.log_softmax(jnp.asarray(module.apply(collections, inputs)))

        return jax.vmap(one_draw)(jax.random.split(key, num_draws))

    def loss_fn(variables: Variables, batch: Batch, key: Key) -> tuple[Array, PyTree]:
        log_p = log_probabilities(key, variables.params, batch["x"], train=True)
        losses = objective(-_of_label(log_p, batch["y"]))
        valid = batch["valid"].astype(losses.dtype)
        mean = (losses * valid).sum() / jnp.maximum(valid.sum(), 1)
        return mean, variables.stats

    def evaluate_fn(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        key = jax.random.key(0)
        log_p = log_probabilities(key, variables.params, batch["x"], train=False)
        log_p = -of_mean_probability(-log_p)  # [B, k]
        valid = batch["valid"].astype(log_p.dtype)
        right = is_right(log_p, batch["y"]).astype(log_p.dtype)
        losses = -_of_label(log_p, batch["y"])
        counted = valid
        if ignore_label is not None:
            counted = valid * (batch["y"] != ignore_label).astype(valid.dtype)
        sums = {
            "accuracy": Ratio((right * counted).sum(), counted.sum()),
            "loss": Ratio((losses * valid).sum(), valid.sum()),
        }
        if per_class:
            num_classes = log_p.shape[-1]
            sums["class_accuracy"] = by_class(right, batch["y"], valid, num_classes)
        return sums

    def check_fn(data: FederatedData) -> None:
        made = jax.eval_shape(
            lambda: module.init_with_output(jax.random.key(0), example())[0]
        )
        label_check(made.shape[-1])(data)

    return Task(init_fn, loss_fn, evaluate_fn, check_labels=check_fn)


def _of_label(values: Array, labels: Array) -> Array:
    """`[..., B, k]` -> `[..., B]`."""
    is_label = jax.nn.one_hot(labels, values.shape[-1], dtype=bool)
    is_label = jnp.broadcast_to(is_label, values.shape)
    return jnp.where(is_label, values, jnp.zeros_like(values)).sum(-1)


def in_coordinates(task: Task, coordinates: Coordinates) -> Task:
    """The same task with `Variables.params` in free coordinates of its Gaussian."""

    def decoded(variables: Variables) -> Variables:
        return variables._replace(params=coordinates.gaussian(variables.params))

    def init_fn(key: Key) -> Variables:
        variables = task.init(key)
        return variables._replace(params=coordinates.free(variables.params))

    return Task(
        init_fn,
        lambda variables, batch, key: task.loss(decoded(variables), batch, key),
        lambda variables, batch: task.evaluate(decoded(variables), batch),
        check_labels=task.check_labels,
    )
