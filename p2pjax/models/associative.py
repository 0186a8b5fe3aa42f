"""Associative network of binary cells, learned without gradients.

Bouchra Pilet, Frey, Taiani (2021), "Multi-task learning by partial averaging". A
visible layer of n cells and a hidden layer of H cells are linked both ways; a cell
fires where the weights of its active links sum to the threshold or more. From part of
a vector the network recalls the whole: visible -> hidden -> visible.

There are two parts of cells, visible 0 and hidden 1, and both weights of a link lie
between the same two cells. So a partial model of all visible and k hidden cells owns
the weights from and to these hidden cells, and the other hidden cells' weights are
local.
"""

import jax
import jax.numpy as jnp

from p2pjax.slices import Wiring
from p2pjax.tasks import Task
from p2pjax.training import Extra, Learner
from p2pjax.types import Array, Batch, InputError, Key, PyTree, Ratio, Variables


def associative(num_visible: int, num_hidden: int, threshold: float = 0.5) -> Task:
    """Recall the vectors `batch["y"]` from the incomplete vectors `batch["x"]`.

    Vectors are `[B, n]` and anything but 0 is active, whatever the dtype. Accuracy is
    the share of successes, loss the mean number of wrong cells; the loss is reported
    and has no gradient.

    Args:
      num_visible: n.
      num_hidden: H; with agents of different H, the largest.
      threshold: of all cells.
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
        actual = _forward(variables, _active(batch["x"]), threshold)[1]
        right, wrong = _compare(_active(batch["y"]), actual)
        return right, wrong, batch["valid"].astype(wrong.dtype)

    def loss_fn(variables: Variables, batch: Batch, key: Key) -> tuple[Array, PyTree]:
        del key
        _, wrong, valid = recall(variables, batch)
        mean = (wrong * valid).sum() / jnp.maximum(valid.sum(), 1)
        return mean, variables.stats

    def evaluate_fn(variables: Variables, batch: Batch) -> dict[str, Ratio]:
        right, wrong, valid = recall(variables, batch)
        success = (right >= wrong).astype(valid.dtype)
        return {
            "accuracy": Ratio((success * valid).sum(), valid.sum()),
            "loss": Ratio((wrong * valid).sum(), valid.sum()),
        }

    return Task(init_fn, loss_fn, evaluate_fn)


def associative_rule(rate: float, threshold: float = 0.5) -> Learner:
    """Learns the vectors `batch["x"]`, one after the other.

    A link whose source is active moves by `rate / 2` of the way to 1 where its target
    is active and to -1 where it is not; both layers learn from the same old weights.
    (The paper's text would also weaken links of which only the target is active; its
    pseudo-code does not, and is followed.) The loss is the mean number of cells in
    which a vector and what it recalled just before it was learned differ.

    Args:
      rate: 0 to 2, also when multiplied by an agent's `Extra.rate`; then weights never
        leave [-1, 1].
      threshold: of all cells, as in the task.
    """
    if not 0 <= rate <= 2:
        raise InputError(
            f"Need a rate from 0 to 2, which keeps the weights in [-1, 1], got {rate}."
        )
    rate = float(rate)

    def init_fn(variables: Variables) -> PyTree:
        del variables
        return ()

    def step_fn(
        key: Key, variables: Variables, opt_state: PyTree, batch: Batch, extra: Extra
    ) -> tuple[Variables, PyTree, Array]:
        del key

        def learn(params: PyTree, example: tuple[Array, Array]) -> tuple[PyTree, Array]:
            x, valid = example  # [n], []
            now = variables._replace(params=params)
            hidden, actual = _forward(now, x, threshold)
            share = jnp.where(valid, rate / 2, 0)
            if extra.rate is not None:
                share = share * extra.rate.astype(share.dtype)
            has = _has_hidden(variables)
            params = {
                "to_hidden": _approach(params["to_hidden"], x, hidden, share, has),
                "to_visible": _approach(params["to_visible"], hidden, x, share, None),
            }
            return params, _compare(x, actual)[1]

        valid = batch["valid"]
        examples = (_active(batch["x"]), valid)
        params, wrong = jax.lax.scan(learn, variables.params, examples)
        counts = valid.astype(wrong.dtype)
        loss = (wrong * counts).sum() / jnp.maximum(counts.sum(), 1)
        return variables._replace(params=params), opt_state, loss

    return Learner(init_fn, step_fn)


def forward(params: PyTree, x: Array, threshold: float) -> Array:
    """What vectors `[..., n]` recall: bool `[..., n]`."""
    return _forward(Variables(params, {}), _active(x), threshold)[1]


def wiring() -> Wiring:
    """Which part's cells lie along which axis of which leaf: visible 0, hidden 1."""
    return {"to_hidden/kernel": (0, 1), "to_visible/kernel": (1, 0)}


def _forward(
    variables: Variables, visible: Array, threshold: float
) -> tuple[Array, Array]:
    """Active hidden cells `[..., H]`, then active visible cells `[..., n]`."""
    params = variables.params
    hidden = _fires(visible, params["to_hidden"], threshold)
    has = _has_hidden(variables)
    if has is not None:
        hidden = hidden & jnp.broadcast_to(has, hidden.shape)
    return hidden, _fires(hidden, params["to_visible"], threshold)


def _fires(source: Array, links: PyTree, threshold: float) -> Array:
    kernel = links["kernel"]  # [sources, targets]
    sums = jnp.matmul(source.astype(kernel.dtype), kernel, precision="highest")
    return sums >= float(threshold)


def _approach(
    links: PyTree, source: Array, target: Array, share: Array, has: Array | None
) -> PyTree:
    """Moves the links of active sources towards what their targets do."""
    kernel = links["kernel"]  # [sources, targets]
    goal = jnp.where(target, 1, -1).astype(kernel.dtype)  # [targets]
    step = share.astype(kernel.dtype) * source.astype(kernel.dtype)  # [sources]
    moved = kernel + step[:, None] * (goal[None] - kernel)
    return {"kernel": moved if has is None else jnp.where(has[None], moved, kernel)}


def _compare(expected: Array, actual: Array) -> tuple[Array, Array]:
    """Cells active in both, and cells that differ, of vectors `[..., n]`."""
    both, differ = expected & actual, expected ^ actual
    return both.sum(-1).astype(jnp.float32), differ.sum(-1).astype(jnp.float32)


def _active(x: Array) -> Array:
    """Bits of any dtype; bytes are bits here, not pixels of 0 .. 255."""
    return jnp.asarray(x).astype(bool)


def _has_hidden(variables: Variables) -> Array | None:
    """`[H]`: hidden cells of an agent that has fewer than others (`cell_masks`)."""
    cells = variables.stats.get("cells")
    return None if cells is None else cells["layer_1"]["mask"]
