"""Learning of associative networks (`nn.associative`), without gradients."""

import jax
import jax.numpy as jnp

from p2pjax.nn.associative import as_bits, compare, hidden_and_visible, hidden_mask
from p2pjax.training.learner import Learner, StepContext
from p2pjax.types import Array, Batch, InputError, Key, PyTree, Variables


def associative_rule(rate: float, threshold: float = 0.5) -> Learner:
    """Learns the vectors `batch["x"]`, one after the other.

    Bouchra Pilet, Frey, Taiani (2021), https://hal.science/hal-02373338.
    A link whose source is active moves by `rate / 2` of the way to 1 where its target
    is active and to -1 where it is not; both layers learn from the same old weights.
    (The paper's text would also weaken links of which only the target is active; its
    pseudo-code does not, and is followed.) The loss is the mean number of cells in
    which a vector and what it recalled just before it was learned differ.

    Args:
      rate: 0 to 2, also when multiplied by an agent's `StepContext.rate`; then weights
        never leave [-1, 1].
      threshold: of all cells, as in the task.

    Example:
      >>> import p2pjax as pj
      >>> task, learner = pj.associative(6, 8), pj.associative_rule(rate=1.0)
      >>> batch = {"x": jnp.array([[1, 1, 0, 0, 1, 0]]), "valid": jnp.array([True])}
      >>> key, step = jax.random.key(0), jax.jit(learner.step)
      >>> model = task.init(key)
      >>> for _ in range(3):  # the same vector again and again
      ...     model, _, wrong = step(key, model, (), batch, StepContext())
      >>> wrong.item()
      0.0
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
        key: Key,
        variables: Variables,
        opt_state: PyTree,
        batch: Batch,
        context: StepContext,
    ) -> tuple[Variables, PyTree, Array]:
        del key
        if context.rates is not None:
            raise InputError(
                "Need models without rates of their own for associative networks, "
                "whose weights do not follow a gradient, got some: leave rate out."
            )

        def learn(params: PyTree, example: tuple[Array, Array]) -> tuple[PyTree, Array]:
            x, valid = example  # [n], []
            now = variables._replace(params=params)
            hidden, actual = hidden_and_visible(now, x, threshold)
            share = jnp.where(valid, rate / 2, 0)
            if context.update_scale is not None:
                share = share * context.update_scale.astype(share.dtype)
            has = hidden_mask(variables)
            params = {
                "to_hidden": _approach(params["to_hidden"], x, hidden, share, has),
                "to_visible": _approach(params["to_visible"], hidden, x, share, None),
            }
            return params, compare(x, actual)[1]

        valid = batch["valid"]
        examples = (as_bits(batch["x"]), valid)
        params, wrong = jax.lax.scan(learn, variables.params, examples)
        counts = valid.astype(wrong.dtype)
        loss = (wrong * counts).sum() / jnp.maximum(counts.sum(), 1)
        return variables._replace(params=params), opt_state, loss

    return Learner(init_fn, step_fn)


def _approach(
    links: PyTree, source: Array, target: Array, share: Array, has: Array | None
) -> PyTree:
    """Moves the links of active sources towards what their targets do."""
    kernel = links["kernel"]  # [sources, targets]
    goal = jnp.where(target, 1, -1).astype(kernel.dtype)  # [targets]
    step = share.astype(kernel.dtype) * source.astype(kernel.dtype)  # [sources]
    moved = kernel + step[:, None] * (goal[None] - kernel)
    return {"kernel": moved if has is None else jnp.where(has[None], moved, kernel)}
