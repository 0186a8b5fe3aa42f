"""A scheme, ready for stacked networks of one shape."""

import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.partial import ownership, placement
from p2pjax.partial.network_cells import NetworkCells, cells_of
from p2pjax.partial.schemes import Scheme
from p2pjax.partial.symmetry import check_absent, check_permutations
from p2pjax.partial.views import Views, restored, viewed
from p2pjax.paths import leaves_with_paths
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.types import (
    Cells,
    InputError,
    Key,
    Layout,
    PyTree,
    Variables,
    Wiring,
)


class SharingPlan(NamedTuple):
    """A scheme, ready for stacked networks of one shape."""

    cells: Cells  # aligned
    order: Cells  # aligned column -> the agent's own column
    wiring: Wiring  # of viewed parameters
    plan: MixPlan  # likewise
    views: Views = MappingProxyType({})
    gives_masks: bool = False  # of absent cells to the network, which may silence them
    masks_updates: bool = False  # keeps the parameters of absent cells at 0
    rates: tuple[float, ...] = ()  # of each model; () where all are 1
    # of each model that has its own, None of others
    drift_thresholds: tuple[float | None, ...] = ()


def known_cells(
    task: Task, wiring: Wiring | NetworkCells | None = None
) -> Callable[[], Wiring | NetworkCells]:
    """How to find the cells of a task's network, once and when they are first needed.

    Args:
      task: of any network; those of the package know their cells.
      wiring: of its parameters, for those who know it; None: it is found by tracing.
    """
    network, example = task.network, task.example
    known = task.wiring if wiring is None else wiring
    if known is None and (network is None or example is None):
        raise InputError(
            "Need to know the cells of the network for partial averaging: make the "
            "task of a network, or give the wiring, which part's cells lie along which "
            "axis of which leaf."
        )

    @functools.cache
    def cells() -> Wiring | NetworkCells:
        if known is not None:
            return known
        assert network is not None and example is not None
        found = cells_of(network, example)
        check_permutations(found, task)
        return found

    return cells


def compile_scheme(
    scheme: Scheme, wiring: Wiring | NetworkCells, task: Task
) -> SharingPlan:
    """Who owns what when the agents' networks are those of `task`.

    Build the task's network with `placement.widths(align(attach(scheme))[0])`. Networks
    of the package silence the cells that an agent does not have; of other networks
    their parameters are 0 and stay so, which is the same where no mean runs over these
    cells.

    Args:
      scheme: networks of all agents and their partial models.
      wiring: which part's cells lie along which axis of which leaf, `Task.wiring`, or
        what `cells_of` found.
      task: whose network it is.

    Example:
      >>> import p2pjax as pj
      >>> task = pj.classification(pj.nn.MLP((32, 10)), (64,))
      >>> scheme = pj.partial.level(0.75)((64, 32, 10), 4)
      >>> sharing = pj.partial.compile_scheme(scheme, task.wiring, task)
      >>> [int((cells >= 0).sum()) for cells in sharing.cells]  # shared, of 4 agents
      [256, 96, 40]
    """
    found: NetworkCells | None = None
    views: Views = {}
    if isinstance(wiring, NetworkCells):
        found, wired, views = wiring, wiring.wiring, wiring.views
    else:
        wired = wiring
    attached = placement.attach(scheme)
    shapes = viewed(shapes_of(task).params, views)
    num_parts = ownership.check_wiring(wired, shapes)
    if num_parts != len(attached):
        raise InputError(
            f"Need a wiring of the {len(attached)} parts that the networks of the "
            f"scheme have, got one of {num_parts}: take the wiring of this network."
        )
    ownership.check_parts(attached, wired)
    cells, order = placement.align(attached)
    is_known = task.wiring == wired  # a network of the package
    has_absent = bool(placement.cell_masks(cells))
    if found and has_absent and not is_known:
        check_absent(found, task, cells)
    rates = tuple(model.rate for model in scheme.models)
    return SharingPlan(
        cells,
        order,
        wired,
        ownership.mix_plan(scheme, cells, wired, shapes),
        views,
        gives_masks=has_absent and (is_known or not found),
        masks_updates=has_absent and not is_known,
        rates=rates if any(rate != 1 for rate in rates) else (),
        drift_thresholds=tuple(model.drift_threshold for model in scheme.models),
    )


def update_rates(sharing: SharingPlan, params: PyTree) -> PyTree:
    """Factor of each agent's update of each parameter; None where all are 1.

    What is local, or shared across models that do not depend on each other, has 1.

    Args:
      sharing: whose models have rates.
      params: leaves `[N, ...]`, or their shapes.
    """
    if not sharing.rates:
        return None
    known = np.array([*sharing.rates, 1.0])  # the last one of all other owners
    parts = viewed(params, sharing.views, is_stacked=True)
    leaves, structure = jax.tree.flatten(parts)
    factors = [jnp.ones(leaf.shape, leaf.dtype) for leaf in leaves]
    for owner, blocks in sharing.plan.classes:
        of_model = (owner >= 0) & (owner < len(sharing.rates))
        rate = known[np.where(of_model, owner, -1)]  # [N]
        for leaf, start, stop in blocks:
            at = (slice(None), *map(slice, start, stop))
            factor = jnp.asarray(rate, factors[leaf].dtype)
            factor = factor.reshape((-1,) + (1,) * len(start))
            factors[leaf] = factors[leaf].at[at].set(factor)
    factors = jax.tree.unflatten(structure, factors)
    return restored(factors, params, sharing.views, is_stacked=True)


def layout_of(wiring: Wiring | NetworkCells, task: Task) -> Layout:
    """Cells of every part of a task's network, the input first.

    Args:
      wiring: which part's cells lie along which axis of which leaf.
      task: whose network it is.
    """
    if isinstance(wiring, NetworkCells):
        return wiring.layout
    sizes: dict[int, int] = {}
    shapes = shapes_of(task).params
    ownership.check_wiring(wiring, shapes)
    for path, leaf in leaves_with_paths(shapes):
        for part, length in zip(wiring.get(path, ()), leaf.shape, strict=False):
            if part is not None:
                sizes[part] = length
    return tuple(sizes[part] for part in range(len(sizes)))


def held_parameters(sharing: SharingPlan, params: PyTree) -> PyTree:
    """Which parameters each agent has: bools of the shapes `[N, ...]` of the leaves.

    Args:
      sharing: who has which cells.
      params: leaves `[N, ...]`.
    """
    one = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape[1:], p.dtype), params)
    shapes = viewed(one, sharing.views)
    present = ownership.presence(sharing.cells, sharing.wiring, shapes, on_device=True)
    num_agents = len(sharing.cells[0])
    whole = jax.tree.map(
        lambda has, leaf: jnp.broadcast_to(has, (num_agents, *leaf.shape)),
        present,
        shapes,
    )
    return restored(whole, params, sharing.views, is_stacked=True)


def initial_variables(
    key: Key, task: Task, sharing: SharingPlan, shared_init: bool
) -> Variables:
    """Stacked networks; parameters that an agent does not have are zero.

    Args:
      key: of the weights.
      task: whose network it is.
      sharing: who has which cells.
      shared_init: whether all agents start from the same weights.
    """
    size = len(sharing.cells[0])
    if shared_init:
        one = task.init(key)
        params, stats = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), one
        )
    else:
        params, stats = jax.vmap(task.init)(jax.random.split(key, size))
    if sharing.gives_masks or sharing.masks_updates:
        present = held_parameters(sharing, params)
        params = jax.tree.map(lambda p, has: jnp.where(has, p, 0), params, present)
    if sharing.gives_masks:
        masks = placement.cell_masks(sharing.cells)
        stats = stats | {"cells": jax.tree.map(jnp.asarray, masks)}
    return Variables(params, stats)
