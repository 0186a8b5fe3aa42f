"""Scores of every task in the multi-task study, against the task alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.engine import reading, row_kinds
from experiments.engine.row_kinds import Row, require
from experiments.engine.untrusted_files import shown
from experiments.multi_task.contenders import Contender, of_row
from p2pjax.evaluation import statistics
from p2pjax.types import InputError


class Score(NamedTuple):
    """What one task comes to; a run counts by its best evaluation."""

    metric: str
    contender: Contender
    top: dict[int, float]  # run -> best score

    @property
    def mean(self) -> float:
        """Over runs."""
        return float(np.mean(list(self.top.values())))

    def difference(self, alone: "Score") -> tuple[float, float]:
        """Mean over common runs of what it is above, and its p; NaN with one run."""
        common_runs = sorted(set(self.top) & set(alone.top))
        mine, theirs = ([s.top[run] for run in common_runs] for s in (self, alone))
        p = np.nan
        if len(common_runs) > 1:
            p = statistics.paired_t_test(mine, theirs).p
        return float(np.subtract(mine, theirs).mean()), p


def read(folder: Path) -> list[Row]:
    """Rows of a run of the multi-task study; others have no scores."""
    return reading.rows(folder, check=_check)


def _check(row: Row) -> None:
    for name in _scores_in(row):
        require(row, name, row_kinds.is_number)
        for key in ("tasks", "graph"):
            require(row["setting"], key, row_kinds.is_name)


def _scores_in(row: Row) -> list[str]:
    return [name for name in row if name.startswith(("ua_", "f1_"))]


def read_all(folders: Sequence[Path]) -> list[Row]:
    """Rows of several run folders; one that several have counts once."""
    rows: dict[tuple[str, int, int], Row] = {}
    first_in: dict[tuple[str, int, int], Path] = {}
    for folder in folders:
        for row in read(folder):
            where = reading.key_of(row), row["run"], row["round"]
            if rows.setdefault(where, row) != row:
                raise InputError(
                    f"Need the same data, seed and vocabulary, but run {row['run']} of "
                    f"{row['scheme']} has other values in {shown(folder)} than in "
                    f"{shown(first_in[where])}: leave one of them out."
                )
            first_in.setdefault(where, folder)
    return list(rows.values())


def scores(rows: Sequence[Row]) -> list[Score]:
    """Of all finished runs, task by task."""
    names = {name for row in rows for name in _scores_in(row)}
    last = max(row["round"] for row in rows)
    found: list[Score] = []
    for metric in sorted(names):
        curves: dict[Contender, dict[int, dict[int, float]]] = {}
        for row in rows:
            if metric in row:
                run = curves.setdefault(of_row(row), {}).setdefault(row["run"], {})
                run[row["round"]] = row[metric]
        for contender, runs in curves.items():
            ended = {run: curve for run, curve in runs.items() if last in curve}
            tops = {run: max(curve.values()) for run, curve in ended.items()}
            if tops:
                found.append(Score(metric, contender, tops))
    return found


def table(rows: Sequence[Row]) -> str:
    """Mean best score, difference and gain against the task alone, paired t-test."""
    lines = ["| score | method | tasks | graph | runs | top | difference | gain | p |"]
    lines.append("|---" * 9 + "|")
    every = scores(rows)
    for score in every:
        one = score.contender
        cells = [score.metric, one.method, one.tasks, one.graph_in_words]
        cells += [str(len(score.top)), f"{score.mean:.4f}"]
        alone = [
            other
            for other in every
            if (other.metric, other.contender.method) == (score.metric, "cts")
            and other.contender.local_epochs == one.local_epochs
        ]
        compared = ["", "", ""]
        if alone and one.method != "cts" and set(alone[0].top) & set(score.top):
            difference, p = score.difference(alone[0])
            runs = [run for run in score.top if run in alone[0].top]
            before = max(float(np.mean([alone[0].top[run] for run in runs])), 1e-9)
            gain = statistics.relative_gain(before + difference, before)
            known = "" if np.isnan(p) else f"{p:.2g}"
            compared = [f"{difference:+.4f}", f"{gain:+.1f}%", known]
        lines.append("| " + " | ".join([*cells, *compared]) + " |")
    return "\n".join(lines)


def average_table(rows: Sequence[Row]) -> str:
    """Means over the other tasks that a task is together with, by how many there are.

    Args:
      rows: of one or several run folders.
    """
    lines = ["| score | method | graph | tasks together | combinations | top | gain |"]
    lines.append("|---" * 7 + "|")
    groups: dict[tuple[str, str, str, int, int], list[Score]] = {}
    for score in (every := scores(rows)):
        one = score.contender
        kind = one.method, one.graph_in_words, one.local_epochs, len(one.names)
        groups.setdefault((score.metric, *kind), []).append(score)
    alone = {
        (score.metric, score.contender.local_epochs): score
        for score in every
        if score.contender.method == "cts"
    }
    for (metric, method, graph, epochs, size), same in groups.items():
        top, gain = float(np.mean([score.mean for score in same])), ""
        if method != "cts" and (metric, epochs) in alone:
            before = max(alone[metric, epochs].mean, 1e-9)
            gain = f"{statistics.relative_gain(top, before):+.1f}%"
        cells = [metric, method, graph, str(size), str(len(same)), f"{top:.4f}", gain]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def print_table(folders: Sequence[str], averages: bool = False) -> None:
    """The table of the work folders given.

    Args:
      folders: of runs.
      averages: whether means over the tasks that a task is together with follow.
    """
    if not folders:
        raise InputError(
            "Need the work folder of at least one run, got none: "
            "python -m experiments.task_scores WORKDIR [WORKDIR...]"
        )
    rows = read_all([Path(folder) for folder in folders])
    if not scores(rows):
        raise InputError(
            "Need runs of the multi-task study, got none in "
            f"{shown(', '.join(folders))}."
        )
    print(table(rows))
    if averages:
        print("\n" + average_table(rows))
