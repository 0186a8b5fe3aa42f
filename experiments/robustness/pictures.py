"""Figures of `experiments.robustness`: what attackers and compression cost."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.analysis import figures
from experiments.analysis.lines import color_of, draw_lines, grouped
from experiments.engine import reading
from experiments.engine.row_kinds import Row
from experiments.robustness.adversaries import NONE

CHANCE = "expected_from_attackers"


def by_attackers(folder: Path, metrics: dict[str, str], name: str) -> None:
    """Metrics in the end against attackers: a row of panels each, one per attack.

    Schemes without attackers, f = 0, are level lines.

    Args:
      folder: of the run.
      metrics: what axes are called, by metric.
      name: of the figure.
    """
    rows = last_rows(reading.rows(folder, tuple(metrics)))
    _by_setting(folder, rows, "f", "attackers f", metrics, name)


def by_level(folder: Path, metrics: dict[str, str]) -> None:
    """Metrics in the end against levels: a row of panels each, one per attack.

    Agents that share nothing, level 0, are a level line.

    Args:
      folder: of the run.
      metrics: what axes are called, by metric; rows may lack all but the accuracy.
    """
    rows = last_rows(reading.rows(folder, ("accuracy",)))
    label = "percent of shared cells"
    _by_setting(folder, rows, "level", label, metrics, "accuracy_by_level")


def _by_setting(
    folder: Path,
    rows: list[Row],
    setting: str,
    x_label: str,
    metrics: dict[str, str],
    name: str,
) -> None:
    level = [row for row in rows if row["setting"][setting] == 0]
    varied = grouped(
        [row for row in rows if row["setting"][setting]],
        lambda row: row["setting"]["attack"],
    )
    size = (3.2 * max(len(varied), 1) + 2.2, 2.8 * len(metrics) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(
        len(metrics), max(len(varied), 1), sharex=True, sharey="row", squeeze=False
    )
    for column, (attack, same) in enumerate(varied.items()):
        for axes, (metric, label) in zip(grid[:, column], metrics.items(), strict=True):
            if all(row.get(metric) is None for row in same):
                axes.set_axis_off()
                continue
            lines = grouped(
                [row for row in same + level if row.get(metric) is not None],
                lambda row: row["scheme"],
            )
            xs = draw_lines(axes, lines, lambda row: row["setting"][setting], metric)
            axes.set_xticks(xs)
            if metric in ("squared_error", "disagreement"):
                axes.set_yscale("log", nonpositive="mask")
                seen = [row[metric] for row in rows if (row[metric] or 0) > 0]
                if seen:  # intervals of means reach below 0, where no such axis ends
                    axes.set_ylim(bottom=min(seen) / 3)
            axes.set_ylabel(label if column == 0 else "")
            axes.grid(alpha=0.3)
        grid[0, column].set_title(_attack(attack))
        lowest = [axes for axes in grid[:, column] if axes.axison][-1]
        lowest.set_xlabel(x_label)
        lowest.tick_params(labelbottom=True)
    figures.save_with_legend(figure, grid[0, -1], folder, name)


def by_rule(folder: Path, metrics: dict[str, str]) -> None:
    """Metrics in the end as tables of rules and attacks, one beside the other.

    Args:
      folder: of the run.
      metrics: what tables are called, by metric, shares between 0 and 1.
    """
    rows = last_rows(reading.rows(folder, tuple(metrics)))
    rules = list(dict.fromkeys(row["scheme"] for row in rows))
    attacks = list(dict.fromkeys(row["setting"]["attack"] for row in rows))
    panels = grouped(rows, lambda row: _case(row["setting"]))
    size = (
        0.75 * len(attacks) * len(panels) + 2.5,
        (0.32 * len(rules) + 1.1) * len(metrics) + 0.6,
    )
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(
        len(metrics), len(panels), sharex=True, sharey=True, squeeze=False
    )
    for column, (title, same) in enumerate(panels.items()):
        for axes, (metric, label) in zip(grid[:, column], metrics.items(), strict=True):
            cells = _cells(same, metric, rules, attacks)
            axes.imshow(cells, vmin=0, vmax=1, cmap="viridis", aspect="auto")
            for (place, other), value in np.ndenumerate(cells):
                if np.isfinite(value):
                    color = "white" if value < 0.6 else "black"
                    said = f"{100 * value:.1f}"
                    axes.text(
                        other,
                        place,
                        said,
                        ha="center",
                        va="center",
                        color=color,
                        fontsize="small",
                    )
            axes.set_title(f"{label}\n{title}" if axes is grid[0, column] else label)
        grid[-1, column].set_xticks(
            range(len(attacks)), [_attack(name) for name in attacks], rotation=30
        )
    grid[0, 0].set_yticks(range(len(rules)), [_plain(name) for name in rules])
    figures.save_plain(figure, folder, "accuracy_by_rule")


def _cells(
    rows: list[Row], metric: str, rules: list[str], attacks: list[str]
) -> np.ndarray:
    """Means over runs `[rules, attacks]`; NaN where there is none."""
    found = np.full((len(rules), len(attacks)), np.nan)
    for (rule, attack), same in grouped(
        rows, lambda row: (row["scheme"], row["setting"]["attack"])
    ).items():
        values = np.asarray([row[metric] for row in same], float)
        found[rules.index(rule), attacks.index(attack)] = values.mean()
    return found


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _attack(name: str) -> str:
    return "no attack" if name == NONE else _plain(name)


def _case(setting: dict) -> str:
    """Graph, attackers and data of the study separated."""
    split = "classes apart" if setting["split"] == "split" else setting["split"]
    return f"{_plain(setting['graph'])}, {setting['f']} attackers, {split}"


def by_bytes(folder: Path) -> None:
    """Accuracy against bytes on each graph, with the consensus steps that are best."""
    chosen = best_steps(reading.rows(folder, ("accuracy", "bytes")))
    for graph, same in grouped(chosen, lambda row: row["setting"]["graph"]).items():
        figures.accuracy_by_bytes(folder, same, f"accuracy_by_bytes_{graph}")


def best_steps(rows: list[Row]) -> list[Row]:
    """Without consensus steps that are worse for validation than others.

    Args:
      rows: of the study compression.
    """
    found = []
    for same in grouped(
        rows, lambda row: (row["scheme"], row["setting"]["graph"])
    ).values():
        of_steps = grouped(same, lambda row: row["setting"].get("consensus_step"))

        found += max(of_steps.values(), key=_validated)
    return found


def _validated(rows: Iterable[Row]) -> float:
    last = [row["valid_accuracy"] for row in last_rows(list(rows))]
    return float(np.nan_to_num(np.mean(np.asarray(last, float))))


def last_rows(rows: list[Row]) -> list[Row]:
    """Those of the last evaluation."""
    last = max(row["round"] for row in rows)
    return [row for row in rows if row["round"] == last]


def by_group(folder: Path, metrics: tuple[str, ...]) -> None:
    """Accuracies of means of models in the end: a panel per setting, bars by scheme.

    Args:
      folder: of the run.
      metrics: of each group whose models are averaged.
    """
    rows = last_rows(reading.rows(folder, metrics))
    panels = grouped(rows, lambda row: _said(row["setting"]))
    schemes = list(dict.fromkeys(row["scheme"] for row in rows))
    size = (4 * len(panels) + 1.5, 4)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, same) in zip(grid, panels.items(), strict=True):
        lines = grouped(same, lambda row: row["scheme"])
        places = np.asarray([schemes.index(name) for name in lines])
        for number, metric in enumerate(metrics):
            heights = [
                np.mean(np.asarray([row[metric] for row in own], float))
                for own in lines.values()
            ]
            axes.barh(
                places + (number - 1) * 0.26,
                heights,
                0.24,
                color=color_of(number, metrics),
                label=metric.replace("_", " "),
            )
        axes.set_title(title)
        axes.set_xlabel("accuracy")
        axes.grid(alpha=0.3, axis="x")
    grid[0].set_yticks(range(len(schemes)), [n.replace("_", " ") for n in schemes])
    grid[0].invert_yaxis()
    figures.save_with_legend(figure, grid[-1], folder, "accuracy_by_group")


def _said(setting: dict) -> str:
    return ", ".join(_plain(f"{name} {v}") for name, v in setting.items())


def by_attack(folder: Path) -> None:
    """Accuracy, attack success and how often attackers are chosen: bars by method.

    Attackers chosen are told as a multiple of those expected of a uniform choice in the
    own cluster.

    Args:
      folder: of the run.
    """
    rows = last_rows(reading.rows(folder, ("accuracy",)))
    measures: dict[str, Callable[[Row], float | None]] = {
        "accuracy of honest agents": lambda row: row["accuracy"],
        "attack success": lambda row: row.get("attack_success"),
        "attackers averaged with, 1 = by chance": chosen_attackers,
    }
    methods = list(dict.fromkeys(row["scheme"] for row in rows))
    attacks = grouped(rows, lambda row: row["setting"]["attack"])
    height = 0.18 * len(methods) * len(attacks) + 1.2
    figure = Figure(figsize=(11, height), layout="constrained")
    grid = figure.subplots(1, len(measures), sharey=True)
    thickness = 0.8 / len(attacks)
    for axes, (label, measure) in zip(grid, measures.items(), strict=True):
        for number, (attack, same) in enumerate(attacks.items()):
            by_method = grouped(same, lambda row: row["scheme"])
            known = {
                methods.index(name): np.mean(np.asarray(values, float))
                for name, own in by_method.items()
                if None not in (values := [measure(row) for row in own])
            }
            places = np.asarray(list(known)) + (number + 0.5) * thickness - 0.4
            axes.barh(
                places,
                list(known.values()),
                0.9 * thickness,
                color=color_of(number, list(attacks)),
                label=attack.replace("_", " "),
            )
        axes.set_xlabel(label)
        axes.grid(alpha=0.3, axis="x")
    grid[-1].axvline(1, color="black", lw=0.8)
    grid[0].set_yticks(
        range(len(methods)), [name.replace("_", " ") for name in methods]
    )
    grid[0].invert_yaxis()
    figures.save_with_legend(figure, grid[-1], folder, "selection_by_attack")


def chosen_attackers(row: Row) -> float | None:
    """Attackers that honest agents averaged with, as a multiple of chance."""
    share, chance = (row.get(name) for name in ("from_attackers", CHANCE))
    return share / chance if share is not None and chance else None
