"""Walks a jaxpr once and says what lies along the axes of all of its values."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.extend.source_info_util import summarize

from p2pjax.partial.tracing.operation import (
    CONSTANT,
    SCAN,
    Operation,
    Traced,
    new_axes,
)
from p2pjax.partial.tracing.rules import NOISE, rule_of
from p2pjax.partial.tracing.terms import Term, Var, variables_of

INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # of primitives that call another


class Walk:
    """Keeps what was seen: the terms of activations, in order."""

    def __init__(self) -> None:
        self.seen: list[Traced] = []

    def through(
        self, jaxpr: Any, args: Sequence[Traced], where: str = ""
    ) -> list[Traced]:
        """Results of a jaxpr.

        Args:
          jaxpr: closed or not.
          args: what it is called with.
          where: file and line of the call, of equations that have none.
        """
        consts, jaxpr = getattr(jaxpr, "consts", ()), getattr(jaxpr, "jaxpr", jaxpr)
        known: dict[Any, Traced] = dict(zip(jaxpr.invars, args, strict=True))
        known |= zip(jaxpr.constvars, map(constant, consts), strict=True)

        def read(atom: Any) -> Traced:
            return constant(atom.val) if isinstance(atom, core.Literal) else known[atom]

        for equation in jaxpr.eqns:
            op = Operation(
                equation.primitive.name,
                summarize(equation.source_info) or where,
                [read(atom) for atom in equation.invars],
                [variable.aval.shape for variable in equation.outvars],
                equation.params,
            )
            results = self._results(op)
            known |= zip(equation.outvars, results, strict=True)
            self.seen += [result for result in results if result.has_input]
        return [read(atom) for atom in jaxpr.outvars]

    def _results(self, op: Operation) -> list[Traced]:
        if op.name == "scan":
            return self._scan(op)
        if op.name == "while":
            return self._while(op)
        if op.name == "cond":
            return self._cond(op)
        rule = rule_of(op.name)
        inner = next((op.params[name] for name in INNER if name in op.params), None)
        if rule is not None:
            found = rule(op)
        elif inner is not None and len(_variables(inner)) == len(op.ins):
            return self.through(inner, op.ins, op.where)
        else:
            axes = [term for value in op.ins for term in value.terms]
            found = [[op.axis_after(n, axes) for n in shape] for shape in op.shapes]
        has_input = op.has_input or op.name.startswith(NOISE)
        return [
            Traced(tuple(terms), has_input, op.has_params, op.leaves) for terms in found
        ]

    def _scan(self, op: Operation) -> list[Traced]:
        num_consts, num_carry = op.params["num_consts"], op.params["num_carry"]
        consts, rows = op.ins[:num_consts], op.ins[num_consts + num_carry :]
        carry = _carried(op, op.ins[num_consts : num_consts + num_carry])
        time = Var(op.params["length"])
        op.fix(time, SCAN)
        for row in rows:
            op.same(row.terms[0], time)
        inside = [row._replace(terms=row.terms[1:]) for row in rows]
        results = self.through(op.params["jaxpr"], [*consts, *carry, *inside], op.where)
        _same_values(op, carry, results[:num_carry])
        stacked = [
            result._replace(terms=(time, *result.terms))
            for result in results[num_carry:]
        ]
        return [*_carried(op, results[:num_carry]), *stacked]

    def _while(self, op: Operation) -> list[Traced]:
        of_condition = op.params["cond_nconsts"]
        both = of_condition + op.params["body_nconsts"]
        carry = _carried(op, op.ins[both:])
        self.through(op.params["cond_jaxpr"], [*op.ins[:of_condition], *carry])
        body = [*op.ins[of_condition:both], *carry]
        results = self.through(op.params["body_jaxpr"], body, op.where)
        _same_values(op, carry, results)
        return _carried(op, results)

    def _cond(self, op: Operation) -> list[Traced]:
        first, *others = (
            self.through(branch, op.ins[1:], op.where)
            for branch in op.params["branches"]
        )
        for other in others:
            _same_values(op, first, other)
        return [
            Traced(
                values[0].terms,
                any(value.has_input for value in values) or op.ins[0].has_input,
                any(value.has_params for value in values),
                frozenset().union(*(value.leaves for value in values)),
            )
            for values in zip(first, *others, strict=True)
        ]


def constant(value: Any) -> Traced:
    """Axes along which the values differ have an order."""
    terms: list[Term] = new_axes(np.shape(value))
    if terms and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        array = np.asarray(value)
        for axis, term in enumerate(terms):
            if array.size and not (array == array.take([0], axis)).all():
                for var in variables_of(term):
                    var.marks.fixed[CONSTANT] = CONSTANT
    return Traced(tuple(terms))


def _variables(jaxpr: Any) -> Sequence[Any]:
    return getattr(jaxpr, "jaxpr", jaxpr).invars


def _carried(op: Operation, values: Sequence[Traced]) -> list[Traced]:
    """What a loop carries depends on all that it is given."""
    return [
        Traced(value.terms, op.has_input, op.has_params, op.leaves) for value in values
    ]


def _same_values(
    op: Operation, left: Sequence[Traced], right: Sequence[Traced]
) -> None:
    for a, b in zip(left, right, strict=True):
        op.same_axes(a.terms, b.terms)
