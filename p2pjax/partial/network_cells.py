"""The cells of any network: which axis of which leaf holds the units of which layer.

What Bouchra Pilet, Frey, Taiani (2021), https://hal.science/hal-02373338, ask of a part
(cells that may be exchanged without changing what the network computes) is read off the
network's own operations, as Ainsworth et al. (2023), "Git Re-Basin",
https://arxiv.org/abs/2209.04836, write it down by hand.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from p2pjax.partial.tracing.groups import (
    PARAMS,
    Found,
    Group,
    check_followed,
    find_units,
    is_outer,
    is_part,
)
from p2pjax.partial.tracing.operation import INPUT, OUTPUT
from p2pjax.partial.tracing.terms import Cat, Term, Var, resolved, size_of
from p2pjax.partial.views import Piece, Views
from p2pjax.tasks.network import as_network
from p2pjax.types import Array, InputError, Layout, Wiring

NUM_EXAMPLES = 3  # of the batch that is traced

# Length and what lies along it: a part, inputs or outputs to be numbered, or nothing.
Factor = tuple[int, int | Var | None]


class NetworkCells(NamedTuple):
    """Which axis of which leaf holds the units of which part of a network.

    Attributes:
      wiring: leaf path -> part along each axis of its view. Part 0 is the input or,
        where inputs are looked up, the embedding; the last part is the output.
      layout: units of each part.
      groups: all units that belong together, also those of no part, such as the
        dimensions of a head.
      views: leaves that have several parts along one axis, and how they are reshaped or
        cut for the wiring.
    """

    wiring: Wiring
    layout: Layout
    groups: tuple[Group, ...]
    views: Views


def cells_of(network: Any, example: Array | jax.ShapeDtypeStruct) -> NetworkCells:
    """Finds by tracing which axis of which leaf holds the units of which layer.

    Dense layers, convolutions and what is flattened behind them, normalisation,
    embeddings, gates of recurrent layers, attention heads, sums and concatenations of
    layers are followed, in training and in evaluation. A network with an operation that
    tells the units of a layer apart in another way is refused, with the operation's
    name and line. Only shapes are looked at: no backend starts.

    Args:
      network: a Linen module, a constructor of an NNX network (`lambda rngs:
        Net(rngs)`), or a `Network` of plain functions.
      example: a batch of inputs `[B, ...]`, or its shape and dtype.

    Example:
      >>> import flax.linen as nn, jax.numpy as jnp
      >>> network = nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(3)])
      >>> found = cells_of(network, jnp.ones((1, 5)))
      >>> found.layout
      (5, 16, 3)
      >>> found.wiring["layers_0/kernel"], found.wiring["layers_2/kernel"]
      ((0, 1), (1, 2))
    """
    if not hasattr(example, "shape") or not example.shape:
        raise InputError(
            "Need a batch of inputs [B, ...] or its jax.ShapeDtypeStruct as the "
            f"example, got {type(example).__name__}: give one array."
        )
    dtype = jax.dtypes.canonicalize_dtype(example.dtype)
    one = jax.ShapeDtypeStruct((1, *example.shape[1:]), dtype)
    batch = jax.ShapeDtypeStruct((NUM_EXAMPLES, *example.shape[1:]), dtype)
    found = find_units(as_network(network, one), batch)
    check_followed(found)
    return _numbered(found)


def _numbered(found: Found) -> NetworkCells:
    hidden = [var for var in found.variables if is_part(found, var)]
    names: dict[Var, int | Var] = {var: number for number, var in enumerate(hidden)}
    for end in (INPUT, OUTPUT):
        names |= {var: var for var in found.variables if is_outer(found, var, end)}
    axes = {
        path.removeprefix(PARAMS): [_segments(path, term, names) for term in terms]
        for path, terms in found.leaves.items()
        if path.startswith(PARAMS)
    }
    inputs = _run(found, axes, INPUT)
    outputs = _run(found, axes, OUTPUT)
    if not outputs or not (inputs or hidden):
        raise InputError(
            "Need outputs along an axis of the parameters, and inputs or hidden units "
            f"before them, got parameters {sorted(axes)} without: end the network in a "
            "layer with a weight for each output."
        )
    first = 1 if inputs else 0
    last = first + len(hidden)
    wiring: Wiring = {}
    views: dict[str, tuple[Piece, ...]] = {}
    for path, segments in axes.items():
        pieces = []
        chosen = [range(len(of_axis)) for of_axis in segments]
        for numbers in itertools.product(*chosen):
            picked = [of[n] for of, n in zip(segments, numbers, strict=True)]
            factors = [
                factor
                for _, _, own in picked
                for factor in _named(own, inputs, outputs, first, last)
            ]
            start = tuple(begin for begin, _, _ in picked)
            stop = tuple(end for _, end, _ in picked)
            pieces.append(Piece(start, stop, tuple(length for length, _ in factors)))
            name = (
                path
                if math.prod(map(len, chosen)) == 1
                else f"{path}/{len(pieces) - 1}"
            )
            wiring[name] = tuple(part for _, part in factors)  # type: ignore[misc]
        whole = tuple(map(size_of, found.leaves[PARAMS + path]))
        if len(pieces) > 1 or pieces[0].shape != whole:
            views[path] = tuple(pieces)
    layout = (
        *([_product(inputs)] if inputs else []),
        *(var.size for var in hidden),
        _product(outputs),
    )
    part_of: dict[Var, int] = {var: first + n for n, var in enumerate(hidden)}
    part_of |= dict.fromkeys(inputs, 0) | dict.fromkeys(outputs, last)
    number_of = {var: number for number, var in enumerate(found.variables)}
    groups = tuple(
        Group(
            var.size,
            found.places[var],
            dict(var.marks.fixed),
            dict(var.marks.mixed),
            frozenset(var.readers),
            number_of[found.inside[var]] if var in found.inside else None,
            part_of.get(var),
        )
        for var in found.variables
    )
    return NetworkCells(wiring, layout, groups, views)


def _product(variables: Sequence[Var]) -> int:
    return math.prod(var.size for var in variables)


# Of an axis: where a segment starts and stops, and its factors.
Segment = tuple[int, int, list[Factor]]


def _segments(path: str, term: Term, names: dict[Var, int | Var]) -> list[Segment]:
    """Different units one after the other are segments of their own."""
    term = resolved(term)
    whole = _factors(path, term, names)
    if whole is not None:
        return [(0, size_of(term), whole)]
    assert isinstance(term, Cat)
    found, begin = list[Segment](), 0
    for part in term.parts:
        end = begin + size_of(part)
        factors = _factors(path, part, names)
        if factors is None:
            raise _nested(path)
        if found and factors == [(end - begin, None)] == found[-1][2]:
            begin = found.pop()[0]
        if factors[0][1] is None and len(factors) == 1:
            factors = [(end - begin, None)]
        found.append((begin, end, factors))
        begin = end
    return found


def _factors(path: str, term: Term, names: dict[Var, int | Var]) -> list[Factor] | None:
    """Of an axis; None where different units lie one after the other."""
    term = resolved(term)
    if isinstance(term, Var):
        return [(term.size, names.get(term))]
    own = [_factors(path, part, names) for part in term.parts]
    if isinstance(term, Cat):
        if all(factors and _is_plain(factors) for factors in own):
            return [(size_of(term), None)]
        if own[0] is None or any(factors != own[0] for factors in own):
            return None
        return _merged([(len(own), None), *own[0]])
    if None in own:
        raise _nested(path)
    factors = [factor for found in own if found for factor in found]
    return _merged([factor for factor in factors if factor[0] > 1])


def _nested(path: str) -> InputError:
    return InputError(
        f"Need different units of {path} one after the other along an axis of their "
        "own, got them inside of a flatten: concatenate behind it, or give a wiring."
    )


def _is_plain(factors: Sequence[Factor]) -> bool:
    return all(name is None for _, name in factors)


def _merged(factors: Sequence[Factor]) -> list[Factor]:
    """Neighbours without a name become one; of these, single ones go."""
    merged: list[Factor] = []
    for length, name in factors:
        if merged and name is None and merged[-1][1] is None:
            length *= merged.pop()[0]
        merged.append((length, name))
    kept = [factor for factor in merged if factor != (1, None)]
    return kept or [(1, None)]


def _outer_runs(
    found: Found, axes: dict[str, list[list[Segment]]], end: str
) -> Iterator[tuple[Var, ...]]:
    """Neighbouring inputs (outputs) along axes of parameters, such as pixels."""
    for segments in axes.values():
        for _, _, factors in itertools.chain.from_iterable(segments):
            for is_end, group in itertools.groupby(
                (name for _, name in factors),
                lambda name: isinstance(name, Var) and is_outer(found, name, end),
            ):
                if is_end:
                    yield tuple(var for var in group if isinstance(var, Var))


def _run(
    found: Found, axes: dict[str, list[list[Segment]]], end: str
) -> tuple[Var, ...]:
    """What is the input (output) part: the shortest run, the first of equal ones."""
    order = {var: number for number, var in enumerate(found.variables)}

    def rank(run: tuple[Var, ...]) -> tuple[bool, int, list[int]]:
        return _product(run) == 1, len(run), [order[var] for var in run]

    return min(set(_outer_runs(found, axes, end)), key=rank, default=())


def _named(
    factors: Sequence[Factor],
    inputs: tuple[Var, ...],
    outputs: tuple[Var, ...],
    first: int,
    last: int,
) -> list[Factor]:
    """Factors with the numbers of their parts."""
    named: list[Factor] = []
    at = 0
    while at < len(factors):
        length, name = factors[at]
        for run, part in ((inputs, 0), (outputs, last)):
            if run and tuple(n for _, n in factors[at : at + len(run)]) == run:
                named.append((_product(run), part))
                at += len(run)
                break
        else:
            named.append((length, first + name if isinstance(name, int) else None))
            at += 1
    return _merged(named)


def moved(
    leaves: Mapping[str, Any], group: Group, order: Sequence[int] | np.ndarray
) -> dict[str, Any]:
    """Arrays by path after the units of a group were put into another order.

    Args:
      leaves: by path, such as `params/Dense_0/kernel`.
      group: whose units move.
      order: column u takes what was unit `order[u]`.
    """
    result = dict(leaves)
    for place in group.places:
        leaf = np.asarray(result[place.leaf])
        columns = np.arange(leaf.shape[place.axis])
        columns[place.columns] = place.columns[np.asarray(order)]
        result[place.leaf] = np.take(leaf, columns, axis=place.axis)
    return result
