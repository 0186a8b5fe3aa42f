"""Scores of every task in the multi-task study, against the task alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.engine import run_folder
from experiments.engine.run_folder import Row
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


def scores(rows: Sequence[Row]) -> list[Score]:
    """Of all finished runs, task by task."""
    names = {key for row in rows for key in row if key.startswith(("ua_", "f1_"))}
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
        method, graph, _ = score.contender
        cells = [score.metric, method, score.contender.tasks, graph]
        cells += [str(len(score.top)), f"{score.mean:.4f}"]
        alone = [
            other
            for other in every
            if (other.metric, other.contender.method) == (score.metric, "cts")
        ]
        compared = ["", "", ""]
        if alone and method != "cts" and set(alone[0].top) & set(score.top):
            difference, p = score.difference(alone[0])
            runs = [run for run in score.top if run in alone[0].top]
            before = max(float(np.mean([alone[0].top[run] for run in runs])), 1e-9)
            gain = statistics.relative_gain(before + difference, before)
            known = "" if np.isnan(p) else f"{p:.2g}"
            compared = [f"{difference:+.4f}", f"{gain:+.1f}%", known]
        lines.append("| " + " | ".join([*cells, *compared]) + " |")
    return "\n".join(lines)


def print_table(folders: Sequence[str]) -> None:
    """The table of the work folders given."""
    if not folders:
        raise InputError(
            "Need the work folder of at least one run, got none: "
            "python -m experiments.task_scores WORKDIR [WORKDIR...]"
        )
    rows = []
    for folder in map(Path, folders):
        if not (folder / "metrics.jsonl").exists():
            raise InputError(f"Need a work folder with metrics.jsonl, got {folder}.")
        rows += run_folder.read(folder)
    if not scores(rows):
        raise InputError(
            f"Need runs of the multi-task study, got none in {', '.join(folders)}."
        )
    print(table(rows))
