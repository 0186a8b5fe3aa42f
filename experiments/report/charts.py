"""Charts of a report: pure functions from series of points to inline SVG.

A value that is not finite is a gap.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from experiments.report.svg import (
    HEIGHT,
    INSET,
    Axis,
    Frame,
    axes,
    coordinates,
    dot,
    entry,
    look,
    polyline,
    position,
    svg,
)
from p2pjax.evaluation import statistics

_LETTER = 9  # width at the size of a phone
_MAX_PROBES = 25  # points of a line that say their value


class Point(NamedTuple):
    """A value with its spread; `note` is what it says when pointed at."""

    x: float
    middle: float
    low: float
    high: float
    note: str = ""


class Line(NamedTuple):
    """Points in the order of x."""

    label: str
    points: Sequence[Point]


class Series(NamedTuple):
    """A line that knows how it looks."""

    label: str
    points: Sequence[Point]
    style: int


def styled(lines_by_folder: Sequence[Sequence[Line]]) -> list[list[Series]]:
    """Gives lines their looks; a label looks the same in all folders that share some.

    >>> both = styled([[Line("a", []), Line("b", [])], [Line("b", []), Line("c", [])]])
    >>> [[series.style for series in one] for one in both]
    [[0, 1], [1, 2]]
    """
    known: dict[str, int] = {}
    result = []
    for lines in lines_by_folder:
        if known.keys().isdisjoint(line.label for line in lines):
            known = {}
        for line in lines:
            known.setdefault(line.label, len(known))
        result.append([Series(*line, known[line.label]) for line in lines])
    return result


def scaled(points: Sequence[Point], factor: float) -> list[Point]:
    """The points with x in another unit."""
    return [point._replace(x=point.x * factor) for point in points]


def segments(points: Sequence[Point]) -> list[list[Point]]:
    """Cuts a line at its gaps."""
    parts: list[list[Point]] = [[]]
    for point in points:
        if all(map(math.isfinite, point[:4])):
            parts[-1].append(point)
        else:
            parts.append([])
    return [part for part in parts if part]


def line_chart(
    title: str, lines: Sequence[Series], x: Axis, y: Axis, *, bars: bool = False
) -> str:
    """Lines with a band around them, or with points and error bars."""
    frame = Frame()
    at = _placer(frame, x, y)
    draw = _with_bars if bars else _with_band
    body = "".join(_group(one, draw(one.points, at)) for one in lines)
    return svg(title, HEIGHT, axes(frame, x, y) + body)


def pareto_chart(
    title: str,
    trails: Sequence[Series],
    finals: Sequence[Sequence[Point]],
    x: Axis,
    y: Axis,
) -> str:
    """The way to the last point of every line, if any; the best are filled."""
    frame = Frame()
    at = _placer(frame, x, y)
    front = pareto_front(finals)
    best = sorted((p.x, p.middle) for number in front for p in finals[number])
    corners = best[:1]
    for before, after in itertools.pairwise(best):
        corners += [(after[0], before[1]), after]
    body = polyline("front", [at(*corner) for corner in corners])
    for number, (trail, final) in enumerate(zip(trails, finals, strict=True)):
        drawn = "".join(
            polyline("line trail", [at(p.x, p.middle) for p in part])
            for part in segments([_none_below(p, y.low) for p in trail.points])
        )
        kind = "dot" if number in front else "dot hollow"
        for part in segments(final):
            drawn += dot(kind, at(part[0].x, part[0].middle), 5, part[0].note)
        body += _group(trail, drawn)
    return svg(title, HEIGHT, axes(frame, x, y) + body)


def pareto_front(finals: Sequence[Sequence[Point]]) -> set[int]:
    """Numbers of the points that no other beats: less x and more y are better.

    >>> a, b, c = (Point(x, y, y, y) for x, y in ((0, 0.5), (1, 0.9), (2, 0.8)))
    >>> pareto_front([[a], [b], [c]])
    {0, 1}
    """
    known = [
        (number, point.middle, point.x)
        for number, points in enumerate(finals)
        for point in points
        if math.isfinite(point.x) and math.isfinite(point.middle)
    ]
    if not known:
        return set()
    numbers, score, cost = zip(*known, strict=True)
    is_best = statistics.pareto_front(score, cost)
    return {n for n, best in zip(numbers, is_best, strict=True) if best}


def dot_plot(title: str, rows: Sequence[tuple[str, Sequence[Series]]], x: Axis) -> str:
    """A named row for the points of some lines; their values are on the x axis."""
    names = [_shortened(name) for name, _ in rows]
    left = 20 + _LETTER * max(map(len, names), default=0)
    frame = Frame(left=left, top=10, bottom=10 + 26 * len(rows) + 2 * INSET)
    body = axes(frame, x, Axis("", 0, 1, []))
    for row, (name, lines) in enumerate(rows):
        height = frame.top + INSET + 26 * (row + 0.5)
        body += (
            f'<text class="name" x="{frame.left - 8:g}" y="{height + 4:g}" '
            f'text-anchor="end">{escape(names[row])}<title>{escape(name)}</title>'
            "</text>"
        )

        def at(_: float, value: float, height: float = height) -> tuple[float, float]:
            return position(x, value, frame.left + INSET, frame.right - INSET), height

        body += "".join(_group(one, _with_bars(one.points, at)) for one in lines)
    return svg(title, frame.bottom + 42, body)


def legend(lines: Sequence[Series], notes: Sequence[str] = ()) -> str:
    """Names of the lines, for below the chart, with what else is said of each."""
    swatch = '<line class="line" x1="0" y1="5" x2="26" y2="5"/>'
    entries = "".join(
        entry(look(one.style), swatch, one.label + note)
        for one, note in zip(lines, notes or [""] * len(lines), strict=True)
    )
    return f'<ul class="legend">{entries}</ul>' if any(x.label for x in lines) else ""


_At = Callable[[float, float], tuple[float, float]]


def _placer(frame: Frame, x: Axis, y: Axis) -> _At:
    def at(x_value: float, y_value: float) -> tuple[float, float]:
        return (
            position(x, x_value, frame.left + INSET, frame.right - INSET),
            position(y, y_value, frame.bottom, frame.top),
        )

    return at


def _with_band(points: Sequence[Point], at: _At) -> str:
    drawn = ""
    for part in segments(points):
        middle = [at(p.x, p.middle) for p in part]
        edge = [at(p.x, p.high) for p in part] + [at(p.x, p.low) for p in part[::-1]]
        if len(part) == 1:  # a line needs two
            drawn += dot("dot", middle[0], 2, part[0].note)
            continue
        if any(p.low != p.high for p in part):
            drawn += f'<polygon class="band" points="{coordinates(edge)}"/>'
        drawn += polyline("line", middle)
        step = math.ceil(len(part) / _MAX_PROBES)
        for p in part[::-1][::step]:
            drawn += dot("probe", at(p.x, p.middle), 4, p.note)
    return drawn


def _with_bars(points: Sequence[Point], at: _At) -> str:
    drawn = ""
    for part in segments(points):
        if len(part) > 1:
            drawn += polyline("line", [at(p.x, p.middle) for p in part])
        for p in part:
            (x1, y1), (x2, y2) = at(p.x, p.low), at(p.x, p.high)
            drawn += (
                f'<line class="bar" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'
            )
            drawn += dot("dot", at(p.x, p.middle), 3.5, p.note)
    return drawn


def _none_below(point: Point, low: float) -> Point:
    return point._replace(middle=math.nan) if point.middle < low else point


def _group(one: Series, drawn: str) -> str:
    return f'<g class="{look(one.style)}">{drawn}</g>'


def _shortened(label: str, length: int = 20) -> str:
    """Both ends, which tell settings apart."""
    if len(label) <= length:
        return label
    end = length // 2 - 1
    return f"{label[: length - 1 - end]}\u2026{label[-end:]}"
