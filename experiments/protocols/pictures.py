"""Figures of `experiments.protocols`: panels with a line per scheme, one legend."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.analysis import figures
from experiments.analysis.lines import draw_lines, grouped
from experiments.engine import reading
from experiments.engine.row_kinds import Row
from experiments.protocols.consensus import EXACT
from experiments.protocols.results import metric_of, rows_of

SENT = "mean_messages"  # by all runs of a scheme at one evaluation
POOLED = "accuracy on all test sets, mean of agents"
AGENTS = "accuracy on own test sets, mean of agents"
MEAN_MODEL = "accuracy of the mean model"


class Panel(NamedTuple):
    """A metric against something."""

    metric: str
    label: str
    x_label: str
    x_of: Callable[[Row], float]
    x_log: bool = False
    y_log: bool = False


def by_setting(folder: Path, setting: str, label: str, *, x_log: bool = False) -> None:
    """Accuracies in the end against what a study varies: agents' and the mean's.

    Args:
      folder: of the run.
      setting: which one.
      label: of the axis.
      x_log: whether it is logarithmic.
    """
    rows = last_rows(rows_of(folder))

    def x_of(row: Row) -> float:
        return row["setting"][setting]

    panels = [
        Panel("pooled_accuracy", POOLED, label, x_of, x_log),
        Panel("accuracy", AGENTS, label, x_of, x_log),
        Panel("merged_accuracy", MEAN_MODEL, label, x_of, x_log),
    ]
    draw(folder, f"accuracy_by_{setting}", rows, panels)


def by_messages(folder: Path) -> None:
    """Accuracy against messages and against rounds, and how far models are apart.

    Args:
      folder: of the run.
    """
    rows = with_mean_messages(rows_of(folder))
    metric = metric_of(rows)
    label = POOLED if metric == "pooled_accuracy" else AGENTS
    sends = [row for row in rows if row[SENT] > 0]  # a logarithmic axis has no zero
    panels = [
        Panel(metric, label, "messages of an agent", lambda r: r[SENT], x_log=True),
        Panel(metric, label, "network epochs", lambda row: row["round"]),
        Panel(
            "disagreement",
            "squared distance from the mean model",
            "network epochs",
            lambda row: row["round"],
            y_log=True,
        ),
    ]
    draw(folder, "accuracy_by_messages", rows, panels, {0: sends})


def merged(folder: Path) -> None:
    """Agents and their mean model against rounds, on the same scale.

    Args:
      folder: of the run.
    """
    epochs: Callable[[Row], float] = lambda row: row["round"]
    panels = [
        Panel("pooled_accuracy", POOLED, "network epochs", epochs),
        Panel("merged_accuracy", MEAN_MODEL, "network epochs", epochs),
    ]
    draw(folder, "merged_by_round", rows_of(folder), panels, same_scale=True)


def consensus(folder: Path) -> None:
    """Squared error against mixings and against messages; none is drawn at the bottom.

    Args:
      folder: of the run.
    """
    rows = [
        row
        | {
            "t": row["setting"]["t"],
            "squared_error": max(row["squared_error"], EXACT),
        }
        for row in reading.rows(folder, numbers=("squared_error", "messages"))
    ]
    rows = with_mean_messages(rows, "t")
    panels = [
        Panel(
            "squared_error", "squared error", "mixings", lambda r: r["t"], y_log=True
        ),
        Panel(
            "squared_error",
            "squared error",
            "messages of an agent",
            lambda row: row[SENT],
            y_log=True,
        ),
    ]
    draw(folder, "error_by_mixings", rows, panels)


def draw(
    folder: Path,
    name: str,
    rows: Sequence[Row],
    panels: Sequence[Panel],
    other_rows: dict[int, list[Row]] | None = None,
    *,
    same_scale: bool = False,
) -> None:
    """One figure of panels side by side, a line per scheme and method.

    Args:
      folder: where it goes.
      name: of its files.
      rows: that are drawn.
      panels: in order.
      other_rows: of some panels, by place.
      same_scale: whether panels share what they measure.
    """
    figure = Figure(figsize=(4.2 * len(panels) + 2.2, 4), layout="constrained")
    every = figure.subplots(1, len(panels), sharey=same_scale, squeeze=False)[0]
    for place, (axes, panel) in enumerate(zip(every, panels, strict=True)):
        own = [
            row
            for row in (other_rows or {}).get(place, rows)
            if row.get(panel.metric) is not None
        ]
        if panel.y_log:
            own = [row for row in own if row[panel.metric] > 0]
        xs = draw_lines(axes, grouped(own, line_of), panel.x_of, panel.metric)
        if panel.x_log:
            axes.set_xscale("log")
        if panel.x_log and len(xs) <= 6:
            axes.set_xticks(xs)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
        if panel.y_log:
            axes.set_yscale("log", nonpositive="mask")
            if own:  # intervals of means reach below 0, where no such axis ends
                axes.set_ylim(bottom=min(row[panel.metric] for row in own) / 3)
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.label)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figures.save_with_legend(figure, every[-1], folder, name)


def line_of(row: Row) -> str:
    """The name of a row's line: its scheme, and its method where there are several."""
    method = row["setting"].get("method")
    return f"{row['scheme']}, {method}" if method else row["scheme"]


def last_rows(rows: Sequence[Row]) -> list[Row]:
    """Those of the last evaluation."""
    last = max(row["round"] for row in rows)
    return [row for row in rows if row["round"] == last]


def with_mean_messages(rows: Sequence[Row], step: str = "round") -> list[Row]:
    """Rows that also say what runs of a scheme have sent by then, in the mean.

    Args:
      rows: with messages.
      step: what tells evaluations apart.
    """

    def key(row: Row) -> tuple[str, int]:
        return line_of(row), row[step]

    sent = {
        where: float(np.mean([row["messages"] for row in same]))
        for where, same in grouped(list(rows), key).items()
    }
    return [row | {SENT: sent[key(row)]} for row in rows]
