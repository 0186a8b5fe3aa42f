"""Which partial model owns each parameter, and who averages it.

A scheme's cells, and the wiring of a network, give every parameter an owner; equal
owners form the classes of `exchange.owner_classes`.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.owner_classes import Block, MixPlan, OwnerClass
from p2pjax.partial import placement, schemes
from p2pjax.partial.schemes import Scheme
from p2pjax.paths import leaves_with_paths
from p2pjax.types import ABSENT, LOCAL, Array, Cells, InputError, PyTree, Wiring

NEUTRAL = -3  # a cell that has no say in who owns the parameters attached to it


def mix_plan(scheme: Scheme, cells: Cells, wiring: Wiring, params: PyTree) -> MixPlan:
    """Owner classes of a scheme.

    Args:
      scheme: the partial models and their dependencies.
      cells: model of every cell, aligned (`placement.align`).
      wiring: which part's cells lie along which axis of which leaf. The highest part
        of a leaf is the one it belongs to, the others are read.
      params: parameters of ONE agent, or their shapes.
    """
    below = schemes.dependency_closure(scheme.depends, len(scheme.models))
    placement.check_cells(cells, below)
    owners = _Owners(below, scheme.cross_model)
    if scheme.neutral_input:
        cells = (np.full_like(cells[0], NEUTRAL), *cells[1:])
    sources = placement.readable(cells)
    found: dict[bytes, tuple[np.ndarray, list[Block]]] = {}
    for index, (path, leaf) in enumerate(leaves_with_paths(params)):
        axes = _cell_axes(path, leaf.shape, wiring, cells)
        spans = [
            [(0, length)]
            if part is None
            else list(placement.runs(np.concatenate([cells[part], sources[part]])))
            for part, length in zip(axes, leaf.shape, strict=True)
        ]
        for spans_of_block in itertools.product(*spans):
            start = tuple(first for first, _ in spans_of_block)
            stop = tuple(last for _, last in spans_of_block)
            owner = _owner(axes, start, cells, sources, owners)
            blocks = found.setdefault(owner.tobytes(), (owner, []))[1]
            blocks.append(Block(index, start, stop))
    return MixPlan(
        tuple(OwnerClass(owner, tuple(blocks)) for owner, blocks in found.values())
    )


def lowest_owner(below: np.ndarray, cross_model: bool) -> np.ndarray:
    """Owner of a parameter between cells of models a and b: table `[M + 1, M + 1]`.

    The last row and column stand for local cells. Models of which neither is lower
    leave the parameter local or, with `cross_model`, to the pair, numbered from M.
    """
    num_models = len(below)
    table = np.full((num_models + 1, num_models + 1), LOCAL)
    pair_ids = itertools.count(num_models)
    for a in range(num_models):
        table[a, a] = a
        for b in range(a):
            if below[a, b] or below[b, a]:
                owner = a if below[a, b] else b
            else:
                owner = next(pair_ids) if cross_model else LOCAL
            table[a, b] = table[b, a] = owner
    return table


def presence(
    cells: Cells, wiring: Wiring, params: PyTree, *, on_device: bool = False
) -> PyTree:
    """Which parameters each agent has: bools broadcastable to leaves `[N, ...]`.

    Args:
      cells: model of every cell, aligned.
      wiring: which part's cells lie along which axis of which leaf.
      params: parameters of ONE agent, or their shapes.
      on_device: whether to compute it there, inside of a program.
    """
    sources = placement.readable(cells)
    numpy = jnp if on_device else np

    def of_leaf(path: str, leaf: PyTree) -> Array:
        axes = _cell_axes(path, leaf.shape, wiring, cells)
        result = numpy.ones((len(cells[0]),) + (1,) * len(axes), bool)
        for axis, part in enumerate(axes):
            if part is not None:
                held = cells if part == _held_part(axes) else sources
                shape = np.ones(len(axes) + 1, int)
                shape[[0, axis + 1]] = held[part].shape
                result = result & (held[part] != ABSENT).reshape(shape)
        return result

    arrays = [of_leaf(path, leaf) for path, leaf in leaves_with_paths(params)]
    return jax.tree.unflatten(jax.tree.structure(params), arrays)


def permute_cells(
    params: PyTree, order: Cells, wiring: Wiring, *, inverse: bool = False
) -> PyTree:
    """Reorders the cells of stacked parameters: column c takes what was `order[n, c]`.

    With `inverse`, aligned parameters go back to each agent's own order.

    Args:
      params: leaves `[N, ...]`.
      order: column of every cell, of every part `[N, n]`.
      wiring: which part's cells lie along which axis of which leaf.
      inverse: whether to undo it.
    """
    leaves = []
    for path, leaf in leaves_with_paths(params):
        for axis, part in enumerate(wiring[path], start=1):
            if part is not None:
                columns = np.argsort(order[part]) if inverse else order[part]
                shape = np.ones(np.ndim(leaf), int)
                shape[[0, axis]] = columns.shape
                leaf = np.take_along_axis(leaf, columns.reshape(shape), axis)
        leaves.append(leaf)
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def check_wiring(wiring: Wiring, params: PyTree) -> int:
    """Refuses the wiring of another network; returns the number of its parts.

    Args:
      wiring: which part's cells lie along which axis of which leaf.
      params: parameters of ONE agent, or their shapes.
    """
    paths = {path for path, _ in leaves_with_paths(params)}
    if set(wiring) != paths:
        raise InputError(
            "Need the wiring of every leaf of the network and of no other, got "
            f"{sorted(set(wiring) ^ paths)} in one of the two only: take the wiring of "
            "this network."
        )
    parts = {part for axes in wiring.values() for part in axes if part is not None}
    if parts != set(range(len(parts))):
        raise InputError(
            f"Need a wiring whose parts are numbered from 0, got {sorted(parts)}: "
            "number the input 0 and the parts behind it one after the other."
        )
    return len(parts)


def check_parts(cells: Cells, wiring: Wiring) -> None:
    """Refuses agents that lack a whole part, unless the network is a chain of layers.

    Dense layers (`nn.mlp`) pass their input on where they are absent;
    convolutions, recurrent units, heads and feed-forward units cannot.
    """
    chain = {axes for part in range(len(cells)) for axes in ((part,), (part - 1, part))}
    if chain.issuperset(wiring.values()):
        return
    for part, models in enumerate(cells):
        lacking = np.flatnonzero(placement.lacks_part(models)).tolist()
        if lacking:
            raise InputError(
                f"Need at least one cell of every part in every agent, got none of "
                f"part {part} in agents {lacking}: only the layers of an MLP can be "
                "left out."
            )


def _cell_axes(
    path: str,
    shape: tuple[int, ...],
    wiring: Wiring,
    cells: Cells,
) -> tuple[int | None, ...]:
    axes = wiring.get(path)
    if axes is None or len(axes) != len(shape):
        raise InputError(
            f"Need the wiring of every leaf, one entry per axis, got {axes} for "
            f"{path} of shape {shape}."
        )
    for part, length in zip(axes, shape, strict=True):
        if part is not None and length != cells[part].shape[1]:
            raise InputError(
                f"Layouts do not add up: {path} of shape {shape} has an axis of "
                f"{length} for part {part}, whose layout has {cells[part].shape[1]} "
                "cells."
            )
    return axes


def _held_part(axes: tuple[int | None, ...]) -> int:
    return max(part for part in axes if part is not None)


def _owner(
    axes: tuple[int | None, ...],
    start: tuple[int, ...],
    cells: Cells,
    sources: Cells,
    owners: "_Owners",
) -> np.ndarray:
    """Owner `[N]` of the parameters in the block that begins at `start`.

    What lies along no cells, such as one slope of all activations, is attached to all.
    """
    if all(part is None for part in axes):
        attached = np.concatenate(cells, axis=1)
        return _shared(np.where(attached == ABSENT, NEUTRAL, attached), owners)
    columns = []
    for part, column in zip(axes, start, strict=True):
        if part is not None:
            held = cells if part == _held_part(axes) else sources
            models = held[part][:, column]
            columns.append(np.where(models == ABSENT, LOCAL, models))
    return _shared(np.stack(columns, axis=1), owners)


def _shared(attached: np.ndarray, owners: "_Owners") -> np.ndarray:
    """Owner `[N]` of parameters that cells of these models `[N, ...]` have."""
    rows, of_agent = np.unique(attached, axis=0, return_inverse=True)
    owner = np.array([owners.owner(row.tolist()) for row in rows])[of_agent.ravel()]
    values, group_sizes = np.unique(owner, return_counts=True)
    is_shared = np.isin(owner, values[group_sizes > 1]) & (owner != NEUTRAL)
    return np.where(is_shared, owner, LOCAL)


class _Owners:
    """Who owns a parameter that cells of several models are attached to."""

    def __init__(self, below: np.ndarray, cross_model: bool) -> None:
        self._below, self._cross_model = below, cross_model
        self._pairs = lowest_owner(below, cross_model)
        self._larger: dict[frozenset[int], int] = {}  # three models or more

    def owner(self, models: list[int]) -> int:
        """The lowest of the models; of several lowest ones, their set or none.

        All models count at once: taken two by two, a model below two others would
        depend on the order of the axes.
        """
        found = set(models) - {NEUTRAL}
        if not found:
            return NEUTRAL
        if LOCAL in found:
            return LOCAL
        lowest = [a for a in found if not any(self._below[b, a] for b in found)]
        if len(lowest) == 1:
            return lowest[0]
        if len(lowest) == 2:
            return int(self._pairs[lowest[0], lowest[1]])
        if not self._cross_model:
            return LOCAL
        first = max(len(self._below), int(self._pairs.max(initial=0)) + 1)
        key = frozenset(lowest)
        return self._larger.setdefault(key, first + len(self._larger))
