"""Partial models: which cells of which agents they own, and what they depend on.

Bouchra Pilet, Frey, Taiani (2021), "Simple, efficient and convenient decentralized
multi-task learning for neural networks". An agent's network is cut into slices, each
slice implements one partial model, and a model may depend on others. What a user writes
is here and is checked here; `placement` gives every cell its model and its column,
`owners` goes on from there. All of it is numpy, done once, on the host.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from p2pjax.types import InputError, Layout


class PartialModel(NamedTuple):
    """Cells that several agents implement together; what is left over is local.

    Example:
      >>> PartialModel(cells=(784, 250, 80, 62), members=(0, 1, 2)).offsets is None
      True
    """

    cells: Layout  # how many of every part
    members: tuple[int, ...]  # agents that implement it
    offsets: tuple[Layout, ...] | None = None  # [member][part] first column, or placed
    rate: float = 1.0  # factor of the updates of the parameters that it owns
    drift_threshold: float | None = None  # dynamic averaging; None: the method's own


class Scheme(NamedTuple):
    """The networks of all agents and the partial models cut out of them.

    Example:
      >>> shared = PartialModel((64, 24, 10), members=(0, 1))
      >>> scheme = Scheme(networks=((64, 32, 10), (64, 40, 10)), models=(shared,))
      >>> check_scheme(scheme)  # what does not fit together is refused
    """

    networks: tuple[Layout, ...]  # per agent; 0 cells: the agent lacks that part
    models: tuple[PartialModel, ...] = ()
    depends: tuple[tuple[int, int], ...] = ()  # (a, b): model a depends on model b
    cross_model: bool = False  # Algorithm 2: average weights between unordered models
    neutral_input: bool = False  # input cells belong to no model


# (cells of every part of the network, number of agents) -> the partial models
SchemeFn = Callable[[Layout, int], Scheme]


def network_layout(text: str) -> Layout:
    """Reads a full network, written as in the paper: `784=300=100=62`."""
    return _parse(text, "=", "a network such as 784=300=100=62")


def model_layout(text: str) -> Layout:
    """Reads a partial model, written as in the paper: `784-250-80-62`."""
    return _parse(text, "-", "a partial model such as 784-250-80-62")


def _parse(text: str, separator: str, what: str) -> Layout:
    fields = text.strip().split(separator)
    if len(fields) < 2 or not all(f.isascii() and f.isdigit() for f in fields):
        raise InputError(f"Need {what}, cells joined by '{separator}', got '{text}'.")
    return tuple(int(field) for field in fields)


def dependency_closure(
    depends: Sequence[tuple[int, int]], num_models: int
) -> np.ndarray:
    """`below[a, b]`: model a depends on b, directly or not. Refuses cycles."""
    below = np.zeros((num_models, num_models), bool)
    for a, b in depends:
        if not (0 <= a < num_models and 0 <= b < num_models):
            raise InputError(
                f"Need dependencies among models 0 to {num_models - 1}, got {a} -> {b}."
            )
        below[a, b] = True
    direct = below.copy()
    for k in range(num_models):
        below |= below[:, k, None] & below[None, k, :]
    cyclic = np.flatnonzero(below.diagonal())
    if cyclic.size:
        raise InputError(
            f"Need dependencies without cycles, but models {cyclic.tolist()} depend on "
            "themselves through the given pairs: remove one of the pairs."
        )
    # An edge a -> b is implied by the others where a path of two or more edges exists.
    implied = direct & (direct.astype(int) @ below.astype(int) > 0)
    for a, b in np.argwhere(implied):
        warnings.warn(f"Dependency {a} -> {b} is implied by the others.", stacklevel=2)
    return below


def check_scheme(scheme: Scheme) -> None:
    """Refuses networks and models that do not fit together."""
    num_agents = len(scheme.networks)
    if num_agents == 0:
        raise InputError("Need the network of at least one agent, got none.")
    num_parts, num_inputs = len(scheme.networks[0]), scheme.networks[0][0]
    for agent, network in enumerate(scheme.networks):
        if network[0] != num_inputs:
            raise InputError(
                f"Need the same inputs for all agents, got {num_inputs} for agent 0 "
                f"and {network[0]} for agent {agent}."
            )
        if (
            len(network) != num_parts
            or min(network) < 0
            or 0 in (network[0], network[-1])
        ):
            raise InputError(
                f"Need networks of {num_parts} parts with inputs and outputs, got "
                f"{'='.join(map(str, network))} for agent {agent} (write 0 for a "
                "hidden part that an agent lacks)."
            )
    implements = np.zeros((num_agents, len(scheme.models)), bool)
    for index, model in enumerate(scheme.models):
        if len(model.cells) != num_parts:
            raise InputError(
                f"Layouts do not add up: model {index} is {dashed(model.cells)}, "
                f"{len(model.cells)} parts, but the networks have {num_parts}."
            )
        outside = [m for m in model.members if not 0 <= m < num_agents]
        if outside:
            raise InputError(
                f"Need members of model {index} among agents 0 to {num_agents - 1}, "
                f"got {outside}: lower the number of members or add agents."
            )
        if min(model.cells) < 0:
            raise InputError(f"Model {index} has a negative number of cells.")
        if len(set(model.members)) < len(model.members):
            raise InputError(f"Model {index} names a member twice: {model.members}.")
        offsets = model.offsets
        if (offsets is None) != (scheme.models[0].offsets is None):
            raise InputError("Need offsets for all models or for none.")
        if offsets is not None and (
            len(offsets) != len(model.members)
            or any(len(offset) != num_parts for offset in offsets)
        ):
            raise InputError(
                f"Need an offset per member and part of model {index}, got "
                f"{offsets} for {len(model.members)} members and {num_parts} parts."
            )
        if not 0 <= model.rate < float("inf"):
            raise InputError(
                f"Need a rate of 0 or more of model {index}, got {model.rate}."
            )
        limit = model.drift_threshold
        if limit is not None and not 0 <= limit < float("inf"):
            raise InputError(
                f"Need a drift_threshold of 0 or more of model {index}, got {limit}."
            )
        if len(model.members) < 2 and (model.rate != 1 or limit is not None):
            what = "rate" if limit is None else "drift_threshold"
            raise InputError(
                f"Need two members or more of a model with a {what} of its own, got "
                f"{len(model.members)} of model {index}: what one agent has is local."
            )
        if len(model.members) < 2:
            who = "Only one agent" if model.members else "No agent"
            warnings.warn(f"{who} implements model {index}.", stacklevel=2)
        implements[list(model.members), index] = True
    below = dependency_closure(scheme.depends, len(scheme.models))
    for index, model in enumerate(scheme.models):
        check_dependencies(index, model.members, implements, below)


def check_dependencies(
    model: int, members: Sequence[int], implements: np.ndarray, below: np.ndarray
) -> None:
    """Refuses members of a model that lack one it depends on.

    Args:
      model: its number.
      members: agents that implement it.
      implements: `[N, M]`.
      below: `[M, M]`, see `dependency_closure`.
    """
    for other in np.flatnonzero(below[model]):
        lacking = [member for member in members if not implements[member, other]]
        if lacking:
            raise InputError(
                f"Model {model} depends on model {other}, but agents {lacking} "
                f"implement {model} and not {other}: add them to the members of "
                f"{other} or drop the dependency."
            )


def dashed(layout: Sequence[int] | np.ndarray) -> str:
    """A partial model as `model_layout` reads it."""
    return "-".join(str(int(cells)) for cells in layout)


def auto(
    network: Layout, shared: Layout, groups: np.ndarray, *, depends: bool = True
) -> Scheme:
    """A global model for all and, for every group, one of all other hidden cells.

    Args:
      network: of every agent.
      shared: cells of the global model.
      groups: `[N]` labels, such as from `find_groups`; who is alone in a group keeps
        its other cells local, and so do all if all are in one.
      depends: whether the models of the groups depend on the global one.

    Example:
      >>> scheme = auto((64, 32, 10), shared=(64, 24, 10), groups=[0, 0, 1, 1, 2])
      >>> [(model.cells, model.members) for model in scheme.models[1:]]
      [((0, 8, 0), (0, 1)), ((0, 8, 0), (2, 3))]
    """
    labels = np.asarray(groups)
    if labels.ndim != 1 or len(labels) < 2:
        raise InputError(
            f"Need one group label for each of two or more agents, got {labels.shape}."
        )
    if len(shared) != len(network) or not any(shared) or any(np.less(network, shared)):
        raise InputError(
            f"Layouts do not add up: the global model {dashed(shared)} must be a part "
            f"of the network {'='.join(map(str, network))}, and not empty."
        )
    rest = (0, *np.subtract(network, shared)[1:-1].tolist(), 0)
    models = [PartialModel(shared, tuple(range(len(labels))))]
    for label in np.unique(labels):
        members = tuple(np.flatnonzero(labels == label).tolist())
        if 1 < len(members) < len(labels) and any(rest):
            models.append(PartialModel(rest, members))
    pairs = tuple((model, 0) for model in range(1, len(models))) if depends else ()
    return Scheme((network,) * len(labels), tuple(models), pairs)
