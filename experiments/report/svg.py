"""Shapes and axes as inline SVG: small, themable by CSS, without scripts.

Colours are classes `s0` to `s7` of the page's style, dashes `d0` to `d3`, which tell
lines beyond the eighth apart.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

NUM_COLORS, NUM_DASHES = 8, 4
WIDTH, HEIGHT = 480, 300
INSET = 8  # between the frame and the outermost points


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
    right: float = WIDTH - 16
    bottom: float = HEIGHT - 42


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


def axes(frame: Frame, x: Axis, y: Axis) -> str:
    """Two scales with their grid and names."""
    drawn = ""
    for tick in y.ticks:
        height = position(y, tick, frame.bottom, frame.top)
        drawn += (
            f'<line class="grid" x1="{frame.left:g}" y1="{height:g}" '
            f'x2="{frame.right:g}" y2="{height:g}"/><text x="{frame.left - 6:g}" '
            f'y="{height + 4:g}" text-anchor="end">{tick:,.10g}</text>'
        )
    for tick in x.ticks:
        place = position(x, tick, frame.left + INSET, frame.right - INSET)
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


def svg(title: str, height: float, body: str) -> str:
    """A drawing as wide as its place, named for those who do not see it."""
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(title)}">{body}</svg>'
    )


def look(style: int) -> str:
    """Classes of the n-th colour and dash."""
    return f"s{style % NUM_COLORS} d{style // NUM_COLORS % NUM_DASHES}"


def polyline(kind: str, places: Sequence[tuple[float, float]]) -> str:
    """A line through places."""
    return f'<polyline class="{kind}" points="{coordinates(places)}"/>'


def coordinates(places: Sequence[tuple[float, float]]) -> str:
    """Places as SVG writes them."""
    return " ".join(f"{x:g},{y:g}" for x, y in places)


def dot(kind: str, place: tuple[float, float], radius: float, note: str) -> str:
    """A circle that says something when pointed at."""
    return (
        f'<circle class="{kind}" cx="{place[0]:g}" cy="{place[1]:g}" r="{radius:g}">'
        f"<title>{escape(note)}</title></circle>"
    )


def entry(kind: str, swatch: str, name: str) -> str:
    """A line of a legend: a small drawing, 26 by 10, and what it stands for."""
    return (
        f'<li class="{kind}"><svg viewBox="0 0 26 10" aria-hidden="true">{swatch}</svg>'
        f'<span class="name">{escape(name)}</span></li>'
    )
