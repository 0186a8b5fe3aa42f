"""One equation of a jaxpr, and what its rule can say about the axes of its values."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from p2pjax.partial.tracing.terms import (
    Marks,
    Term,
    Var,
    size_of,
    split,
    unify,
    variables_of,
)

INPUT, OUTPUT, CONSTANT = "the input", "the output", "a constant"
POSITIONS, LOOKUP, SCAN = "positions", "an index", "a scan"


class Traced(NamedTuple):
    """A value: what lies along its axes, and what it depends on."""

    terms: tuple[Term, ...]
    has_input: bool = False  # the example, or random numbers
    has_params: bool = False
    leaves: frozenset[str] = frozenset()  # of parameters, of what they alone make up

    @property
    def is_hidden(self) -> bool:
        """Whether it is made of the example and of parameters."""
        return self.has_input and self.has_params


class Operation(NamedTuple):
    """An equation: what it does is in its primitive's name and parameters."""

    name: str
    where: str  # file and line
    ins: list[Traced]
    shapes: list[tuple[int, ...]]  # of its results
    params: dict[str, Any]

    @property
    def described(self) -> str:
        """For messages."""
        return f"{self.name} ({self.where})" if self.where else self.name

    @property
    def has_input(self) -> bool:
        """Whether its results depend on the example."""
        return any(value.has_input for value in self.ins)

    @property
    def has_params(self) -> bool:
        """Whether its results depend on parameters."""
        return any(value.has_params for value in self.ins)

    @property
    def is_hidden(self) -> bool:
        """Whether its results depend on both."""
        return self.has_input and self.has_params

    @property
    def leaves(self) -> frozenset[str]:
        """That its results are made of, if of parameters alone."""
        if self.has_input:
            return frozenset()
        return frozenset().union(*(value.leaves for value in self.ins))

    def same(self, a: Term, b: Term) -> None:
        """One reordering acts on both."""
        try:
            followed = unify(a, b)
        except RecursionError:  # many units, each of which is told apart
            followed = False
        if not followed:
            self.lose([a, b])

    def same_axes(self, left: Sequence[Term], right: Sequence[Term]) -> None:
        """Likewise, axis by axis."""
        for a, b in zip(left, right, strict=True):
            self.same(a, b)

    def fix(self, term: Term, reason: str) -> None:
        """The order of these units matters."""
        for var in variables_of(term):
            var.marks.fixed.setdefault(reason, self.described)

    def mix(self, term: Term) -> None:
        """This runs over all of the units."""
        for var in variables_of(term):
            var.marks.mixed.setdefault(self.name, self.described)

    def lose(self, terms: Iterable[Term], of: Traced | None = None) -> None:
        """What becomes of these units cannot be followed.

        Of parameters alone nothing is lost but their order, and so of the input.

        Args:
          terms: axes.
          of: the value whose axes they are; any operand if None.
        """
        is_hidden = self.is_hidden if of is None else of.is_hidden
        for term in terms:
            for var in variables_of(term):
                if var.size > 1 and not var.marks.fixed:
                    if is_hidden:
                        var.marks.lost.setdefault(self.name, self.described)
                    else:
                        var.marks.fixed.setdefault(LOOKUP, self.described)

    def axis_after(
        self, size: int, before: Iterable[Term], of: Traced | None = None
    ) -> Term:
        """A new axis whose units are made of these in an order that matters.

        Args:
          size: of the new axis.
          before: axes that it is made of.
          of: see `lose`.
        """
        before = list(before)
        self.lose(before, of)
        marks = Marks({}, {}, {})
        for term in before:
            for var in variables_of(term):
                marks.absorb(var.marks)
        marks.mixed.clear()
        if not (self.has_params if of is None else of.has_params):
            marks.fixed.setdefault(INPUT if self.has_input else CONSTANT, self.where)
        return Var(size, marks)

    def taken(self, term: Term, size: int, update: Term | None = None) -> Term:
        """A part of an axis of the first operand, somewhere; all of it is the axis.

        Args:
          term: the axis.
          size: of the part.
          update: what is put into its place.
        """
        if size == size_of(term):
            if update is not None:
                self.same(term, update)
            return term
        if update is not None:
            return self.axis_after(size, [term, update])
        return self.axis_after(size, [term], self.ins[0])

    @staticmethod
    def _differs(*terms: Term) -> bool:
        return any(CONSTANT in v.marks.fixed for t in terms for v in variables_of(t))

    def contract(self, a: int, axis_a: int, b: int, axis_b: int) -> None:
        """Operands a and b are multiplied and summed along these axes."""
        left, right = self.ins[a], self.ins[b]
        term, other = left.terms[axis_a], right.terms[axis_b]
        for value, axis, with_ in ((left, term, right), (right, other, left)):
            is_constant = not (with_.has_input or with_.has_params)
            if value.is_hidden and is_constant and self._differs(term, other):
                self.lose([axis], value)
        self.same(term, other)
        if left.has_input == right.has_input:  # of hidden values, or of weights
            if left.has_input or not (left.has_params and right.has_params):
                self.mix(term)
            return
        value, weights = (left, right) if left.has_input else (right, left)
        if not weights.has_params:
            self.mix(term)
            return
        for var in variables_of(term):
            var.readers |= weights.leaves
            if not value.has_params:
                var.marks.fixed.setdefault(INPUT, self.described)


def new_axes(shape: Sequence[int]) -> list[Term]:
    """Of a value along whose axes nothing is known."""
    return [Var(length) for length in shape]


def cut(term: Term, start: int, stop: int) -> Term:
    """What lies along a slice of an axis."""
    cuts = sorted({start, stop} - {0, size_of(term)})
    return split(term, cuts)[1 if start else 0]
