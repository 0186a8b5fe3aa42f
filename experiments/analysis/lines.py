"""Lines of figures: means over runs, 95% intervals, colours that tell them apart.

Lines that have an order, such as levels, are shades of one ramp, pale to dark; all
others have colours, markers and dashes of their own, so that one is seen also where it
lies on another. Each is named at its end. Intervals are drawn from three runs on: those
of two are twelve times as wide as their differences.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter
from matplotlib.typing import ColorType

from experiments.engine.run_folder import Row
from p2pjax.evaluation import statistics

_RAMP = matplotlib.colormaps["viridis_r"]
# Okabe and Ito's colours, which people who do not see all colours can tell apart, and a
# few more for many methods.
_COLORS: Sequence[ColorType] = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#000000",
    "#7F7F7F",
    "#8C564B",
    "#9467BD",
    "#BCBD22",
    "#17BECF",
)
_MARKERS = "osD^vP*X<>hd"
_DASHES = ("-", (0, (5, 2)), (0, (2, 1)), (0, (6, 2, 1, 2)))
_FEW_POINTS = 15  # up to which points have markers and bars, not a band
_ENOUGH_RUNS = 3  # for intervals
_GAP = 0.045  # between names of lines, of the height of the axes
_NAME = 0.19  # inches of a name


def is_ordered(names: Sequence[Any]) -> bool:
    """Whether names differ in a number only: `level_0`, `level_15`.

    >>> is_ordered(["level_0", "level_15"]), is_ordered(["dpsgd", "pens"])
    (True, False)
    """
    stems = {re.sub(r"[\d.]+", "", str(name), count=1) for name in names}
    return len(names) > 1 and len(stems) == 1


def color_of(position: int, names: Sequence[Any]) -> ColorType:
    """Of the line of this name."""
    if is_ordered(names):
        return _RAMP((position + 1) / (len(names) + 1))
    return _COLORS[position % len(_COLORS)]


def marker_of(position: int) -> str:
    """Of the line at this position; no two of 144 have its colour as well."""
    return _MARKERS[(position + position // len(_COLORS)) % len(_MARKERS)]


def new_figure(x_label: str) -> tuple[Figure, Axes]:
    """Accuracy against what the label says, unless the axes are named otherwise."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel("accuracy, mean over agents")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def grouped(rows: list[Row], key_of: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Rows by key, in the order in which the keys appear."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key_of(row), []).append(row)
    return groups


def draw_lines(
    axes: Axes,
    lines: Mapping[Any, list[Row]],
    x_of: Callable[[Row], float],
    metric: str = "accuracy",
) -> list[float]:
    """Draws the mean over runs of a metric, a line per entry, and returns all x.

    An entry with a single x is a level line over those of the others.

    Args:
      axes: to draw in.
      lines: rows of every line, by name.
      x_of: a row's place on the axis.
      metric: what is drawn.
    """
    summaries = {
        name: {
            x: statistics.over_runs(np.asarray([row[metric] for row in same], float))
            for x, same in sorted(grouped(rows, x_of).items())
        }
        for name, rows in lines.items()
    }
    varied = [points for points in summaries.values() if len(points) > 1]
    xs = sorted({x for points in varied or summaries.values() for x in points})
    names = list(summaries)
    for position, (name, points) in enumerate(summaries.items()):
        if len(points) == 1 and xs:
            points = dict.fromkeys(xs, next(iter(points.values())))
        draw_points(axes, points, str(name), position, names)
    return xs


def draw_points(
    axes: Axes,
    points: Mapping[float, dict[str, float]],
    name: str,
    position: int,
    names: Sequence[Any],
) -> None:
    """Draws one line of means with their intervals.

    Args:
      axes: to draw in.
      points: by place on the axis, what `statistics.over_runs` says of the runs.
      name: of the line.
      position: of the line among all names.
      names: of all lines.
    """
    x, label = list(points), name.replace("_", " ")
    mean = np.asarray([point["mean"] for point in points.values()])
    width = np.asarray(
        [
            point["half_width"] if point["runs"] >= _ENOUGH_RUNS else 0.0
            for point in points.values()
        ]
    )
    color, is_few = color_of(position, names), len(x) <= _FEW_POINTS
    axes.plot(
        x,
        mean,
        label=label,
        color=color,
        marker=marker_of(position) if is_few else None,
        markersize=5,
        linestyle="-" if is_ordered(names) else _DASHES[position % len(_DASHES)],
    )
    if is_few:
        axes.errorbar(
            x, mean, yerr=width, fmt="none", ecolor=color, capsize=2, alpha=0.7
        )
    else:
        axes.fill_between(x, mean - width, mean + width, color=color, alpha=0.15, lw=0)


def cost_axis(axes: Axes) -> None:
    """Makes the horizontal axis logarithmic, with plain numbers such as 20 and 5k.

    Args:
      axes: with all that is drawn.
    """
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    between = (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=between))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())


def name_lines(axes: Axes) -> None:
    """Writes the name of each line beside its end, none on another.

    Where there are many, the figure becomes higher.

    Args:
      axes: of the figure, with all that is drawn.
    """
    ends = []
    for line in axes.get_lines():
        label = str(line.get_label())
        y = np.asarray(line.get_ydata(), float)
        if not label.startswith("_") and len(y) and np.isfinite(y[-1]):
            ends.append((_height(axes, y[-1]), label, line.get_color()))
    ends.sort()
    figure = axes.get_figure()
    if isinstance(figure, Figure):
        figure.set_figheight(max(figure.get_figheight(), _NAME * len(ends)))
    places = _spread([height for height, _, _ in ends])
    for place, (height, label, color) in zip(places, ends, strict=True):
        axes.annotate(
            label,
            xy=(1.0, height),
            xytext=(1.03, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize="small",
            color=color,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.6, "shrinkB": 0},
        )


def _height(axes: Axes, y: float) -> float:
    """Of a value, as a share of the height of the axes."""
    pixels = axes.transData.transform((axes.get_xlim()[0], y))
    return float(axes.transAxes.inverted().transform(pixels)[1])


def _spread(heights: Sequence[float]) -> list[float]:
    """Sorted heights, moved as little as keeps them apart and inside.

    >>> [round(place, 3) for place in _spread([0.5, 0.5, 0.9])]
    [0.477, 0.523, 0.9]
    """
    gap = min(_GAP, 1 / max(len(heights), 1))
    blocks: list[tuple[list[float], float]] = []  # heights and their centre
    for height in heights:
        block, centre = [height], height
        while blocks:
            others, middle = blocks[-1]
            if centre - middle >= gap * (len(block) + len(others)) / 2:
                break
            blocks.pop()
            block = others + block
            centre = sum(block) / len(block)
        half = gap * (len(block) - 1) / 2
        blocks.append((block, min(max(centre, half), 1 - half)))
    return [
        centre + gap * (number - (len(block) - 1) / 2)
        for block, centre in blocks
        for number in range(len(block))
    ]
