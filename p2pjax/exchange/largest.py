"""Which numbers are the largest, by counting only.

XLA gathers the rows of all senders before it selects or sorts, where they are spread
over devices; counts stay where their sender is.
"""

import jax
import jax.numpy as jnp

from p2pjax.types import Array, PyTree


def largest(scores: Array, num_kept: int) -> Array:
    """Mask of the largest scores; of equal ones those with the lowest index.

    By bisection: bit by bit of the least score that is kept, then of the last index
    among scores that are equal to it.

    Args:
      scores: floats of any shape, none negative.
      num_kept: above 0, at most as many as there are.

    >>> largest(jnp.array([1.0, 3.0, 0.0, 1.0]), 2).tolist()
    [True, True, False, False]
    """
    scores = jnp.asarray(scores)
    num_bits = 8 * scores.dtype.itemsize
    # Floats that are not negative have the order of their bits as whole numbers.
    order = jax.lax.bitcast_convert_type(scores.reshape(-1), f"int{num_bits}")
    one, size = jnp.ones((), order.dtype), order.size

    def next_bit(found: PyTree) -> PyTree:
        bit, least, num_found = found
        higher = least | (one << bit)
        num_higher = _count(order >= higher)
        is_enough = num_higher >= num_kept
        least = jnp.where(is_enough, higher, least)
        return bit - one, least, jnp.where(is_enough, num_higher, num_found)

    _, least, _ = jax.lax.while_loop(
        lambda found: (found[0] >= 0) & (found[2] != num_kept),
        next_bit,
        (one * (num_bits - 2), one * 0, jnp.int32(size)),  # without the sign
    )
    is_least, index = order == least, jnp.arange(size, dtype=jnp.int32)
    num_missing = num_kept - _count(order > least)

    def next_index(ends: PyTree) -> PyTree:
        first, last = ends
        middle = (first + last) // 2
        is_enough = _count(is_least & (index <= middle)) >= num_missing
        first = jnp.where(is_enough, first, middle + 1)
        return first, jnp.where(is_enough, middle, last)

    takes_all = _count(is_least) == num_missing
    ends = (jnp.where(takes_all, size - 1, 0), jnp.int32(size - 1))
    _, last = jax.lax.while_loop(lambda ends: ends[0] < ends[1], next_index, ends)
    mask = (order > least) | (is_least & (index <= last))
    return mask.reshape(scores.shape)


def _count(mask: Array) -> Array:
    return jnp.asarray(mask).sum(dtype=jnp.int32)
