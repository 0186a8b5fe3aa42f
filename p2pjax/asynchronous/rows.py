"""Rows of agents in trees of several tasks (`task_groups`), read and overwritten.

Loops over agents see such a tree as that of one task; agents of other tasks have no
place in its own leaves.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.asynchronous.task_groups import in_task, of_task
from p2pjax.types import Array, PyTree


def take(at: Array, tree: PyTree) -> PyTree:
    """Entry `at` of all leaves."""
    return jax.tree.map(lambda leaf: _get(leaf, at), tree)


def read(tree: PyTree, task: int, start: int, at: Array, *more: Array) -> PyTree:
    """Agents `at` of a task, the nearest ones in place of others.

    Args:
      tree: of all tasks.
      task: its number.
      start: its first agent.
      at: one agent, or several.
      *more: further indices, such as those of mailboxes, or of several of them.
    """

    def rows(leaf: Array, first: int) -> Array:
        place = at - first
        if any(map(jnp.ndim, (at, *more))):
            place = jnp.clip(place, 0, leaf.shape[0] - 1)
            return jnp.asarray(leaf)[(place, *more)]
        return _get(leaf, place, *more)

    return of_task(rows, tree, task, start)


def write(
    tree: PyTree, new: PyTree, task: int, start: int, at: Array, *more: Array
) -> PyTree:
    """Overwrites ONE agent of a task, where `read` reads it, in place.

    Args:
      tree: of all tasks.
      new: what ONE agent of the task has.
      task: its number.
      start: its first agent.
      at: the agent.
      *more: further indices, such as those of mailboxes.
    """
    return in_task(
        lambda leaf, first, new: put(leaf, new, at - first, *more),
        tree,
        task,
        start,
        new,
    )


def place_of(leaf: Array, first: int, at: Array) -> Array:
    """Of agents in a leaf; outside of it for those it does not hold."""
    place, size = at - first, leaf.shape[0]
    return jnp.where((place >= 0) & (place < size), place, size)


def write_all(
    tree: PyTree, new: PyTree, task: int, start: int, at: Array, *more: Array
) -> PyTree:
    """Overwrites agents `[E]` of a task; those that it does not have are left out.

    Args:
      tree: of all tasks.
      new: what they have, leaves `[E, ...]`, or `[]`.
      task: its number.
      start: its first agent.
      at: the agents, all different but for those that are left out.
      *more: further indices `[E]`, such as those of mailboxes.
    """
    return in_task(
        lambda leaf, first, new: (
            jnp.asarray(leaf)
            .at[(place_of(leaf, first, at), *more)]
            .set(new, mode="drop")
        ),
        tree,
        task,
        start,
        new,
    )


# Negative indices of Python count from the end. Ours never do, and to say so spares a
# program three operations for every axis of every leaf. What is out of bounds is then
# the nearest place that there is.


def _get(leaf: Array, *at: Array) -> Array:
    leaf = jnp.asarray(leaf)
    own = leaf.shape[len(at) :]
    found = jax.lax.dynamic_slice(
        leaf,
        _first_index(leaf, at),
        (1,) * len(at) + own,
        allow_negative_indices=False,
    )
    return found.reshape(own)


def put(leaf: Array, value: Array, *at: Array) -> Array:
    """Overwrites `leaf[at]`, or what is nearest to it, in place."""
    value = value.reshape((1,) * len(at) + leaf.shape[len(at) :])
    return jax.lax.dynamic_update_slice(
        leaf,
        value.astype(leaf.dtype),
        _first_index(leaf, at),
        allow_negative_indices=False,
    )


def _first_index(leaf: Array, at: Sequence[Array]) -> list[Any]:
    of_rest = [np.int32(0)] * (leaf.ndim - len(at))
    return [*(jnp.asarray(index, jnp.int32) for index in at), *of_rest]
