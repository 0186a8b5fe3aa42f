"""What primitives do to the axes of their operands.

A rule takes an `Operation` and returns the terms of its results. `TRIVIAL` are those
that act on each number by itself; those with a jaxpr inside are in `walk`.
"""

import itertools
from collections.abc import Callable

from p2pjax.partial.tracing.operation import (
    CONSTANT,
    LOOKUP,
    POSITIONS,
    Operation,
    cut,
    new_axes,
)
from p2pjax.partial.tracing.terms import (
    Cat,
    Prod,
    Term,
    Var,
    reshaped,
    resolved,
    size_of,
    split,
    variables_of,
)

Rule = Callable[[Operation], list[list[Term]]]

# fmt: off
ELEMENTWISE = frozenset((
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2",
    "atanh", "bessel_i0e", "bessel_i1e", "bitcast_convert_type", "cbrt", "ceil",
    "clamp", "convert_element_type", "copy", "copy_p", "cos", "cosh", "digamma", "div",
    "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt",
    "igamma", "igammac", "imag", "integer_pow", "is_finite", "le", "lgamma", "log",
    "log1p", "logistic", "lt", "max", "min", "mul", "mul_add", "name", "ne", "neg",
    "nextafter", "not", "or", "pow", "real", "reduce_precision", "rem", "round",
    "rsqrt", "select_n", "sharding_constraint", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient",
    "sub", "tan", "tanh", "xor", "pvary", "device_put",
))
# fmt: on
KINDS = ("sum", "prod", "max", "min", "and", "or", "xor")  # of reductions
NOISE = ("random_", "threefry", "rng_")  # its units may be exchanged


def _elementwise(op: Operation) -> list[list[Term]]:
    out = new_axes(op.shapes[0])
    for value in op.ins:
        for term, whole in zip(value.terms, out, strict=False):  # numbers have none
            if size_of(term) == size_of(whole):
                op.same(term, whole)
    return [out]


def _noise(op: Operation) -> list[list[Term]]:
    return [new_axes(shape) for shape in op.shapes]


def _unchanged(op: Operation) -> list[list[Term]]:
    return [list(value.terms) for value in op.ins]


def _reduction(op: Operation) -> list[list[Term]]:
    axes = op.params.get("axes", op.params.get("dimensions", ()))
    arrays = [value for value in op.ins if value.terms]
    for other in arrays[1:]:
        op.same_axes(arrays[0].terms, other.terms)
    for axis in axes:
        op.mix(arrays[0].terms[axis])
        if op.name.startswith("arg"):
            op.lose([arrays[0].terms[axis]])
    kept = [term for axis, term in enumerate(arrays[0].terms) if axis not in axes]
    return [kept for _ in op.shapes]


def _windows(op: Operation) -> list[list[Term]]:
    out = []
    sizes = zip(
        op.ins[0].terms, op.params["window_dimensions"], op.shapes[0], strict=True
    )
    for term, window, length in sizes:
        if window > 1:
            op.fix(term, POSITIONS)
        out.append(op.taken(term, length))
    return [out]


def _ordered(op: Operation) -> list[list[Term]]:
    """Sums from left to right, sorting, mirroring."""
    params = op.params
    axes = params.get("dimensions") or [params.get("axis", params.get("dimension"))]
    for other in op.ins[1:]:
        op.same_axes(op.ins[0].terms, other.terms)
    op.lose(op.ins[0].terms[axis] for axis in axes)
    return [list(op.ins[0].terms) for _ in op.shapes]


def _broadcast(op: Operation) -> list[list[Term]]:
    out = new_axes(op.shapes[0])
    moved = zip(op.ins[0].terms, op.params["broadcast_dimensions"], strict=True)
    for term, axis in moved:
        if size_of(term) == op.shapes[0][axis]:
            out[axis] = term
    return [out]


def _transpose(op: Operation) -> list[list[Term]]:
    return [[op.ins[0].terms[axis] for axis in op.params["permutation"]]]


def _squeeze(op: Operation) -> list[list[Term]]:
    gone = op.params["dimensions"]
    return [[term for axis, term in enumerate(op.ins[0].terms) if axis not in gone]]


def _reshape(op: Operation) -> list[list[Term]]:
    terms, shape = op.ins[0].terms, op.shapes[0]
    if 0 in shape:
        return [new_axes(shape)]
    return [reshaped(terms, shape) or [op.axis_after(n, terms) for n in shape]]


def _iota(op: Operation) -> list[list[Term]]:
    out = new_axes(op.shapes[0])
    op.fix(out[op.params["dimension"]], CONSTANT)
    return [out]


def _concatenate(op: Operation) -> list[list[Term]]:
    axis = op.params["dimension"]
    first, *others = (value.terms for value in op.ins)
    for other in others:
        op.same_axes(*(_without(terms, axis) for terms in (first, other)))
    joined = resolved(Cat(tuple(value.terms[axis] for value in op.ins)))
    return [[*first[:axis], joined, *first[axis + 1 :]]]


def _stack(op: Operation) -> list[list[Term]]:
    axis = op.params.get("axis", op.params.get("dimension", 0))
    first, *others = (value.terms for value in op.ins)
    for other in others:
        op.same_axes(first, other)
    places = Var(len(op.ins))
    op.fix(places, LOOKUP)  # told apart
    return [[*first[:axis], places, *first[axis:]]]


def _unstack(op: Operation) -> list[list[Term]]:
    axis = op.params.get("axis", op.params.get("dimension", 0))
    terms = op.ins[0].terms
    split(terms[axis], range(1, size_of(terms[axis])))
    return [list(_without(terms, axis)) for _ in op.shapes]


def _tile(op: Operation) -> list[list[Term]]:
    pairs = zip(op.ins[0].terms, op.params["reps"], strict=True)
    return [[resolved(Cat((term,) * times)) for term, times in pairs]]


def _split(op: Operation) -> list[list[Term]]:
    axis, terms = op.params["axis"], op.ins[0].terms
    cuts = list(itertools.accumulate(op.params["sizes"]))[:-1]
    pieces = split(terms[axis], cuts)
    return [[*terms[:axis], piece, *terms[axis + 1 :]] for piece in pieces]


def _slice(op: Operation) -> list[list[Term]]:
    terms, out = op.ins[0].terms, list[Term]()
    strides = op.params["strides"] or (1,) * len(terms)
    spans = zip(op.params["start_indices"], op.params["limit_indices"], strict=True)
    for axis, (start, stop) in enumerate(spans):
        if strides[axis] > 1:
            out.append(op.taken(terms[axis], op.shapes[0][axis]))
        else:
            out.append(cut(terms[axis], start, stop))
    return [out]


def _dynamic_slice(op: Operation) -> list[list[Term]]:
    pairs = zip(op.ins[0].terms, op.shapes[0], strict=True)
    return [[op.taken(term, length) for term, length in pairs]]


def _dynamic_update_slice(op: Operation) -> list[list[Term]]:
    for term, update in zip(op.ins[0].terms, op.ins[1].terms, strict=True):
        op.taken(term, size_of(update), update)
    return [list(op.ins[0].terms)]


def _pad(op: Operation) -> list[list[Term]]:
    out: list[Term] = []
    for term, (low, high, inside) in zip(
        op.ins[0].terms, op.params["padding_config"], strict=True
    ):
        if low < 0 or high < 0 or inside:
            out.append(op.taken(term, op.shapes[0][len(out)]))
        else:
            out.append(resolved(Cat((Var(low), term, Var(high)))))
    return [out]


def _gather(op: Operation) -> list[list[Term]]:
    dims, sizes = op.params["dimension_numbers"], op.params["slice_sizes"]
    operand, indices = op.ins[0].terms, op.ins[1].terms
    out: list[Term] = [Var(1)] * len(op.shapes[0])
    offset = iter(dims.offset_dims)
    for axis, term in enumerate(operand):
        if axis in dims.operand_batching_dims:
            at = dims.operand_batching_dims.index(axis)
            op.same(term, indices[dims.start_indices_batching_dims[at]])
        elif axis in dims.collapsed_slice_dims:
            op.lose([term], op.ins[0])
        else:
            out[next(offset)] = op.taken(term, sizes[axis])
    batch = [axis for axis in range(len(out)) if axis not in dims.offset_dims]
    for axis, term in zip(batch, indices[:-1], strict=True):
        out[axis] = term
    return [out]


def _scatter(op: Operation) -> list[list[Term]]:
    dims = op.params["dimension_numbers"]
    operand, indices, updates = (value.terms for value in op.ins)
    window = iter(dims.update_window_dims)
    for axis, term in enumerate(operand):
        if axis in dims.operand_batching_dims:
            at = dims.operand_batching_dims.index(axis)
            op.same(term, indices[dims.scatter_indices_batching_dims[at]])
        elif axis in dims.inserted_window_dims:
            op.lose([term])
        else:
            update = updates[next(window)]
            op.taken(term, size_of(update), update)
    windows = dims.update_window_dims
    batch = [term for axis, term in enumerate(updates) if axis not in windows]
    op.same_axes(batch, indices[:-1])
    return [list(operand)]


def _dot_general(op: Operation) -> list[list[Term]]:
    summed, batch = op.params["dimension_numbers"]
    left, right = (value.terms for value in op.ins)
    for a, b in zip(*summed, strict=True):
        op.contract(0, a, 1, b)
    out = []
    for a, b in zip(*batch, strict=True):
        op.same(left[a], right[b])
        out.append(left[a])
    for side, terms in enumerate((left, right)):
        used = {*summed[side], *batch[side]}
        out += [term for axis, term in enumerate(terms) if axis not in used]
    return [out]


def _convolution(op: Operation) -> list[list[Term]]:
    lhs, rhs, result = op.params["dimension_numbers"]
    x, kernel = (value.terms for value in op.ins)
    out = new_axes(op.shapes[0])
    if op.params["batch_group_count"] > 1:
        return [[op.axis_after(n, (*x, *kernel)) for n in op.shapes[0]]]
    for terms, axes in ((x, lhs[2:]), (kernel, rhs[2:]), (out, result[2:])):
        for axis in axes:
            op.fix(terms[axis], POSITIONS)
    out[result[0]], out[result[1]] = x[lhs[0]], kernel[rhs[0]]
    groups = op.params["feature_group_count"]
    if groups == 1:
        op.contract(0, lhs[1], 1, rhs[1])
        return [out]
    blocks, per_block = Var(groups), Var(op.shapes[0][result[1]] // groups)
    op.same(x[lhs[1]], Prod((blocks, kernel[rhs[1]])))
    op.same(kernel[rhs[0]], Prod((blocks, per_block)))
    for var in variables_of(kernel[rhs[1]]):
        var.readers |= op.ins[1].leaves
    return [out]


def _without(terms: tuple[Term, ...], axis: int) -> tuple[Term, ...]:
    return (*terms[:axis], *terms[axis + 1 :])


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **{f"reduce_{kind}": _reduction for kind in KINDS},
    **dict.fromkeys(("reduce", "argmax", "argmin"), _reduction),
    **{f"reduce_window_{kind}": _windows for kind in KINDS},
    "reduce_window": _windows,
    **{f"cum{kind}": _ordered for kind in (*KINDS, "logsumexp")},
    "sort": _ordered,
    "rev": _ordered,
    **{f"scatter_{kind}": _scatter for kind in ("add", "sub", "mul", *KINDS)},
    "scatter": _scatter,
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "iota": _iota,
    "optimization_barrier": _unchanged,
    "pad": _pad,
    "platform_index": _noise,
    "reshape": _reshape,
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "tile": _tile,
    "transpose": _transpose,
    "unstack": _unstack,
}


def rule_of(name: str) -> Rule | None:
    """Of a primitive; None if it has none."""
    return _noise if name.startswith(NOISE) else RULES.get(name.replace("-", "_"))
