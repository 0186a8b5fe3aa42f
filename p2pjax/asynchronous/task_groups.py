"""Agents of different tasks in one stacked tree.

Agents are numbered task by task: a static `Group` says from where to where. What all
tasks have in common (the encoder, what its optimizer remembers, counters) is stacked
over all agents, leaves `[N, ...]`. What only a task has (its head, what the head's
optimizer remembers, its examples, whose shapes differ) is a `PerTask` node of the same
tree; part q of it is stacked over the agents of task q alone, leaves `[N_q, ...]`:

    {"encoder": leaves [N, ...], "head": PerTask((leaves [N_0, ...], ...))}

So an agent costs its own parameters and nothing elsewhere. A tree without such nodes is
one of a single task, so single-task methods need to know nothing of this.

`of_task` and `in_task` are how loops over agents see such a tree: as that of one task,
every leaf together with the number of its first agent.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.datasets.stacking import over_splits
from p2pjax.tasks.task import Task
from p2pjax.types import Array, FederatedData, InputError, PyTree, Split, num_agents

COMMON, OWN = 0, 1  # groups of leaves, see `leaf_groups`


class Group(NamedTuple):
    """Agents `start` to `stop - 1` learn the same task."""

    start: int
    stop: int
    task: Task


class PerTask(NamedTuple):
    """What differs between tasks; leaves of part q are `[N_q, ...]`."""

    parts: tuple[Any, ...]


def groups(tasks: Sequence[Task], sizes: Sequence[int]) -> tuple[Group, ...]:
    """Consecutive groups, one of `sizes[q]` agents for every task.

    Args:
      tasks: what the agents of each group learn.
      sizes: agents of each group.

    >>> [group[:2] for group in groups([None, None], [20, 10])]
    [(0, 20), (20, 30)]
    """
    if len(tasks) != len(sizes) or not tasks or min(sizes) < 1:
        raise InputError(
            f"Need one task or more and agents of each, got {len(tasks)} tasks and "
            f"{list(sizes)} agents."
        )
    ends = np.cumsum(sizes).tolist()
    return tuple(map(Group, [0, *ends[:-1]], ends, tasks))


def task_of_agents(starts: Sequence[int], num_agents: int) -> np.ndarray:
    """Number of every agent's task, `[N]`."""
    return np.searchsorted(starts, np.arange(num_agents), side="right") - 1


def joined(
    trees: Sequence[Mapping[str, PyTree]], common: Collection[str]
) -> dict[str, PyTree]:
    """One tree of several, each stacked over the agents of one task.

    Args:
      trees: dicts with the same names, such as parameters or the optimizer states of
        `learner.per_group_state`; leaves `[N_q, ...]`.
      common: names of what is the same in all tasks.
    """

    def join(name: str) -> PyTree:
        parts = [tree[name] for tree in trees]
        if name not in common:
            return PerTask(tuple(parts))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    return {name: join(name) for name in trees[0]}


def joined_world(worlds: Sequence[FederatedData]) -> FederatedData:
    """The world of all tasks' agents; clusters are the tasks."""

    def join(*splits: Split) -> Split:
        examples: Any = PerTask(tuple(split.examples for split in splits))
        return Split(
            examples, np.concatenate([np.asarray(split.size) for split in splits])
        )

    sizes = [num_agents(data) for data in worlds]
    cluster = np.repeat(np.arange(len(worlds), dtype=np.int32), sizes)
    return over_splits(join, worlds, cluster)


def of_task(
    fn: Callable[[Array, int], Any], tree: PyTree, number: int, start: int
) -> PyTree:
    """The tree of one task.

    Args:
      fn: `(leaf, number of its first agent) -> leaf`.
      tree: of all tasks.
      number: of the task.
      start: its first agent.
    """

    def convert(node: PyTree) -> PyTree:
        if isinstance(node, PerTask):
            return jax.tree.map(lambda leaf: fn(leaf, start), node.parts[number])
        return fn(node, 0)

    return jax.tree.map(convert, tree, is_leaf=_is_per_task)


def of_group(data: FederatedData, number: int, group: Group) -> FederatedData:
    """The data of the agents of one task alone.

    Args:
      data: of all tasks' agents.
      number: of the task.
      group: its agents.
    """
    return of_task(
        lambda leaf, first: leaf[group.start - first : group.stop - first],
        data,
        number,
        group.start,
    )


def in_task(
    fn: Callable[[Array, int, Any], Array],
    tree: PyTree,
    number: int,
    start: int,
    new: PyTree,
) -> PyTree:
    """The tree of all tasks with the leaves of one task changed.

    Args:
      fn: `(leaf, number of its first agent, new leaf) -> leaf`.
      tree: of all tasks.
      number: of the task.
      start: its first agent.
      new: a tree of that task, as from `of_task`.
    """

    def convert(node: PyTree, new: PyTree) -> PyTree:
        if not isinstance(node, PerTask):
            return fn(node, 0, new)
        parts = list(node.parts)
        parts[number] = jax.tree.map(
            lambda leaf, new: fn(leaf, start, new), parts[number], new
        )
        return PerTask(tuple(parts))

    return jax.tree.map(convert, tree, new, is_leaf=_is_per_task)


def over_groups(
    fn: Callable[..., Array], starts: Sequence[int], tree: PyTree, *others: PyTree
) -> PyTree:
    """Changes all leaves of a tree of all tasks.

    Args:
      fn: `(group, number of its first agent, leaf, *others) -> leaf`, with the group
        `COMMON` or `OWN`.
      starts: first agent of every task.
      tree: of all tasks.
      *others: trees like it.
    """

    def convert(node: PyTree, *more: PyTree) -> PyTree:
        if not isinstance(node, PerTask):
            return fn(COMMON, 0, node, *more)
        parts = zip(starts, node.parts, *(other.parts for other in more), strict=True)
        return PerTask(
            tuple(
                jax.tree.map(functools.partial(fn, OWN, start), part, *same)
                for start, part, *same in parts
            )
        )

    return jax.tree.map(convert, tree, *others, is_leaf=_is_per_task)


def leaf_groups(tree: PyTree, number: int) -> PyTree:
    """Of every leaf of a task: `COMMON`, or `OWN` if only this task has it."""

    def convert(node: PyTree) -> PyTree:
        if isinstance(node, PerTask):
            return jax.tree.map(lambda _: OWN, node.parts[number])
        return COMMON

    return jax.tree.map(convert, tree, is_leaf=_is_per_task)


def _is_per_task(node: PyTree) -> bool:
    return isinstance(node, PerTask)
