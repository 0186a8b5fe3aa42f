"""The recurrence of a GRU, with derivatives that need one product for all times.

Autodiff would add up the weights' gradient step by step, which costs more than the
products of the recurrence itself. Here the derivative of a step is linear in the last
state's with coefficients that are known for all times before it starts; all that does
not go through the state is one batched product before (forwards) or after it
(backwards).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from p2pjax.nn.cells import CellMask, mask_absent
from p2pjax.types import Array, PyTree


@jax.custom_jvp
def gru_state(
    projected: Array,
    is_token: Array,
    kernel: Array,
    bias: Array,
    cells: CellMask | None = None,
) -> Array:
    """Last state `[B, H]` of the reset-after form, from zeros.

    Args:
      projected: `[T, B, 3, H]`, what inputs add to the gates update, reset, candidate.
      is_token: `[T, B]`; elsewhere the state is carried through.
      kernel: `[H, 3, H]`, from the last state to the gates.
      bias: `[3, H]`, added to that.
      cells: those the agent has, None if all.
    """
    return _walk(projected, is_token, kernel, bias, cells)[0]


@gru_state.defjvp
def _derivative(primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    _, is_token, kernel, _, cells = primals
    projected_dot, _, kernel_dot, bias_dot, _ = tangents
    last, (state, update, reset, candidate, recalled) = _walk(*primals)  # [T, B, H]

    # d new = a . d(recurrent) + b . d(projected) + c d(state), summed over the gates
    counts = mask_absent(is_token[..., None], cells, missing=False)
    rise = jnp.where(counts, (1 - update) * (1 - candidate * candidate), 0)
    of_update = jnp.where(counts, update * (1 - update) * (state - candidate), 0)
    of_reset = rise * recalled * reset * (1 - reset)
    by_recurrent = jnp.stack([of_update, of_reset, rise * reset], 2)  # [T, B, 3, H]
    by_projected = jnp.stack([of_update, of_reset, rise], 2)
    by_state = mask_absent(jnp.where(is_token[..., None], update, 1), cells)

    recurrent_dot = to_gates(state, kernel_dot) + bias_dot[None, None]
    entering = (by_recurrent * recurrent_dot + by_projected * projected_dot).sum(2)

    def step(state_dot: PyTree, inputs: PyTree) -> tuple[PyTree, None]:
        by_recurrent, by_state, entering = inputs
        recurrent_dot = to_gates(state_dot, kernel)
        new = (by_recurrent * recurrent_dot).sum(1) + by_state * state_dot + entering
        return new, None

    start = jnp.zeros_like(last)
    return last, jax.lax.scan(step, start, (by_recurrent, by_state, entering))[0]


def _walk(
    projected: Array,
    is_token: Array,
    kernel: Array,
    bias: Array,
    cells: CellMask | None,
) -> tuple[Array, PyTree]:
    """The last state, and of all times the state before and what the gates were."""

    def step(state: Array, inputs: PyTree) -> tuple[Array, PyTree]:
        projected, is_token = inputs  # [B, 3, H], [B]
        recurrent = to_gates(state, kernel) + bias[None]
        update, reset = (nn.sigmoid(projected[:, g] + recurrent[:, g]) for g in (0, 1))
        recalled = recurrent[:, 2]
        candidate = jnp.tanh(projected[:, 2] + reset * recalled)
        new = mask_absent(update * state + (1 - update) * candidate, cells)
        new = jnp.where(is_token[:, None], new, state)
        return new, (state, update, reset, candidate, recalled)

    start = jnp.zeros((projected.shape[1], kernel.shape[0]), projected.dtype)
    return jax.lax.scan(step, start, (projected, is_token))


def to_gates(x: Array, kernel: Array) -> Array:
    """`[..., I]` and `[I, gates, H]` to `[..., gates, H]`, as one matrix product."""
    width = kernel.shape[0]
    product = x.reshape(-1, width) @ kernel.reshape(width, -1)
    return product.reshape(*x.shape[:-1], *kernel.shape[1:])
