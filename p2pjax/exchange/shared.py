"""What agents send each other: parameters and batch-norm statistics, or a part of them.

Optimizer states, learning rates, momenta and random states never leave an agent, nor
does any collection but `batch_stats`, of which only floating-point leaves are sent.

Which leaves stay is said by regular expressions of whole paths, such as
`params/dense/.*`, or by one of the rules for networks with batch norm that Sajina
(2025) compares. Where partial models say what is sent (`partial.slices`), parameters
are cut from leaves, and statistics stay.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import owner_classes
from p2pjax.exchange.owner_classes import Block, MixPlan, OwnerClass
from p2pjax.paths import check_patterns, leaves_with_paths
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.types import LOCAL, Array, InputError, PyTree, Variables

STATISTICS = "batch_stats"


class NormRule(NamedTuple):
    """What of the normalisation layers stays with its agent."""

    name: str
    parameters: bool  # scale and bias too, not only statistics


FULL: tuple[str, ...] = ()  # everything is sent
SILO_BN = NormRule("SiloBN", parameters=False)  # Andreux et al. 2020
FED_BN = NormRule("FedBN", parameters=True)  # Li et al. 2021

Local = Sequence[str] | NormRule  # what is not sent

SliceFn = Callable[[int], MixPlan]  # number of agents -> who shares which parameters

Sharing = Sequence[str] | SliceFn  # patterns of leaves that stay, or slices


def local_paths(task: Task, local: Local) -> tuple[str, ...]:
    """Regular expressions of the leaves that stay; what matches nothing is refused.

    Args:
      task: whose network it is.
      local: patterns of whole paths, `SILO_BN` or `FED_BN`.
    """
    if isinstance(local, str):
        raise InputError(
            f"Need a sequence of patterns of leaves that stay, got the string "
            f"'{local}': write ('{local}',)."
        )
    if not isinstance(local, NormRule) and (
        callable(local) or any(not isinstance(pattern, str) for pattern in local)
    ):
        raise InputError(
            "Need patterns of whole leaves that stay, because agents of this method "
            "send each other whole leaves, got something else: partial models are for "
            "partial_averaging, and for the argument scheme of methods that have it."
        )
    if not isinstance(local, NormRule) and not local:
        return ()
    shapes = shapes_of(task)
    paths = [path for path, _ in leaves_with_paths(shared_leaves(shapes))]
    if not isinstance(local, NormRule):
        check_patterns(local, paths, "leaves that stay with their agents")
        return tuple(local)
    patterns = [f"{STATISTICS}/.*"] if shapes.stats.get(STATISTICS) else []
    if local.parameters:
        patterns += [f"params/{re.escape(norm)}(/.*)?" for norm in sorted(task.norm)]
    if not patterns:
        raise InputError(
            f"Need a network with normalisation for {local.name}, got one without: "
            "add batch norm, or share everything (FULL)."
        )
    return tuple(patterns)


def shared_leaves(variables: Variables) -> PyTree:
    """The leaves that travel."""
    statistics = variables.stats.get(STATISTICS)
    message = {"params": variables.params}
    if statistics is None:
        return message
    return message | {STATISTICS: jax.tree.map(_if_floating, statistics)}


def with_shared_leaves(variables: Variables, message: PyTree) -> Variables:
    """Variables with the leaves that travelled replaced."""
    if STATISTICS not in message:
        return variables._replace(params=message["params"])
    statistics = jax.tree.map(
        lambda new, old: old if new is None else new,
        message[STATISTICS],
        variables.stats[STATISTICS],
        is_leaf=lambda leaf: leaf is None,
    )
    return Variables(message["params"], {**variables.stats, STATISTICS: statistics})


def _if_floating(leaf: PyTree) -> PyTree:
    return leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else None


def sharing_plan(variables: Variables, local: Sharing) -> MixPlan:
    """Owner classes of stacked models of which some parts stay with their agents.

    Args:
      variables: leaves `[N, ...]`.
      local: regular expressions of whole paths, `local_paths`, or slices.
    """
    message = shared_leaves(variables)
    size = jax.tree.leaves(message)[0].shape[0]
    one_agent = jax.eval_shape(lambda m: jax.tree.map(lambda x: x[0], m), message)
    return message_plan(size, one_agent, local)


def message_plan(num_agents: int, message: PyTree, local: Sharing) -> MixPlan:
    """As `sharing_plan`, of a message.

    Args:
      num_agents: N.
      message: `shared_leaves` of ONE agent, or its shapes.
      local: regular expressions of whole paths, or slices.
    """
    if not callable(local):
        return owner_classes.whole_model(num_agents, message, local)
    plan = local(num_agents)
    statistics = jax.tree.leaves(message.get(STATISTICS, ()))
    if not statistics:
        return plan
    first = len(statistics)  # of the parameters, which come behind them
    moved = [
        c._replace(blocks=tuple(b._replace(leaf=first + b.leaf) for b in c.blocks))
        for c in plan.classes
    ]
    stay = tuple(
        Block(leaf, (0,) * len(values.shape), tuple(values.shape))
        for leaf, values in enumerate(statistics)
    )
    owner = np.full(len(plan.classes[0].owner), LOCAL)
    return MixPlan((*moved, OwnerClass(owner, stay)))


def message_size(plan: MixPlan) -> int:
    """Parameters in one message."""
    return sum(c.size for c in plan.classes if c.is_shared)


def shared_leaf_indices(plan: MixPlan) -> set[int]:
    """Numbers of the leaves that are sent, in part or whole."""
    return {b.leaf for c in plan.classes if c.is_shared for b in c.blocks}


def where_sent(plan: MixPlan, sent: PyTree, kept: PyTree) -> PyTree:
    """As `where_shared`, also within leaves of which agents send a part.

    Args:
      plan: who shares what.
      sent: leaves `[N, ...]`.
      kept: leaves `[N, ...]`.
    """
    news, (olds, structure) = jax.tree.leaves(sent), jax.tree.flatten(kept)
    found = list(olds)
    for owner, blocks in (c for c in plan.classes if c.is_shared):
        for leaf, start, stop in blocks:
            is_whole = not any(start) and stop == news[leaf].shape[1:]
            if is_whole and (owner != LOCAL).all():
                found[leaf] = news[leaf]
                continue
            at = (slice(None), *map(slice, start, stop))
            is_sent = (owner != LOCAL).reshape((-1,) + (1,) * len(start))
            part = jnp.where(is_sent, news[leaf][at], olds[leaf][at])
            found[leaf] = jnp.asarray(found[leaf]).at[at].set(part)
    return jax.tree.unflatten(structure, found)


def where_shared(plan: MixPlan, shared: PyTree, kept: PyTree) -> PyTree:
    """`shared` in the parameters that travel, `kept` in the others.

    Args:
      plan: who shares what; what travels is the same for all agents.
      shared: leaves `[N, ...]`, or of ONE agent.
      kept: likewise.
    """
    return with_parts(plan, sent_parts(plan, shared), kept)


def sent_parts(plan: MixPlan, message: PyTree) -> list[Array]:
    """What travels of a message: whole leaves, and what is cut from leaves.

    Args:
      plan: who shares what; what travels is the same for all agents.
      message: leaves `[N, ...]`, or of ONE agent.
    """
    leaves = jax.tree.leaves(message)
    return [
        leaves[block.leaf]
        if _is_whole(block, leaves[block.leaf])
        else leaves[block.leaf][cut(block)]
        for block in _travelling(plan)
    ]


def with_parts(plan: MixPlan, parts: Sequence[Array], kept: PyTree) -> PyTree:
    """A message with what travelled, `kept` in the rest.

    Args:
      plan: who shares what; what travels is the same for all agents.
      parts: `sent_parts` of another message.
      kept: leaves of the shapes of the message.
    """
    found, structure = jax.tree.flatten(kept)
    for block, part in zip(_travelling(plan), parts, strict=True):
        old = found[block.leaf]
        if _is_whole(block, old):
            found[block.leaf] = part
        else:
            found[block.leaf] = jnp.asarray(old).at[cut(block)].set(part)
    return jax.tree.unflatten(structure, found)


def cut(block: Block) -> tuple:
    """Where a block lies in a leaf, whatever axes come first.

    Args:
      block: of one agent's leaf.

    Example:
      >>> cut(Block(0, (0, 2), (4, 3)))
      (Ellipsis, slice(0, 4, None), slice(2, 3, None))
    """
    return (..., *map(slice, block.start, block.stop))


def _travelling(plan: MixPlan) -> list[Block]:
    """In the order of leaves."""
    return sorted(block for c in plan.classes if c.is_shared for block in c.blocks)


def _is_whole(block: Block, leaf: Array) -> bool:
    return not any(block.start) and leaf.shape[leaf.ndim - len(block.stop) :] == (
        block.stop
    )
