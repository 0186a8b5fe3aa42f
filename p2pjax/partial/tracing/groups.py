"""Units of a network that are shared, reordered or left out together."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from p2pjax.partial.tracing.operation import (
    CONSTANT,
    INPUT,
    LOOKUP,
    OUTPUT,
    POSITIONS,
    Traced,
    new_axes,
)
from p2pjax.partial.tracing.terms import (
    SLICE,
    Term,
    Var,
    columns_of,
    size_of,
    unify,
    variables_of,
)
from p2pjax.partial.tracing.walk import Walk
from p2pjax.paths import leaves_with_paths
from p2pjax.tasks._network_functions import key_shape
from p2pjax.tasks.network import Network
from p2pjax.types import Array, InputError, Key, PyTree, Variables

PARAMS = "params/"  # begins the paths of parameters


class Place(NamedTuple):
    """Where units lie in an array."""

    leaf: str  # such as `params/Dense_0/kernel` or `batch_stats/BatchNorm_0/mean`
    axis: int
    columns: np.ndarray  # [units, slots]: a flatten or gates have several of a unit


class Group(NamedTuple):
    """Units that are shared, reordered or left out together."""

    size: int
    places: tuple[Place, ...]
    fixed_by: dict[str, str]  # why their order matters, and where; empty: it does not
    mixed_by: dict[str, str]  # what runs over all of them, so that none can be absent
    read_by: frozenset[str]  # leaves of the weights that multiply them
    inside: int | None  # number of the group whose units these belong to, as in a head
    part: int | None  # of the wiring


class Found(NamedTuple):
    """Units along the axes of all arrays of a network, before they are numbered."""

    variables: tuple[Var, ...]  # in the order in which activations carry them
    places: dict[Var, tuple[Place, ...]]
    hidden: frozenset[Var]  # along activations that depend on parameters
    inside: dict[Var, Var]
    leaves: dict[str, tuple[Term, ...]]


def find_units(network: Network, x: jax.ShapeDtypeStruct) -> Found:
    """Walks evaluation and training of a network.

    Args:
      network: made by `as_network`.
      x: shape and dtype of a batch.
    """

    def both(variables: Variables, x: Array, key: Key) -> PyTree:
        trained, stats = network.apply(variables, x, key, True)
        return network.apply(variables, x, None, False)[0], trained, stats

    key = key_shape()
    shapes = jax.eval_shape(network.init, key)
    jaxpr, result = jax.make_jaxpr(both, return_shape=True)(shapes, x, key)
    flat = leaves_with_paths(collections(shapes))
    values = {
        path: Traced(_axes(leaf), has_params=True, leaves=frozenset({path}))
        for path, leaf in flat
    }
    in_order = [values[path] for path, _ in _as_given(shapes)]
    example = Traced(_axes(x, {INPUT: INPUT}), has_input=True)
    walk = Walk()
    walk.seen.append(example)
    results = walk.through(jaxpr, [*in_order, example, Traced((), has_input=True)])
    num_stats = len(jax.tree.leaves(result[2]))
    outputs = results[: len(results) - num_stats]
    for output in outputs:
        for var in _all_of(output.terms):
            var.marks.fixed.setdefault(OUTPUT, OUTPUT)
    old = in_order[len(in_order) - num_stats :]
    for before, after in zip(old, results[len(outputs) :], strict=True):
        for a, b in zip(before.terms, after.terms, strict=True):
            unify(a, b)
    return _found({path: value.terms for path, value in values.items()}, walk.seen)


def collections(variables: Variables) -> dict[str, PyTree]:
    """Parameters and statistics as one tree, as flax has them."""
    return {"params": variables.params, **variables.stats}


def _as_given(variables: Variables) -> list[tuple[str, Any]]:
    """Leaves in the order of the arguments."""
    return [
        (path.partition("/")[2] if path.startswith("stats/") else path, leaf)
        for path, leaf in leaves_with_paths(variables._asdict())
    ]


def _axes(leaf: Any, fixed: dict[str, str] | None = None) -> tuple[Term, ...]:
    terms = new_axes(leaf.shape)
    for var in _all_of(terms):
        var.marks.fixed.update(fixed or {})
    return tuple(terms)


def _all_of(terms: Sequence[Term]) -> list[Var]:
    return [var for term in terms for var in variables_of(term)]


def _found(leaves: dict[str, tuple[Term, ...]], seen: Sequence[Traced]) -> Found:
    order: dict[Var, None] = {}
    together: set[tuple[Var, Var]] = set()
    hidden: set[Var] = set()
    for value in dict.fromkeys(seen):
        here = _all_of(value.terms)
        order |= dict.fromkeys(here)
        together |= {(a, b) for a in here for b in here if a is not b}
        hidden |= set(here) if value.has_params else set()
    order |= dict.fromkeys(var for terms in leaves.values() for var in _all_of(terms))
    places: dict[Var, list[Place]] = {var: [] for var in order}
    shares = dict.fromkeys(order, 0.0)  # of how many axes
    for path, terms in leaves.items():
        for axis, term in enumerate(terms):
            for var in dict.fromkeys(variables_of(term)):
                for columns in columns_of(term, var):
                    places[var].append(Place(path, axis, columns))
                    shares[var] += columns.size / max(1, size_of(term))
    kept = tuple(var for var in order if places[var])
    held = {var: {place.leaf for place in places[var]} for var in kept}

    def container(var: Var) -> Var | None:
        for other in kept:
            if (
                (other, var) in together
                and not other.marks.fixed
                and held[var] <= held[other]
                and shares[var] < shares[other] - 1e-9
            ):
                return other
        return None

    inside = {var: other for var in kept if (other := container(var)) is not None}
    return Found(
        kept,
        {var: tuple(places[var]) for var in kept},
        frozenset(hidden),
        inside,
        leaves,
    )


def is_outer(found: Found, var: Var, end: str) -> bool:
    """Whether these are inputs (`INPUT`) or outputs (`OUTPUT`) along parameters."""
    if not any(place.leaf.startswith(PARAMS) for place in found.places[var]):
        return False
    if end == INPUT:
        is_place = var.size == 1 and POSITIONS in var.marks.fixed
        return INPUT in var.marks.fixed and bool(var.readers) and not is_place
    return OUTPUT in var.marks.fixed and not is_outer(found, var, INPUT)


def is_part(found: Found, var: Var) -> bool:
    """Whether these are hidden units, whose part of the network can be cut."""
    leaves = {p.leaf for p in found.places[var] if p.leaf.startswith(PARAMS)}
    if not leaves or var in found.inside or var not in found.hidden:
        return False
    if set(var.marks.fixed) - {CONSTANT}:
        return False
    return var.size > 1 or len(leaves) > 1


def check_followed(found: Found) -> None:
    """Refuses networks with units of which it is not known what becomes of them."""
    for var in found.variables:
        reasons = list(var.marks.lost.values())
        if not reasons and var in found.hidden and _are_whole_axes(found, var):
            fixed = var.marks.fixed
            if not {INPUT, OUTPUT} & set(fixed):
                kinds = (POSITIONS, LOOKUP, SLICE)
                reasons = [fixed[kind] for kind in kinds if kind in fixed]
            if set(fixed) == {CONSTANT} and not _has_both_sides(found, var):
                reasons = [fixed[CONSTANT]]
        leaves = [p.leaf for p in found.places[var] if p.leaf.startswith(PARAMS)]
        if reasons and leaves:
            raise InputError(
                "Need operations that treat the units of a layer alike, but those of "
                f"{_some(leaves)} go through {' and '.join(reasons)}, which tells them "
                "apart in a way that cannot be followed: write it as products of "
                "matrices, sums and functions of single numbers, or give a wiring."
            )


def _has_both_sides(found: Found, var: Var) -> bool:
    """Whether parameters make these units, and others multiply them."""
    leaves = {place.leaf for place in found.places[var]}
    return var in found.inside or bool(leaves & var.readers and leaves - var.readers)


def _some(leaves: Sequence[str], most: int = 3) -> str:
    names = [leaf.removeprefix(PARAMS) for leaf in dict.fromkeys(leaves)]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _are_whole_axes(found: Found, var: Var) -> bool:
    """Whether an axis of more than one has only these."""
    return any(
        set(variables_of(term)) == {var} and size_of(term) > 1
        for terms in (found.leaves[place.leaf] for place in found.places[var])
        for term in terms
    )
