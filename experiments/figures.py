"""Figures in the paper's form, as PNG and SVG in the run folder.

Medians over runs; bars from the 40th to the 60th percentile.
"""

import json
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import run_folder
from experiments.run_folder import Row
from p2pjax import metrics

# In the order of the paper's lines: pale to dark, so that "more" reads as "darker".
COLORS = matplotlib.colormaps["viridis_r"]
REFERENCE_ROUNDS = (30, 100, 200, 500, 1000)


def accuracy_by_level(folder: Path) -> None:
    """Accuracy against averaging level, a line per number of mini-batches."""
    rows = run_folder.read(folder)
    figure, axes = _new_figure("averaging level (%)")
    shown = _shown_rounds(rows)
    for position, number in enumerate(shown):
        points = _over_runs(
            [row for row in rows if row["round"] == number],
            lambda row: row["setting"]["level"],
        )
        _draw(axes, points, f"{number} mini-batches", position, len(shown))
    _save(figure, axes, folder, "accuracy_by_level")


def accuracy_by_round(folder: Path) -> None:
    """Accuracy against mini-batches, a line per scheme."""
    rows = run_folder.read(folder)
    names = list(dict.fromkeys(row["scheme"] for row in rows))
    figure, axes = _new_figure("mini-batches")
    for position, name in enumerate(names):
        points = _over_runs(
            [row for row in rows if row["scheme"] == name], lambda row: row["round"]
        )
        _draw(axes, points, name, position, len(names))
    _save(figure, axes, folder, "accuracy_by_round")


def accuracy_by_group_size(folder: Path) -> None:
    """Final accuracy against the agents that average together, a line per level."""
    rows = run_folder.read(folder)
    last = max(row["round"] for row in rows)
    rows = [row for row in rows if row["round"] == last]
    levels = sorted({row["setting"]["level"] for row in rows})
    figure, axes = _new_figure("agents that average together")
    for position, level in enumerate(levels):
        points = _over_runs(
            [row for row in rows if row["setting"]["level"] == level],
            lambda row: row["setting"]["group_size"],
        )
        if level == 0:  # nobody averages, whatever the size of the group
            (alone,) = points.values()
            sizes = {row["setting"]["group_size"] for row in rows}
            points = {size: alone for size in sorted(sizes - {1})} or points
        _draw(axes, points, f"level {level}", position, len(levels))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    _save(figure, axes, folder, "accuracy_by_group_size")


def print_summary(folder: Path) -> None:
    """The table of final accuracies, for a person."""
    rows = json.loads((folder / "summary.json").read_text())["rows"]
    print(f"{'scheme':<20} {'setting':<36} median accuracy (40-60 %)   runs")
    for row in rows:
        if row["metric"] == "accuracy":
            setting = ", ".join(f"{k} {v}" for k, v in row["setting"].items())
            spread = f"({row['p40']:.3f}-{row['p60']:.3f})"
            print(
                f"{row['scheme']:<20} {setting:<36} {row['median']:.3f} {spread:<18} "
                f"{row['runs']:>6}"
            )
    print(f"Results are in {folder}")


def _shown_rounds(rows: list[Row]) -> list[int]:
    evaluated = {row["round"] for row in rows}
    return sorted({max(evaluated)} | evaluated.intersection(REFERENCE_ROUNDS))


def _over_runs(rows: list[Row], x_of) -> dict[float, dict[str, float]]:
    """Summary of accuracy at every x."""
    values: dict[float, list[float]] = {}
    for row in rows:
        values.setdefault(x_of(row), []).append(float(row["accuracy"]))
    return {x: metrics.over_runs(np.asarray(values[x])) for x in sorted(values)}


def _new_figure(x_label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel("accuracy, mean over agents")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _draw(
    axes: Axes,
    points: dict[float, dict[str, float]],
    label: str,
    position: int,
    num_lines: int,
) -> None:
    x = list(points)
    low, middle, high = (
        np.asarray([point[name] for point in points.values()])
        for name in ("p40", "median", "p60")
    )
    axes.errorbar(
        x,
        middle,
        yerr=np.stack([middle - low, high - middle]),
        label=label,
        color=COLORS((position + 1) / (num_lines + 1)),
        marker="o",
        markersize=4,
        capsize=2,
    )


def _save(figure: Figure, axes: Axes, folder: Path, name: str) -> None:
    axes.legend(
        frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5)
    )
    for ending in ("png", "svg"):
        figure.savefig(folder / f"{name}.{ending}", dpi=150)
