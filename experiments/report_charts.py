"""Charts as inline SVG: small, themable by CSS, without scripts.

Pure functions from series of points to text. Colours are classes `s0` to `s7` of the
page's style, dashes `d0` to `d3`, which tell lines beyond the eighth apart. A value
that is not finite is a gap.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from html import escape
from typing import NamedTuple

NUM_COLORS, NUM_DASHES = 8, 4
_WIDTH, _HEIGHT = 480, 300
_LETTER = 9  # width at the size of a phone
_INSET = 8  # between the frame and the outermost points
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


class Axis(NamedTuple):
    """A scale with its ticks."""

    label: str
    low: float
    high: float
    ticks: Sequence[float]
    is_log: bool = False


class Frame(NamedTuple):
    """Where the axes are inside the drawing."""

    left: float = 54
    top: float = 28
    right: float = _WIDTH - 16
    bottom: float = _HEIGHT - 42


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


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers, about `count` steps apart, that enclose a range.

    >>> round_ticks(0.07, 0.95)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        pad = 0.1 * abs(high) or 1.0
        low, high = low - pad, high + pad
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(power * n for n in (1, 2, 5, 10) if high - low <= count * power * n)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{step * number:.10g}") for number in range(first, last + 1)]


def enclosing_axis(label: str, values: Iterable[float]) -> Axis:
    """From tick to tick; for values whose range says little."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    ticks = round_ticks(min(finite), max(finite))
    return Axis(label, ticks[0], ticks[-1], ticks)


def tight_axis(label: str, values: Iterable[float]) -> Axis:
    """From the smallest to the largest value, with the ticks between them."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    if low == high:
        return Axis(label, low - 1, high + 1, [low])
    return Axis(
        label, low, high, [t for t in round_ticks(low, high) if low <= t <= high]
    )


def upper_axis(label: str, ends: Iterable[float], others: Iterable[float]) -> Axis:
    """For lines that matter at their ends: others may leave it below, not above."""
    finite = [value for value in ends if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    top = max([high, *(value for value in others if math.isfinite(value))])
    return enclosing_axis(label, [max(0.0, low - max(high - low, 0.02)), top])


def doubling_axis(label: str, values: Iterable[float]) -> Axis:
    """Logarithmic, with a tick at every value; for a few positive ones."""
    ticks = sorted(set(values))
    low, high = (
        (ticks[0], ticks[-1]) if len(ticks) > 1 else (ticks[0] / 2, ticks[0] * 2)
    )
    return Axis(label, low, high, ticks, is_log=True)


def position(axis: Axis, value: float, start: float, end: float) -> float:
    """Where a value is between two ends of the drawing."""
    low, high = axis.low, axis.high
    if axis.is_log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return round(start + (value - low) / (high - low) * (end - start), 1)


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
    return _svg(title, _HEIGHT, _axes(frame, x, y) + body)


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
    body = _polyline("front", [at(*corner) for corner in corners])
    for number, (trail, final) in enumerate(zip(trails, finals, strict=True)):
        drawn = "".join(
            _polyline("line trail", [at(p.x, p.middle) for p in part])
            for part in segments([_none_below(p, y.low) for p in trail.points])
        )
        kind = "dot" if number in front else "dot hollow"
        for part in segments(final):
            drawn += _dot(kind, at(part[0].x, part[0].middle), 5, part[0].note)
        body += _group(trail, drawn)
    return _svg(title, _HEIGHT, _axes(frame, x, y) + body)


def pareto_front(finals: Sequence[Sequence[Point]]) -> set[int]:
    """Numbers of the points that no other beats: less x and more y are better.

    >>> a, b, c = (Point(x, y, y, y) for x, y in ((0, 0.5), (1, 0.9), (2, 0.8)))
    >>> pareto_front([[a], [b], [c]])
    {0, 1}
    """
    known = [
        (number, -point.x, point.middle)
        for number, points in enumerate(finals)
        for point in points
        if math.isfinite(point.x) and math.isfinite(point.middle)
    ]
    return {
        number
        for number, *own in known
        if not any(
            own != other and own[0] <= other[0] and own[1] <= other[1]
            for _, *other in known
        )
    }


def dot_plot(title: str, lines: Sequence[Series], axis: Axis) -> str:
    """A row per line with its only point; the value is on the horizontal axis."""
    names = [_shortened(one.label) for one in lines]
    left = 20 + _LETTER * max(map(len, names), default=0)
    frame = Frame(left=left, top=10, bottom=10 + 26 * len(lines) + 2 * _INSET)
    body = _axes(frame, axis, Axis("", 0, 1, []))
    for row, (one, name) in enumerate(zip(lines, names, strict=True)):
        height = frame.top + _INSET + 26 * (row + 0.5)
        body += (
            f'<text class="name" x="{frame.left - 8:g}" y="{height + 4:g}" '
            f'text-anchor="end">{escape(name)}<title>{escape(one.label)}</title></text>'
        )

        def at(x: float, y: float, height: float = height) -> tuple[float, float]:
            ends = frame.left + _INSET, frame.right - _INSET
            return position(axis, y, *ends), height

        drawn = _with_bars(one.points, at)
        body += _group(one, drawn)
    return _svg(title, frame.bottom + 42, body)


def legend(lines: Sequence[Series], marked: Collection[int] = ()) -> str:
    """Names of the lines, for below the chart; the marked ones are on the front."""
    entries = "".join(
        f'<li class="{_look(one.style)}"><svg viewBox="0 0 26 10" aria-hidden="true">'
        '<line class="line" x1="0" y1="5" x2="26" y2="5"/></svg>'
        f'<span class="name">{escape(one.label)}'
        f"{' (Pareto front)' if number in marked else ''}</span></li>"
        for number, one in enumerate(lines)
    )
    return f'<ul class="legend">{entries}</ul>' if any(x.label for x in lines) else ""


_At = Callable[[float, float], tuple[float, float]]


def _placer(frame: Frame, x: Axis, y: Axis) -> _At:
    def at(x_value: float, y_value: float) -> tuple[float, float]:
        return (
            position(x, x_value, frame.left + _INSET, frame.right - _INSET),
            position(y, y_value, frame.bottom, frame.top),
        )

    return at


def _with_band(points: Sequence[Point], at: _At) -> str:
    drawn = ""
    for part in segments(points):
        middle = [at(p.x, p.middle) for p in part]
        edge = [at(p.x, p.high) for p in part] + [at(p.x, p.low) for p in part[::-1]]
        if len(part) == 1:  # a line needs two
            drawn += _dot("dot", middle[0], 2, part[0].note)
            continue
        if any(p.low != p.high for p in part):
            drawn += f'<polygon class="band" points="{_coordinates(edge)}"/>'
        drawn += _polyline("line", middle)
        step = math.ceil(len(part) / _MAX_PROBES)
        for p in part[::-1][::step]:
            drawn += _dot("probe", at(p.x, p.middle), 4, p.note)
    return drawn


def _with_bars(points: Sequence[Point], at: _At) -> str:
    drawn = ""
    for part in segments(points):
        if len(part) > 1:
            drawn += _polyline("line", [at(p.x, p.middle) for p in part])
        for p in part:
            (x1, y1), (x2, y2) = at(p.x, p.low), at(p.x, p.high)
            drawn += (
                f'<line class="bar" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'
            )
            drawn += _dot("dot", at(p.x, p.middle), 3.5, p.note)
    return drawn


def _none_below(point: Point, low: float) -> Point:
    return point._replace(middle=math.nan) if point.middle < low else point


def _axes(frame: Frame, x: Axis, y: Axis) -> str:
    drawn = ""
    for tick in y.ticks:
        height = position(y, tick, frame.bottom, frame.top)
        drawn += (
            f'<line class="grid" x1="{frame.left:g}" y1="{height:g}" '
            f'x2="{frame.right:g}" y2="{height:g}"/><text x="{frame.left - 6:g}" '
            f'y="{height + 4:g}" text-anchor="end">{tick:,.10g}</text>'
        )
    for tick in x.ticks:
        place = position(x, tick, frame.left + _INSET, frame.right - _INSET)
        drawn += (
            f'<line class="grid" x1="{place:g}" y1="{frame.top:g}" x2="{place:g}" '
            f'y2="{frame.bottom:g}"/><text x="{place:g}" y="{frame.bottom + 17:g}" '
            f'text-anchor="middle">{tick:,.10g}</text>'
        )
    return drawn + (
        f'<text class="name" x="{(frame.left + frame.right) / 2:g}" '
        f'y="{frame.bottom + 36:g}" text-anchor="middle">{escape(x.label)}</text>'
        f'<text class="name" x="4" y="14">{escape(y.label)}</text>'
    )


def _svg(title: str, height: float, body: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(title)}">{body}</svg>'
    )


def _group(one: Series, drawn: str) -> str:
    return f'<g class="{_look(one.style)}">{drawn}</g>'


def _look(style: int) -> str:
    return f"s{style % NUM_COLORS} d{style // NUM_COLORS % NUM_DASHES}"


def _polyline(kind: str, places: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{kind}" points="{_coordinates(places)}"/>'


def _coordinates(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in places)


def _dot(kind: str, place: tuple[float, float], radius: float, note: str) -> str:
    return (
        f'<circle class="{kind}" cx="{place[0]:g}" cy="{place[1]:g}" r="{radius:g}">'
        f"<title>{escape(note)}</title></circle>"
    )


def _shortened(label: str, length: int = 20) -> str:
    return label if len(label) <= length else label[: length - 1] + "\u2026"
