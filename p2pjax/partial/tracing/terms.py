"""What lies along an axis: units, axes flattened into one, or axes one after the other.

Each axis of each value is a term: a `Var` (n units), a `Prod` (a row-major flatten, as
of height, width and channels of an image) or a `Cat` (one after the other, such as the
gates of an LSTM). Unifying two terms says that one reordering acts on both. Bindings
are global, so that a loop is walked once.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Union

import numpy as np

SLICE = "a slice"  # told apart from others along its axis


class Marks(NamedTuple):
    """What is known of units: reasons, each with the operation it is due to."""

    fixed: dict[str, str]  # why their order is not free
    lost: dict[str, str]  # operations that could not be followed
    mixed: dict[str, str]  # what runs over all of them, such as a mean

    def absorb(self, other: "Marks") -> None:
        """Also has what is known of others."""
        for mine, theirs in zip(self, other, strict=True):
            for reason, where in theirs.items():
                mine.setdefault(reason, where)


class Var:
    """Units along an axis; once `term` is set, that stands for it."""

    def __init__(self, size: int, marks: Marks | None = None) -> None:
        self.size = int(size)
        self.marks = Marks({}, {}, {})
        if marks is not None:
            self.marks.absorb(marks)
        self.readers: set[str] = set()  # leaves of weights that multiply these
        self.term: Term | None = None


class Prod(NamedTuple):
    """Axes flattened into one, the outermost first."""

    parts: tuple["Term", ...]


class Cat(NamedTuple):
    """Axes one after the other."""

    parts: tuple["Term", ...]


Term = Union[Var, Prod, Cat]  # noqa: UP007 (a name that the classes refer to)


def size_of(term: Term) -> int:
    """Length of the axis."""
    if isinstance(term, Var):
        return term.size
    sizes = map(size_of, term.parts)
    return math.prod(sizes) if isinstance(term, Prod) else sum(sizes)


def resolved(term: Term) -> Term:
    """Follows bindings; no product in a product, no concatenation in one.

    Axes of one unit are kept where they are: they may be the channel of an image.
    """
    if isinstance(term, Var):
        if term.term is None:
            return term
        term.term = resolved(term.term)
        return term.term
    kind = type(term)
    parts: list[Term] = []
    for part in map(resolved, term.parts):
        if isinstance(part, kind):
            parts += part.parts
        elif kind is Prod or size_of(part) > 0:
            parts.append(part)
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def variables_of(term: Term) -> Iterator[Var]:
    """All units of a term, in order."""
    term = resolved(term)
    if isinstance(term, Var):
        yield term
    else:
        for part in term.parts:
            yield from variables_of(part)


def factors(terms: Sequence[Term]) -> list[Term]:
    """Of the axes, flattened into one."""
    term = resolved(Prod(tuple(terms)))
    return list(term.parts) if isinstance(term, Prod) else [term]


def unify(a: Term, b: Term) -> bool:
    """From now on one reordering acts on both; False if that could not be said."""
    a, b = resolved(a), resolved(b)
    if a is b or a == b:
        return True
    if size_of(a) != size_of(b):
        return False
    if size_of(a) == 1:
        one, other = next(variables_of(a), None), next(variables_of(b), None)
        if one is None or other is None or one is other:
            return True
        is_alone = isinstance(a, Var) or isinstance(b, Var)
        return not is_alone or _bind(one, other)
    if isinstance(a, Var):
        return _bind(a, b)
    if isinstance(b, Var):
        return _bind(b, a)
    if isinstance(a, Cat) and isinstance(b, Cat):
        cuts = sorted({*_cuts(a), *_cuts(b)})
        return _all_unify(split(a, cuts), split(b, cuts))
    if isinstance(a, Prod) and isinstance(b, Prod):
        return _unify_products(factors([a]), factors([b]))
    product, cat = (a, b) if isinstance(a, Prod) else (b, a)
    several = resolved(Prod(tuple(f for f in factors([product]) if size_of(f) > 1)))
    if not isinstance(several, Prod):
        return unify(several, cat)
    inner = size_of(Prod(several.parts[1:]))
    cuts = _cuts(cat)  # type: ignore[arg-type]
    if any(cut % inner for cut in cuts):
        cuts = list(range(inner, size_of(cat), inner))
    return _all_unify(split(several, cuts), split(cat, cuts))


def _all_unify(left: Sequence[Term], right: Sequence[Term]) -> bool:
    return all([unify(a, b) for a, b in zip(left, right, strict=True)])


def _bind(var: Var, term: Term) -> bool:
    inside = list(variables_of(term))
    if var in inside:
        return True  # the others are of one unit
    for other in inside:
        other.marks.absorb(var.marks)
        other.readers |= var.readers
    var.term = term
    return True


def _unify_products(left: list[Term], right: list[Term]) -> bool:
    """From the left; what is larger is cut into factors."""
    followed = True
    while left and right:
        m, n = size_of(left[0]), size_of(right[0])
        if m == 1 and n > 1:
            left.pop(0)
            continue
        if n == 1 and m > 1:
            right.pop(0)
            continue
        if m > n:
            left, right, m, n = right, left, n, m
        if m < n:
            parts = factored(right[0], m)
            if parts is None:
                return False
            right[:1] = parts
        followed &= unify(left.pop(0), right.pop(0))
        left, right = factors(left), factors(right)
    return followed


def _cuts(cat: Cat) -> list[int]:
    return list(itertools.accumulate(size_of(part) for part in cat.parts))[:-1]


def split(term: Term, cuts: Sequence[int]) -> list[Term]:
    """Pieces between the cuts, which are increasing and inside."""
    term = resolved(term)
    edges = [0, *cuts, size_of(term)]
    if len(edges) == 2:
        return [term]
    if isinstance(term, Var):
        pieces: list[Term] = []
        for start, stop in itertools.pairwise(edges):
            piece = Var(stop - start, term.marks)
            if piece.size == 1:  # told apart from the others
                piece.marks.fixed.setdefault(SLICE, SLICE)
            pieces.append(piece)
        _bind(term, Cat(tuple(pieces)))
        return pieces
    atoms = _pieces_of_cat(term, cuts) if isinstance(term, Cat) else _of(term, cuts)
    pieces = []
    ends = list(itertools.accumulate(map(size_of, atoms)))
    for start, stop in itertools.pairwise(edges):
        chosen = [a for a, end in zip(atoms, ends, strict=True) if start < end <= stop]
        pieces.append(resolved(Cat(tuple(chosen))))
    return pieces


def _pieces_of_cat(cat: Cat, cuts: Sequence[int]) -> list[Term]:
    atoms: list[Term] = []
    begin = 0
    for part in cat.parts:
        end = begin + size_of(part)
        atoms += split(part, [cut - begin for cut in cuts if begin < cut < end])
        begin = end
    return atoms


def _of(product: Prod, cuts: Sequence[int]) -> list[Term]:
    """Cuts the outer factor around each cut, and the inner ones in its one unit."""
    first, rest = product.parts[0], Prod(product.parts[1:])
    inner = size_of(rest)
    outer = {c for cut in cuts for c in (cut // inner, -(-cut // inner))}
    outer -= {0, size_of(first)}
    atoms: list[Term] = []
    begin = 0
    for piece in split(first, sorted(outer)):
        end = begin + size_of(piece) * inner
        within = [cut - begin for cut in cuts if begin < cut < end]
        whole = rest if size_of(piece) == 1 else Prod((piece, rest))
        atoms += split(whole, within)
        begin = end
    return atoms


def factored(term: Term, outer: int) -> list[Term] | None:
    """The term as a product of `outer` and what is left, None if it is none."""
    if size_of(term) % outer:
        return None
    parts: list[Term] = [Var(outer), Var(size_of(term) // outer)]
    return parts if unify(term, Prod(tuple(parts))) else None


def reshaped(terms: Sequence[Term], shape: Sequence[int]) -> list[Term] | None:
    """Axes after a reshape; None if it cuts across units."""
    left, result = factors(terms), []
    for number, length in enumerate(shape):
        taken: list[Term] = []
        while (missing := length // math.prod(map(size_of, taken))) > 1:
            left = factors(left)
            size = size_of(left[0])
            if missing % size and size % missing:
                return None
            if size > missing:
                parts = factored(left[0], missing)
                if parts is None:
                    return None
                left[:1] = parts
            taken.append(left.pop(0))
        later = shape[number + 1 :]
        if length == 1:  # the last of several axes of one are the last of those before
            ones = sum(1 for _ in itertools.takewhile(_is_one, left))
            after = sum(1 for _ in itertools.takewhile(lambda n: n == 1, later))
            here = max(0, ones - after)
            taken, left = left[:here], left[here:]
        elif not later:
            taken, left = taken + left, []
        result.append(resolved(Prod(tuple(taken))) if taken else Var(1))
    return result


def _is_one(term: Term) -> bool:
    return size_of(term) == 1


def columns_of(term: Term, var: Var) -> list[np.ndarray]:
    """`[units, slots]`: where along the axis the units of a variable lie.

    There are several of these where units lie along several of the axes that were
    flattened into this one, as in the products of all pairs of units.
    """
    term = resolved(term)
    if term is var:
        return [np.arange(var.size)[:, None]]
    if isinstance(term, Var) or not term.parts:
        return []
    if isinstance(term, Cat):
        edges = [0, *itertools.accumulate(map(size_of, term.parts))]
        found = [
            [begin + columns for columns in columns_of(part, var)]
            for begin, part in zip(edges, term.parts, strict=False)
        ]
        return [
            np.concatenate([columns for columns in together if columns is not None], 1)
            for together in itertools.zip_longest(*found)
        ]
    first, rest = term.parts[0], Prod(term.parts[1:])
    m, n = size_of(first), size_of(rest)
    outer = [c[:, :, None] * n + np.arange(n) for c in columns_of(first, var)]
    inner = [np.arange(m)[:, None] * n + c[:, None, :] for c in columns_of(rest, var)]
    return [columns.reshape(var.size, -1) for columns in (*outer, *inner)]
