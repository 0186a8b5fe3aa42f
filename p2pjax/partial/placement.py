"""Cells of partial models: which model a cell belongs to, and in which column it is.

`attach` gives every cell of every agent its model, `align` puts the same cell of all
agents into the same column, so that an average is one over agents.
"""

import itertools
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from p2pjax.partial.schemes import Scheme, check_dependencies, check_scheme, dashed
from p2pjax.types import ABSENT, LOCAL, Cells, InputError, Layout


def attach(scheme: Scheme) -> Cells:
    """The model of every cell, in each agent's own column order.

    Models without offsets are placed one after the other into the first columns that
    are free in all their members; an agent's remaining cells are local.
    """
    check_scheme(scheme)
    num_agents, num_parts = len(scheme.networks), len(scheme.networks[0])
    cells = []
    for part in range(num_parts):
        own = np.asarray([network[part] for network in scheme.networks])  # [N]
        columns = _placement(
            [model.members for model in scheme.models],
            [model.cells[part] for model in scheme.models],
            num_agents,
        )
        is_hidden = 0 < part < num_parts - 1
        width = int(own.max())
        if is_hidden:  # placed models may need more columns than any agent has cells
            width = max(width, 1 + max(map(_last, columns), default=-1))
        models = np.full((num_agents, width), ABSENT)
        for index, model in enumerate(scheme.models):
            for slot, member in enumerate(model.members):
                where, limit = columns[index], width if is_hidden else own[member]
                if model.offsets is not None:
                    where = model.offsets[slot][part] + np.arange(model.cells[part])
                    limit = own[member]
                _claim(models[member], where, limit, index, own[member], member, part)
        for agent in range(num_agents):
            free = np.flatnonzero(models[agent] == ABSENT)
            left = own[agent] - (width - len(free))
            models[agent, free[:left]] = LOCAL
        cells.append(models)
    return tuple(cells)


def check_cells(cells: Cells, below: np.ndarray) -> None:
    """Refuses cells whose models are incomplete or differ between agents."""
    num_models = len(below)
    sizes = np.asarray(  # [N, parts, M]
        [
            [np.bincount(row[row >= 0], minlength=num_models) for row in rows]
            for rows in zip(*cells, strict=True)
        ]
    )
    implements = np.any(sizes, axis=1)  # [N, M]
    for model in range(num_models):
        members = np.flatnonzero(implements[:, model])
        check_dependencies(model, members.tolist(), implements, below)
        if len(members) == 0:
            warnings.warn(f"No agent implements model {model}.", stacklevel=2)
            continue
        layouts = sizes[members, :, model]
        if (layouts != layouts[0]).any():
            other = members[(layouts != layouts[0]).any(1)][0]
            raise InputError(
                f"Need the same cells of model {model} in every agent, but agent "
                f"{members[0]} has {dashed(sizes[members[0], :, model])} and agent "
                f"{other} has {dashed(sizes[other, :, model])}."
            )


def align(cells: Cells) -> tuple[Cells, Cells]:
    """Puts the k-th cell of a model into the same column in all agents.

    Cells of one part are interchangeable, so agents may be reordered freely, except in
    the input and the output, whose order the data fixes.

    Returns:
      The aligned cells, and per part the order `[N, n]`: aligned column c of agent n is
      its own column `order[n, c]`.
    """
    aligned: list[np.ndarray] = []
    orders: list[np.ndarray] = []
    for part, models in enumerate(cells):
        num_agents, width = models.shape
        order = np.tile(np.arange(width), (num_agents, 1))
        if not _is_aligned(models):
            if part in (0, len(cells) - 1):
                raise InputError(
                    f"Need the same columns for a model in all agents in part {part}: "
                    "the order of inputs and outputs is given by the data."
                )
            order, models = _reorder(models)
        if part > 0:
            models, order = _make_room(aligned[:part], models, order)
        aligned.append(models)
        orders.append(order)
    return tuple(aligned), tuple(orders)


def _make_room(
    before: list[np.ndarray], models: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Widens a part so that agents without it can pass all of its input on."""
    passed_on = readable(tuple(before))[-1][lacks_part(models)]
    used = np.flatnonzero((passed_on != ABSENT).any(0))
    extra = max(0, 1 + _last(used) - models.shape[1])
    more = np.tile(np.arange(order.shape[1], order.shape[1] + extra), (len(order), 1))
    padding = np.full_like(more, ABSENT)
    return np.hstack([models, padding]), np.hstack([order, more])


def _reorder(models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    num_agents, width = models.shape
    owned = [model for model in np.unique(models) if model >= 0]
    members = [np.flatnonzero((models == model).any(1)) for model in owned]
    sizes = [int((models == model).sum(1).max()) for model in owned]
    columns = _placement(members, sizes, num_agents)
    width = max(width, 1 + max(map(_last, columns)))
    padded = np.full((num_agents, width), ABSENT)
    padded[:, : models.shape[1]] = models
    order = np.full((num_agents, width), -1)
    for model, who, where in zip(owned, members, columns, strict=True):
        for member in who:
            order[member, where] = np.flatnonzero(padded[member] == model)
    for agent in range(num_agents):  # then what is its own, then padding
        rest = np.concatenate(
            [np.flatnonzero(padded[agent] == kind) for kind in (LOCAL, ABSENT)]
        )
        order[agent, order[agent] < 0] = rest
    return order, np.take_along_axis(padded, order, axis=1)


def _is_aligned(models: np.ndarray) -> bool:
    for model in np.unique(models[models >= 0]):
        held = models == model
        columns = held[held.any(1)]  # of its members
        if (columns != columns[0]).any():
            return False
    return True


def _placement(
    members: Sequence[Sequence[int] | np.ndarray], sizes: Sequence[int], num_agents: int
) -> list[np.ndarray]:
    """First fit: columns of every model, free in all of its members."""
    taken = np.zeros((num_agents, 0), bool)
    columns = []
    for who, size in zip(members, sizes, strict=True):
        rows = np.asarray(who, int)
        free = np.flatnonzero(~taken[rows].any(0))
        missing = max(0, size - len(free))
        taken = np.pad(taken, ((0, 0), (0, missing)))
        where = np.concatenate(
            [free[:size], taken.shape[1] - missing + np.arange(missing)]
        )
        taken[np.ix_(rows, where)] = True
        columns.append(where)
    return columns


def _last(columns: np.ndarray) -> int:
    return int(columns[-1]) if len(columns) else -1


def _claim(
    row: np.ndarray,
    where: np.ndarray,
    limit: int,
    model: int,
    own: int,
    agent: int,
    part: int,
) -> None:
    """Gives columns of one agent's part to a model, or says why it cannot."""
    used = int((row != ABSENT).sum()) + len(where)
    if used > own:
        raise InputError(
            f"Layouts do not add up: agent {agent} has {own} cells in part {part}, but "
            f"its partial models need {used} or more; shrink a model or widen the "
            "network."
        )
    if len(where) and (where[0] < 0 or where[-1] >= limit):
        raise InputError(
            f"Model {model} would cover columns {where[0]} to {where[-1]} of part "
            f"{part} of agent {agent}, which has {own} cells: change the offset."
        )
    if (row[where] != ABSENT).any():
        raise InputError(
            f"Model {model} overlaps model {row[where].max()} in part {part} of agent "
            f"{agent}: change one of the offsets."
        )
    row[where] = model


def widths(cells: Cells) -> Layout:
    """Columns of every part of the stacked network, padding included."""
    return tuple(part.shape[1] for part in cells)


def lacks_part(models: np.ndarray) -> np.ndarray:
    """`[N]`: agents that have no cell in this part."""
    return (models == ABSENT).all(1)


def cell_masks(cells: Cells) -> dict[str, dict[str, np.ndarray]]:
    """Collection `cells` of the models: what each agent has, empty if all have all."""
    if not any((part == ABSENT).any() for part in cells):
        return {}
    return {
        f"layer_{part}": {"mask": models != ABSENT, "present": ~lacks_part(models)}
        for part, models in enumerate(cells)
        if part > 0
    }


def readable(cells: Cells) -> Cells:
    """The cells whose output a column carries; a lacking part passes its input on."""
    result = [cells[0]]
    for models in cells[1:]:
        before, lacking = result[-1], lacks_part(models)
        fitted = np.full_like(models, ABSENT)
        shared = min(before.shape[1], models.shape[1])
        fitted[:, :shared] = before[:, :shared]
        result.append(np.where(lacking[:, None], fitted, models))
    return tuple(result)


def runs(models: np.ndarray) -> Iterator[tuple[int, int]]:
    """Consecutive columns with the same model in every agent: (start, stop)."""
    changes = np.flatnonzero((models[:, 1:] != models[:, :-1]).any(0)) + 1
    edges = [0, *changes.tolist(), models.shape[1]]
    return itertools.pairwise(edges)
