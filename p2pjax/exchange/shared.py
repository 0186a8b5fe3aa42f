"""What agents send each other: parameters and batch-norm statistics, or a part of them.

Optimizer states, learning rates, momenta and random states never leave an agent, nor
does any collection but `batch_stats`, of which only floating-point leaves are sent.

Which leaves stay is said by regular expressions of whole paths, such as
`params/dense/.*`, or by one of the rules for networks with batch norm that Sajina
(2025) compares.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.exchange import owner_classes
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.paths import check_patterns, leaves_with_paths
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.types import LOCAL, InputError, PyTree, Variables

STATISTICS = "batch_stats"


class NormRule(NamedTuple):
    """What of the normalisation layers stays with its agent."""

    name: str
    parameters: bool  # scale and bias too, not only statistics


FULL: tuple[str, ...] = ()  # everything is sent
SILO_BN = NormRule("SiloBN", parameters=False)  # Andreux et al. 2020
FED_BN = NormRule("FedBN", parameters=True)  # Li et al. 2021

Local = Sequence[str] | NormRule  # what is not sent


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
            "send each other whole leaves, got something else: cells within leaves are "
            "shared by partial_averaging only."
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


def sharing_plan(variables: Variables, local: Sequence[str]) -> MixPlan:
    """Owner classes of stacked models of which some leaves stay with their agents.

    Args:
      variables: leaves `[N, ...]`.
      local: regular expressions of whole paths, `local_paths`.
    """
    message = shared_leaves(variables)
    size = jax.tree.leaves(message)[0].shape[0]
    one_agent = jax.eval_shape(lambda m: jax.tree.map(lambda x: x[0], m), message)
    return owner_classes.whole_model(size, one_agent, local)


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
    """`shared` in the leaves that travel, `kept` in the others."""
    travels = shared_leaf_indices(plan)
    leaves = zip(jax.tree.leaves(shared), jax.tree.leaves(kept), strict=True)
    chosen = [pair[0 if i in travels else 1] for i, pair in enumerate(leaves)]
    return jax.tree.unflatten(jax.tree.structure(kept), chosen)
