"""Recall of binary vectors by an associative network (`nn.associative`)."""

import jax
import jax.numpy as jnp

from p2pjax.nn.associative import as_bits, compare, hidden_and_visible
from p2pjax.tasks.task import Task
from p2pjax.types import Array, Batch, InputError, Key, PyTree, Ratio, Variables


def associative(num_visible: int, num_hidden: int, threshold: float = 0.5) -> Task:
    """Recall the vectors `batch["y"]` from the incomplete vectors `batch["x"]`.

    As in Bouchra Pilet, Frey, Taiani (2021), https://hal.science/hal-02373338.
    Vectors are `[B, n]` and anything but 0 is active, whatever the dtype. Accuracy is
    the share of successes, loss the mean number of wrong cells; the loss is reported
    and has no gradient.

    Args:
      num_visible: n.
      num_hidden: H; with agents of different H, the largest.
      threshold: of all cells.

    Example:
      >>> task = associative(num_visible=6, num_hidden=8)
      >>> links = jax.eval_shape(task.init, jax.random.key(0)).params
      >>> {name: both["kernel"].shape for name, both in links.items()}
      {'to_hidden': (6, 8), 'to_visible': (8, 6)}
    """
    if num_visible < 1 or num_hidden < 1:
        raise InputError(
            f"Need at least one visible and one hidden cell, got {num_visible} and "
            f"{num_hidden}."
        )

    def init_fn(key: Key) -> Variables:
        key_hidden, key_visible = jax.random.split(key)

        def uniform(key: Key, *shape: int) -> dict[str, Array]:
            return {"kernel": jax.random.uniform(key, shape, minval=-1, maxval=1)}

        params = {
            "to_hidden": uniform(key_hidden, num_visible, num_hidden),
            "to_visible": uniform(key_visible, num_hidden, num_visible),
        }
        return Variables(params, {})

    def recall(variables: Variables, batch: Batch) -> tuple[Array, Array, Array]:
        """Cells that are rightly active, wrong cells, and what counts: `[B]` each."""
        actual = hidden_and_visible(variables, as_bits(batch["x"]), threshold)[1]
        right, wrong = compare(as_bits(batch["y"]), actual)
        return right, wrong, batch["valid"].astype(wrong.dtype)

    def loss_fn(variables: Variables, batch: Batch, key: Key) -> tuple[Array, PyTree]:
        del key
        _, wrong, valid = recall(variables, batch)
        mean = (wrong * valid).sum() / jnp.maximum(valid.sum(), 1)
        return mean, variables.stats

    def evaluate_fn(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        right, wrong, valid = recall(variables, batch)
        links = jax.tree.leaves(variables.params)
        is_finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in links]).all()
        success = ((right >= wrong) & is_finite).astype(valid.dtype)
        return {
            "accuracy": Ratio((success * valid).sum(), valid.sum()),
            "loss": Ratio((wrong * valid).sum(), valid.sum()),
        }

    return Task(init_fn, loss_fn, evaluate_fn)
