"""What the sections of a report share: axes of all folders, and frames of figures."""

import math
from collections.abc import Sequence
from html import escape

from experiments.report import charts, svg
from experiments.report.charts import Series
from experiments.report.reading import Folder
from experiments.report.svg import Axis

ACCURACY = "accuracy (mean over agents)"


def common_axis(
    lines_by_folder: Sequence[Sequence[Series]], label: str, zero: bool = False
) -> Axis:
    """One for all folders, so that they compare at a glance."""
    heights = [
        height
        for lines in lines_by_folder
        for one in lines
        for point in one.points
        for height in (point.low, point.high)
    ]
    return svg.enclosing_axis(label, [*heights, *([0.0] if zero else [])])


def visible(lines: Sequence[Series]) -> list[Series]:
    """Lines of which something can be drawn."""
    return [one for one in lines if charts.segments(one.points)]


def xs(lines: Sequence[Series]) -> list[float]:
    """All places on the x axis."""
    return [p.x for one in lines for p in one.points if math.isfinite(p.x)]


def figure(folder: Folder, content: str) -> str:
    """What is drawn of a folder, under its name."""
    return card(folder.name, content, is_finished=folder.is_finished)


def card(caption: str, content: str, is_finished: bool = True) -> str:
    """What is drawn, under a caption."""
    state = "" if is_finished else ' <span class="unfinished">unfinished</span>'
    return (
        f'<figure class="card"><figcaption>{escape(caption)}{state}</figcaption>'
        f"{content}</figure>"
    )
