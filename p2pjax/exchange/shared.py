"""What agents send each other: parameters and batch-norm statistics, or a part of them.

Optimizer states, learning rates and momenta never leave an agent. Sajina (2025)
compares three rules for networks with batch norm; each is a list of leaves that stay.
"""

from collections.abc import Sequence

import jax

from p2pjax.exchange import owner_classes
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.types import PyTree, Variables

# Regular expressions of whole paths such as params/dense/kernel, for `whole_model`.
FULL: tuple[str, ...] = ()


SILO_BN = ("batch_stats/.*",)  # Andreux et al. 2020: statistics stay


FED_BN = (*SILO_BN, "params/.*norm[^/]*/.*")  # Li et al. 2021: so do scale and bias


def shared_leaves(variables: Variables) -> PyTree:
    """The leaves that travel."""
    statistics = variables.stats.get("batch_stats")
    message = {"params": variables.params}
    return message if statistics is None else message | {"batch_stats": statistics}


def with_shared_leaves(variables: Variables, message: PyTree) -> Variables:
    """Variables with the leaves that travelled replaced."""
    statistics = {k: v for k, v in message.items() if k == "batch_stats"}
    return Variables(message["params"], {**variables.stats, **statistics})


def sharing_plan(variables: Variables, local: Sequence[str]) -> MixPlan:
    """Owner classes of stacked models of which the leaves `local` stay at home."""
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


def where_shared(plan: MixPlan, shared: PyTree, kept: PyTree) -> PyTree:
    """`shared` in the leaves that travel, `kept` in the others."""
    travels = shared_leaf_indices(plan)
    leaves = zip(jax.tree.leaves(shared), jax.tree.leaves(kept), strict=True)
    chosen = [pair[0 if i in travels else 1] for i, pair in enumerate(leaves)]
    return jax.tree.unflatten(jax.tree.structure(kept), chosen)
