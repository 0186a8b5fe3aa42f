"""Figures of run folders, as PNG and SVG: means over runs with 95% intervals."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis.lines import (
    color_of,
    cost_axis,
    draw_lines,
    draw_points,
    grouped,
    marker_of,
    name_lines,
    new_figure,
)
from experiments.engine import reading
from experiments.engine.row_kinds import Row
from p2pjax.evaluation import statistics

MAX_LINES = 6
REFERENCE_ROUNDS = (30, 100, 200, 500, 1000)


def _scheme(row: Row) -> str:
    return row["scheme"]


def accuracy_by_level(folder: Path) -> None:
    """Accuracy against averaging level.

    A line per size of the mini-batches where the study varies it, else per number of
    mini-batches.
    """
    rows = reading.rows(folder, ("accuracy",))
    rows = [row for row in rows if "level" in row["setting"]]  # not those of files
    if "batch_size" in rows[0]["setting"]:
        rows = _final(rows)
        lines = grouped(rows, lambda row: row["setting"]["batch_size"])
        named = {f"mini-batches of {size}": lines[size] for size in sorted(lines)}
    else:
        shown = _shown_rounds(rows)
        lines = grouped(rows, lambda row: row["round"])
        named = {f"{number} mini-batches": lines[number] for number in shown}
    figure, axes = new_figure("averaging level (%)")
    draw_lines(axes, named, lambda row: row["setting"]["level"])
    save(figure, axes, folder, "accuracy_by_level")


def accuracy_by_hidden(folder: Path) -> None:
    """Accuracy against global hidden cells; a panel per modified vector."""
    rows = reading.rows(folder, ("accuracy",))
    panels = grouped(rows, lambda row: row["setting"]["modified"])
    figure = Figure(figsize=(4 * len(panels) + 2, 4), layout="constrained")
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (modified, same) in zip(every, panels.items(), strict=True):
        lines = grouped(same, lambda row: f"{row['round']} mini-batches")
        draw_lines(axes, lines, lambda row: row["setting"]["hidden"])
        axes.set_title(f"vector {modified} modified")
        axes.set_xlabel("global hidden cells")
        axes.grid(alpha=0.3)
    every[0].set_ylabel("accuracy, mean over agents")
    save_with_legend(figure, every[-1], folder, "accuracy_by_hidden")


def accuracy_by_round(
    folder: Path, label: str = "mini-batches", rows: list[Row] | None = None
) -> None:
    """Accuracy against rounds, which are what `label` says, a line per scheme.

    Args:
      folder: of the run.
      label: of the axis.
      rows: those that are drawn; all of the folder if not given.
    """
    rows = rows or reading.rows(folder, ("accuracy",))
    lines = grouped(rows, lambda row: row["scheme"])
    figure, axes = new_figure(label)
    draw_lines(axes, lines, lambda row: row["round"])
    save(figure, axes, folder, "accuracy_by_round")


def accuracy_by_messages(folder: Path, rows: list[Row] | None = None) -> None:
    """Accuracy against what it cost, means over runs; level lines where it is free.

    A level line is the best evaluation of a scheme that sends nothing. The points of a
    scheme are its evaluations with 95% intervals, the large one its best.

    Args:
      folder: of the run.
      rows: those that are drawn; all of the folder if not given.
    """
    _accuracy_by_cost(folder, "messages", "messages sent by an agent", rows)


def accuracy_by_bytes(
    folder: Path, rows: list[Row] | None = None, name: str = "accuracy_by_bytes"
) -> None:
    """As `accuracy_by_messages`, against bytes.

    Args:
      folder: of the run.
      rows: those that are drawn; all of the folder if not given.
      name: of the figure.
    """
    _accuracy_by_cost(folder, "bytes", "bytes sent by an agent", rows, name)


def _accuracy_by_cost(
    folder: Path,
    cost: str,
    label: str,
    rows: list[Row] | None,
    name: str = "accuracy_by_messages",
) -> None:
    rows = rows or reading.rows(folder, ("accuracy", cost))
    lines = grouped(rows, lambda row: row["scheme"])
    figure, axes = new_figure(label)
    found = {scheme: _by_cost(same, cost) for scheme, same in lines.items()}
    every = [spent for points in found.values() for spent in points if spent > 0]
    ends = (min(every), max(every)) if every else (1.0, 10.0)
    for position, (scheme, points) in enumerate(found.items()):
        best = max(points, key=lambda spent: points[spent]["mean"])
        if not any(points):
            level = dict.fromkeys(ends, points[best])
            draw_points(axes, level, scheme, position, list(lines))
            continue
        # A logarithmic axis has no zero.
        sending = {spent: point for spent, point in points.items() if spent > 0}
        draw_points(axes, sending, scheme, position, list(lines))
        color, marker = color_of(position, list(lines)), marker_of(position)
        axes.plot(best, points[best]["mean"], marker, color=color, ms=9)
    cost_axis(axes)
    save(figure, axes, folder, name)


def _by_cost(rows: list[Row], cost: str) -> dict[float, dict[str, float]]:
    """Of a scheme: accuracies by mean cost until then; the best where it is free."""
    found: dict[float, dict[str, float]] = {}
    for same in grouped(rows, lambda row: row["round"]).values():
        spent = float(np.mean([row[cost] for row in same]))
        point = statistics.over_runs(
            np.asarray([row["accuracy"] for row in same], float)
        )
        if spent not in found or point["mean"] > found[spent]["mean"]:
            found[spent] = point
    return found


def curves_by_round(
    folder: Path, names: tuple[str, ...], panel: str | None = None
) -> None:
    """What the names say against rounds: a row of panels for each.

    There is a panel per value of the setting `panel` and in it a line per scheme;
    without, one panel with a line per scheme and setting. Norms have a logarithmic
    axis, and values that are not finite are left out.
    """
    rows = reading.rows(folder, names)
    every = grouped(rows, lambda row: row["setting"][panel] if panel else "")
    size = (4 * len(every) + 2, 3.2 * len(names) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(names), len(every), sharex=True, squeeze=False)
    for place, (value, same) in enumerate(every.items()):
        for metric, axes in zip(names, grid[:, place], strict=True):
            known = [row for row in same if row[metric] is not None]
            lines = grouped(known, lambda row: _line_name(row, panel))
            draw_lines(axes, lines, lambda row: row["round"], metric)
            axes.set_ylabel(metric if place == 0 else "")
            axes.grid(alpha=0.3)
            if metric == "norm":
                axes.set_yscale("log")
        grid[0, place].set_title(f"{panel} {value}" if panel else "")
        grid[-1, place].set_xlabel("rounds")
    save_with_legend(figure, grid[0, -1], folder, "curves_by_round")


def _line_name(row: Row, panel: str | None) -> str:
    others = [
        v if isinstance(v, str) else f"{v:g}"
        for k, v in row["setting"].items()
        if k != panel
    ]
    return " ".join([row["scheme"], *others])


def score_by_round(folder: Path, metric: str, label: str) -> None:
    """A metric against rounds, a line per scheme and setting that has it."""
    rows = [row for row in reading.rows(folder) if metric in row]
    lines = grouped(
        rows, lambda row: ", ".join([row["scheme"], *map(str, row["setting"].values())])
    )
    figure, axes = new_figure("network epochs")
    axes.set_ylabel(label)
    draw_lines(axes, lines, lambda row: row["round"], metric)
    save(figure, axes, folder, f"{metric}_by_round")


def accuracy_by_setting(folder: Path, setting: str, label: str) -> None:
    """Final accuracy against what the study varies, a line per scheme.

    A scheme that ran at one value only, because the setting means nothing to it, is a
    level line over the values of the others.
    """
    rows = _final(reading.rows(folder, ("accuracy",)))
    lines = grouped(rows, lambda row: row["scheme"])
    figure, axes = new_figure(label)
    xs = draw_lines(axes, lines, lambda row: row["setting"][setting])
    if len(xs) > 2 and min(xs) > 0 and max(xs) / min(xs) >= 16:
        axes.set_xscale("log", base=2)
        axes.set_xticks(xs)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    save(figure, axes, folder, f"accuracy_by_{setting}")


def accuracy_in_panels(
    folder: Path,
    panels: Sequence[str],
    x: Callable[[Row], float],
    label: str,
    *,
    line: Callable[[Row], str] = _scheme,
    name: str = "accuracy_in_panels",
    final: bool = True,
    rows: list[Row] | None = None,
) -> None:
    """Accuracy in a panel for each combination of some settings, a line per scheme.

    Args:
      folder: of the run.
      panels: names of the settings; rows may lack some.
      x: a row's place on the axis.
      label: of the axis.
      line: a row's line; that of its scheme if not given.
      name: of the figure.
      final: draw the last evaluations only.
      rows: those that are drawn; all of the folder if not given.
    """
    rows = rows or reading.rows(folder, ("accuracy",))
    rows = _final(rows) if final else rows
    names = _with_several_values(rows, panels)
    every = grouped(rows, lambda row: _said(row, names))
    figure, grid = _panels(list(every), label)
    for axes, same in zip(grid.flat, every.values(), strict=False):
        draw_lines(axes, grouped(same, line), x)
    save_with_legend(figure, grid[0, -1], folder, name)


def accuracy_by_traffic(
    folder: Path, line: Callable[[Row], str], moving: Sequence[str]
) -> None:
    """Final accuracy against what an agent sent, means over runs.

    What a server sends back is not counted; bars are 95% intervals. There is a panel
    per scheme, in it a line per way of averaging with a point per value of its
    settings; a scheme that sends nothing is a level line in the panels of others.

    Args:
      folder: of the run.
      line: a row's way of averaging.
      moving: settings that are points of a line.
    """
    rows = _final(reading.rows(folder, ("accuracy", "bytes")))
    fixed = dict.fromkeys(key for row in rows for key in row["setting"])
    names = [name for name in fixed if name not in (*moving, "level")]
    names = _with_several_values(rows, names)
    every = grouped(rows, lambda row: (row["scheme"], _said(row, names)))
    sending = {key: same for key, same in every.items() if _sends(same)}
    if not sending:
        return
    ways = list(grouped(rows, line))
    titles = [", ".join(filter(None, key)).replace("_", " ") for key in sending]
    figure, grid = _panels(titles, "bytes sent by an agent")
    for axes, ((_, where), same) in zip(grid.flat, sending.items(), strict=False):
        for way, own in grouped(same, line).items():
            position = ways.index(way)
            by_setting = grouped(own, lambda row: str(row["setting"])).values()
            points = [one for one in by_setting if _sends(one)]
            if not points:
                continue
            means = [item for o in points for item in _by_cost(o, "bytes").items()]
            spent = dict(sorted(means, key=lambda item: item[0]))
            draw_points(axes, spent, way, position, ways)
        for scheme, other in every:
            silent = every[scheme, other]
            if other == where and not _sends(silent):
                mean = np.mean([row["accuracy"] for row in silent])
                label = scheme.replace("_", " ")
                axes.axhline(mean, color="#7F7F7F", ls="--", lw=1, label=label)
        cost_axis(axes)
    save_with_legend(figure, grid[0, -1], folder, "accuracy_by_traffic")


def _sends(rows: list[Row]) -> bool:
    return any(row["bytes"] for row in rows)


def _with_several_values(rows: list[Row], names: Sequence[str]) -> list[str]:
    """Those of the settings that tell rows apart."""
    return [
        name
        for name in names
        if len({str(row["setting"].get(name)) for row in rows}) > 1
    ]


def _said(row: Row, names: Sequence[str]) -> str:
    """Those of a row's settings that it has, for a person."""
    found = [str(row["setting"][name]) for name in names if name in row["setting"]]
    return ", ".join(found).replace("_", " ")


def _panels(titles: Sequence[str], label: str) -> tuple[Figure, np.ndarray]:
    """A figure with a panel for each title, up to four in a row."""
    num_columns = min(4, len(titles))
    num_rows = -(-len(titles) // num_columns)
    size = (3.2 * num_columns + 1.5, 2.8 * num_rows + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(num_rows, num_columns, sharey=True, squeeze=False)
    for axes in grid.flat[len(titles) :]:
        axes.axis("off")
    for axes, title in zip(grid.flat, titles, strict=False):
        axes.set_title(title, fontsize="small")
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy, mean over agents")
    return figure, grid


def print_summary(folder: Path) -> None:
    """The table of final accuracies, for a person."""
    print(f"{'scheme':<20} {'setting':<36} mean accuracy ± 95% interval   runs")
    for row in reading.summary_rows(folder, "accuracy", ("mean", "half_width", "runs")):
        setting = ", ".join(f"{k} {v}" for k, v in row["setting"].items())
        spread = f"± {row['half_width']:.3f}" if row["runs"] > 1 else ""
        print(
            f"{row['scheme']:<20} {setting:<36} {row['mean']:.3f} {spread:<22} "
            f"{row['runs']:>6}"
        )
    print(f"Results are in {folder}")


def _shown_rounds(rows: list[Row]) -> list[int]:
    """All numbers of mini-batches if they are few, else the usual ones and the last."""
    evaluated = {row["round"] for row in rows}
    if len(evaluated) <= MAX_LINES:
        return sorted(evaluated)
    return sorted({max(evaluated)} | evaluated.intersection(REFERENCE_ROUNDS))


def _final(rows: list[Row]) -> list[Row]:
    last = max(row["round"] for row in rows)
    return [row for row in rows if row["round"] == last]


def save(figure: Figure, axes: Axes, folder: Path, name: str) -> None:
    """Writes a figure of one pair of axes, its lines named at their ends."""
    name_lines(axes)
    save_plain(figure, folder, name)


def save_with_legend(figure: Figure, axes: Axes, folder: Path, name: str) -> None:
    """Writes a figure with the legend of its axes beside them."""
    axes.legend(
        frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5)
    )
    save_plain(figure, folder, name)


def save_plain(figure: Figure, folder: Path, name: str) -> None:
    """Writes a figure as it is."""
    for ending in ("png", "svg"):
        figure.savefig(folder / f"{name}.{ending}", dpi=150)
