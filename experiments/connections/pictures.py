"""Figures of a study of connections: Pareto front, shares in cluster, graphs."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.analysis import figures, lines
from experiments.connections import fronts
from experiments.connections.results import (
    Runs,
    in_cluster,
    named_links,
    named_rows,
    runs_by_method,
)
from experiments.engine.row_kinds import Row


def draw(folder: Path) -> None:
    """Accuracy against messages, in-cluster shares over time, learned graphs."""
    runs_of = runs_by_method(folder)
    _draw_pareto(folder, runs_of)
    _draw_shares(folder)
    _draw_graphs(folder)


def _draw_pareto(folder: Path, runs_of: Mapping[str, Runs]) -> None:
    """Best accuracies against messages until then; the fronts are lines."""
    figure, axes = lines.new_figure("messages sent by an agent until its run's best")
    fronts.draw(axes, runs_of)
    figures.save_with_legend(figure, axes, folder, "pareto")


def _draw_shares(folder: Path) -> None:
    """In-cluster peers among those averaged with, against rounds."""
    rows = [
        row | {"share": in_cluster(row)}
        for row in named_rows(folder)
        if in_cluster(row) is not None
    ]
    if not rows:
        return
    figure, axes = lines.new_figure("rounds")
    axes.set_ylabel("in-cluster share of peers averaged with")
    of_methods = lines.grouped(rows, lambda row: row["scheme"])
    lines.draw_lines(axes, of_methods, lambda row: row["round"], "share")
    figures.save(figure, axes, folder, "in_cluster_by_round")


def _draw_graphs(folder: Path) -> None:
    """Whom each agent averaged with in the first run, sorted by true cluster."""
    every = named_links(folder)
    first = min((row["run"] for row in every), default=None)
    found = [row for row in every if row["run"] == first]
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
