"""Operations and bytes of a program, counted in its StableHLO.

StableHLO is what JAX hands to the compiler of a platform. It can be made for a TPU or a
GPU where there is none. What is counted, and what is not:

- What is not needed is removed first, and what is there twice counts once.
- Operations of matrix products and convolutions are counted exactly, two for each
  multiply-add. All others are counted as one per entry of their result.
- The body of a loop counts as often as it runs where that is a constant, as for every
  `scan`; a loop that ends by its data counts once and is reported (`open_loops`).
- Of the branches of a `case` the most expensive one counts.
- Bytes are those that every operation would read and write by itself. A compiler fuses,
  so this is an upper limit; that a program reads its arguments and writes its results
  once is the lower one.
- Custom calls (a GPU's random bits, eigenvalues) have bytes but no operations.
"""

import math
from typing import Any, NamedTuple

import jax
from jax.extend.mlir import ir, passmanager

_PASSES = "builtin.module(inline,canonicalize,cse,symbol-dce)"
COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "collective_permute")
# Rearranged or made up on the way; a compiler never stores them for their own sake.
_FREE = (
    *("bitcast_convert", "constant", "iota", "optimization_barrier", "reshape"),
    *("get_tuple_element", "tuple", "return"),
)
_SLICES = ("dynamic_slice", "gather", "slice")
_UPDATES = ("dynamic_update_slice", "scatter")
_MOVES = (
    *("broadcast_in_dim", "concatenate", "convert", "copy", "pad", "reverse"),
    *("transpose", *_SLICES, *_UPDATES, "custom_call", *COLLECTIVES),
)


class Cost(NamedTuple):
    """Of a program or a part of it."""

    product_flops: int = 0  # matrix products, convolutions
    other_flops: int = 0  # all the rest
    moved_bytes: int = 0  # without any fusion
    open_loops: int = 0  # whose number of turns is not known: counted once

    def __add__(self, other: tuple) -> "Cost":
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, number: int) -> "Cost":
        """Of so many turns; open loops are counted where they stand."""
        product, other, moved, open_loops = self
        return Cost(number * product, number * other, number * moved, open_loops)


def cost_of(lowered: jax.stages.Lowered) -> Cost:
    """Counts a whole program.

    Args:
      lowered: of `jax.jit(fn).trace(...).lower(lowering_platforms=("tpu",))`.
    """
    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        passmanager.PassManager.parse(_PASSES).run(module.operation)
    return _Program(module).function("main")


class _Program:
    """A module and what its functions have been found to cost."""

    def __init__(self, module: Any):
        self._module = module  # or its operations die with it
        self._functions = {
            ir.StringAttr(op.attributes["sym_name"]).value: op
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        self._found: dict[str, Cost] = {}

    def function(self, name: str) -> Cost:
        if name not in self._found:
            self._found[name] = self._region(self._functions[name].regions[0])
        return self._found[name]

    def _region(self, region: Any) -> Cost:
        total = Cost()
        for block in region.blocks:
            for op in block.operations:
                total += self._operation(op.operation)
        return total

    def _operation(self, op: Any) -> Cost:
        name = op.name.split(".", 1)[1]
        if name == "call":
            callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            return self.function(callee)
        if name == "while":
            turns = _turns(op)
            body = self._region(op.regions[1]) + self._region(op.regions[0])
            if turns is None:
                return body + Cost(open_loops=1)
            return body.times(turns)
        if name in ("case", "if"):
            branches = [self._region(region) for region in op.regions]
            return max(branches, key=lambda cost: sum(cost[:3]))
        if name == "manual_computation":  # the part of each device of a mesh
            return self._region(op.regions[0])
        return _one(op, name)


def _one(op: Any, name: str) -> Cost:
    """An operation that calls no other, a reduction or a sort of one operator."""
    if name in _FREE:
        return Cost()
    results = [_shape(result.type) for result in op.results]
    operands = [_shape(operand.type) for operand in op.operands]
    out = sum(map(_bytes, results))
    if name in _SLICES:
        moved = 2 * out
    elif name in _UPDATES:
        updates = operands[1] if name == "dynamic_update_slice" else operands[-1]
        moved = (2 if name == "dynamic_update_slice" else 3) * _bytes(updates)
    else:
        moved = out + sum(map(_bytes, operands))
    entries = sum(math.prod(shape) for shape, _ in results)
    if name == "dot_general":
        numbers = str(op.attributes["dot_dimension_numbers"])
        contracted = _listed(numbers, "lhs_contracting_dimensions")
        inner = math.prod(operands[0][0][axis] for axis in contracted)
        return Cost(2 * entries * inner, 0, moved)
    if name == "convolution":
        return Cost(2 * entries * _window(op, operands[1][0]), 0, moved)
    if name in ("reduce", "reduce_window", "select_and_scatter"):
        entries = math.prod(operands[0][0])
    if name == "sort":
        axis = ir.IntegerAttr(op.attributes["dimension"]).value
        length = max(operands[0][0][axis], 2)
        entries = math.prod(operands[0][0]) * math.ceil(math.log2(length))
    return Cost(0, 0 if name in _MOVES else entries, moved)


def _window(op: Any, kernel: tuple[int, ...]) -> int:
    """Multiply-adds for one entry of a convolution's result.

    The kernel's axis of input channels has those of one group only.
    """
    # [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]
    spec = str(op.attributes["dimension_numbers"]).split("x[", 1)[1].split("]", 1)[0]
    axes = [axis.strip() for axis in spec.split(",")]
    return math.prod(kernel) // kernel[axes.index("o")]


def _listed(text: str, name: str) -> list[int]:
    """`[1, 2]` of `... name = [1, 2] ...`; none where it does not say."""
    if name not in text:
        return []
    inside = text.split(name, 1)[1].split("[", 1)[1].split("]", 1)[0]
    return [int(number) for number in inside.split(",") if number.strip()]


def _turns(loop: Any) -> int | None:
    """How often a loop runs: `counter < constant`, from a constant, by one."""
    (condition,) = loop.regions[0].blocks
    last = list(condition.operations)[-1].operation
    compared = _maker(last.operands[0])
    if compared is None or compared.name != "stablehlo.compare":
        return None
    if "LT" not in str(compared.attributes["comparison_direction"]):
        return None
    counter, limit = compared.operands
    start, stop = (_constant(value, loop) for value in (counter, limit))
    if start is None or stop is None or not isinstance(counter.owner, ir.Block):
        return None
    number = ir.BlockArgument(counter).arg_number
    (body,) = loop.regions[1].blocks
    added = _maker(list(body.operations)[-1].operation.operands[number])
    if added is None or added.name != "stablehlo.add":
        return None
    steps = [_constant(value, None) for value in added.operands]
    return max(0, stop - start) if 1 in steps else None


def _constant(value: Any, loop: Any | None) -> int | None:
    """Of an integer; that of a loop's variable is its first one."""
    if loop is not None and isinstance(value.owner, ir.Block):
        value = loop.operands[ir.BlockArgument(value).arg_number]
    made_by = _maker(value)
    if made_by is None or made_by.name != "stablehlo.constant":
        return None
    entries = ir.DenseElementsAttr(made_by.attributes["value"])
    if not entries.is_splat:
        return None
    splat: Any = entries.get_splat_value()
    return int(splat.value)


def _maker(value: Any) -> Any | None:
    """The operation whose result it is; None of an argument."""
    return None if isinstance(value.owner, ir.Block) else value.owner


def _shape(kind: Any) -> tuple[tuple[int, ...], int]:
    """Shape and bits of an entry; tokens have none."""
    if not isinstance(kind, ir.RankedTensorType):
        try:
            kind = ir.RankedTensorType(kind)
        except ValueError:
            return (0,), 0
    name = str(kind.element_type)
    digits = "".join(c for c in name.split("E")[0] if c.isdigit())
    bits = 2 * int(digits) if name.startswith("complex") else int(digits or 32)
    return tuple(kind.shape), max(8, bits)


def _bytes(shaped: tuple[tuple[int, ...], int]) -> int:
    shape, bits = shaped
    return math.prod(shape) * bits // 8
