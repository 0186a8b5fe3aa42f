"""What a study of connections found: table, Pareto front, learned graphs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments import figures, run_folder
from experiments.connection_thesis import printed
from experiments.run_folder import Row
from p2pjax.evaluation import statistics

Runs = list[list[Row]]  # evaluations of every run


def draw(folder: Path) -> None:
    """Accuracy against messages, in-cluster shares over time, learned graphs."""
    runs_of = runs_by_method(folder)
    _draw_pareto(folder, runs_of)
    _draw_shares(folder)
    _draw_graphs(folder)


def runs_by_method(folder: Path) -> dict[str, Runs]:
    """All evaluations, by method and run."""
    runs_of: dict[str, Runs] = {}
    for row in run_folder.read(folder):
        runs = runs_of.setdefault(row["scheme"], [])
        if row["run"] == len(runs):
            runs.append([])
        runs[row["run"]].append(row)
    return runs_of


def curves(runs: Runs, metric: str) -> np.ndarray:
    """`[S, E]`; NaN where a row does not have it."""
    values = [[row.get(metric) for row in run] for run in runs]
    return np.asarray(values, float)


def at_best(runs: Runs) -> tuple[float, float]:
    """Mean over runs of their best accuracy, and of what an agent sent until then."""
    accuracy, messages = curves(runs, "accuracy"), curves(runs, "messages")
    best = accuracy.argmax(1)[:, None]
    until = np.take_along_axis(messages, best, 1)
    return float(accuracy.max(1).mean()), float(until.mean())


def share_at_the_end(runs: Runs) -> float:
    """In-cluster peers among those averaged with, in the last tenth of the rounds."""
    last = runs[0][-1]["round"]
    late = [[row for row in run if row["round"] > 0.9 * last] for run in runs]
    shares = [in_cluster(row) for run in late for row in run]
    known = [share for share in shares if share is not None]
    return float(np.mean(known)) if known else np.nan


def in_cluster(row: Row) -> float | None:
    """Of the peers averaged with, or of all messages where that is the same."""
    return row.get("merged_in_cluster", row.get("in_cluster"))


def print_table(folder: Path, column: tuple[str, bool] | None) -> None:
    """Every method's accuracy, cost and graph, beside what the thesis printed.

    `top` is the mean over runs of their best, `stable` the best of the mean curve where
    it has converged, as in the thesis; messages and models are those that an agent sent
    in the whole run, and stars are on the front of top against messages until then.
    """
    runs_of = runs_by_method(folder)
    named = "" if column is None else f" thesis, {column[0]}"
    print(
        f"{'method':<12} top     stable  final   messages  /sparse  models    MB       "
        f"gini    in cluster{named}"
    )
    is_best = dict(zip(runs_of, front(runs_of), strict=True))
    sparse = runs_of.get("sparse")
    for method, runs in runs_of.items():
        accuracy = curves(runs, "accuracy")
        stable = statistics.top_ua_stable_max(accuracy, lengths=_windows(runs))
        last = [run[-1] for run in runs]
        messages, num_bytes = (
            float(np.mean([row[name] for row in last]))
            for name in ("messages", "bytes")
        )
        models = num_bytes / 4 / last[0]["parameters"]
        ratio = np.nan
        if sparse is not None:
            ratio = messages / np.mean([run[-1]["messages"] for run in sparse])
        gini = np.mean([row.get("gini", np.nan) for row in last])
        known = None if column is None else printed(method, *column)
        star = "*" if is_best[method] else ""
        print(
            f"{method + star:<12} {accuracy.max(1).mean():.4f}  "
            f"{_number(stable, '.4f'):<7} {accuracy[:, -1].mean():.4f}  "
            f"{messages:<9.1f} {_number(ratio, '.3f'):<8} "
            f"{models:<9.1f} {num_bytes / 1e6:<8.2f} {_number(gini, '.3f'):<7} "
            f"{_number(share_at_the_end(runs), '.3f'):<10}"
            f"{'' if known is None else f' {known:.2f}'}"
        )


def _windows(runs: Runs) -> list[int]:
    """The thesis' windows, which are rounds, in evaluations: two or more."""
    every = runs[0][0]["round"]
    lengths = (length // every for length in statistics.STABLE_LENGTHS)
    return [length for length in lengths if length > 1]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or np.isnan(value) else format(value, form)


def front(runs_of: Mapping[str, Runs]) -> np.ndarray:
    """Which methods `[P]` no other beats in accuracy and in messages until then."""
    score, cost = zip(*(at_best(runs) for runs in runs_of.values()), strict=True)
    return statistics.pareto_front(score, cost)


def _draw_pareto(folder: Path, runs_of: Mapping[str, Runs]) -> None:
    """Best accuracies against messages until then; the front is a line."""
    figure, axes = figures.new_figure("messages sent by an agent until its run's best")
    score, cost = np.array([at_best(runs) for runs in runs_of.values()]).T
    is_front = front(runs_of)
    order = np.argsort(cost[is_front])
    axes.plot(cost[is_front][order], score[is_front][order], "-", c="0.7", zorder=1)
    for position, name in enumerate(runs_of):
        color = figures.color_of(position, len(runs_of))
        marker = "D" if is_front[position] else "o"
        label = name.replace("_", " ")
        axes.plot(cost[position], score[position], marker, c=color, label=label)
    smallest = min(cost[cost > 0], default=1.0)
    axes.set_xscale("symlog", linthresh=smallest)
    figures.save(figure, axes, folder, "pareto")


def _draw_shares(folder: Path) -> None:
    """In-cluster peers among those averaged with, against rounds."""
    rows = [
        row | {"share": in_cluster(row)}
        for row in run_folder.read(folder)
        if in_cluster(row) is not None
    ]
    if not rows:
        return
    figure, axes = figures.new_figure("rounds")
    axes.set_ylabel("in-cluster share of peers averaged with")
    lines = figures.grouped(rows, lambda row: row["scheme"])
    figures.draw_all(axes, lines, lambda row: row["round"], "share")
    figures.save(figure, axes, folder, "in_cluster_by_round")


def _draw_graphs(folder: Path) -> None:
    """Whom each agent averaged with in the first run, sorted by true cluster."""
    if not (folder / "links.jsonl").exists():
        return
    found = [r for r in run_folder.read(folder, "links.jsonl") if r["run"] == 0]
    if not found:
        return
    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(3 * columns, 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid:
        axes.axis("off")
    for axes, row in zip(grid, found, strict=False):
        cluster = np.asarray(row["cluster"])
        axes.axis("on")
        axes.imshow(_matrix(row), cmap="magma", interpolation="nearest")
        for end in np.cumsum(np.unique(cluster, return_counts=True)[1])[:-1]:
            axes.axhline(end - 0.5, color="w", linewidth=0.5)
            axes.axvline(end - 0.5, color="w", linewidth=0.5)
        axes.set_title(row["scheme"].replace("_", " "))
        axes.set_xticks([])
        axes.set_yticks([])
    figure.supxlabel("whose model, sorted by true cluster")
    figure.supylabel("who averaged with it")
    figures.save_plain(figure, folder, "graphs")


def _matrix(row: Row) -> np.ndarray:
    """`[N, N]` times that the row averaged with the column, sorted by cluster."""
    cluster = np.asarray(row["cluster"])
    pairs = np.zeros((len(cluster), len(cluster)))
    for receiver, sender, number in row["merged" if "merged" in row else "links"]:
        pairs[receiver, sender] = number
    order = np.argsort(cluster, kind="stable")
    return pairs[np.ix_(order, order)]
