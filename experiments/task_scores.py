"""Scores of every task in the multi-task study, against the task alone.

    python -m experiments.task_scores WORKDIR [WORKDIR...]

Several run folders, such as one with the tasks alone and one with tasks together, must
have the same data, seed and vocabulary: runs of the same number are compared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app

from experiments import common, run_folder
from experiments.run_folder import Row
from p2pjax.evaluation import statistics
from p2pjax.types import InputError


class Case(NamedTuple):
    """A method on a graph, and the tasks that run together."""

    method: str
    tasks: str
    graph: str


class Score(NamedTuple):
    """What one task comes to in a case; a run counts by its best evaluation."""

    metric: str
    case: Case
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
        curves: dict[Case, dict[int, dict[int, float]]] = {}
        for row in rows:
            if metric in row:
                setting = row["setting"]
                case = Case(row["scheme"], setting["tasks"], setting["graph"])
                run = curves.setdefault(case, {}).setdefault(row["run"], {})
                run[row["round"]] = row[metric]
        for case, runs in curves.items():
            ended = {run: curve for run, curve in runs.items() if last in curve}
            tops = {run: max(curve.values()) for run, curve in ended.items()}
            if tops:
                found.append(Score(metric, case, tops))
    return found


def table(rows: Sequence[Row]) -> str:
    """Mean best score, difference and gain against the task alone, paired t-test."""
    lines = ["| score | method | tasks | graph | runs | top | difference | gain | p |"]
    lines.append("|---" * 9 + "|")
    every = scores(rows)
    for score in every:
        method, tasks, graph = score.case
        cells = [score.metric, method, tasks, graph, str(len(score.top))]
        cells.append(f"{score.mean:.4f}")
        alone = [s for s in every if (s.metric, s.case.method) == (score.metric, "cts")]
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


def main(arguments: Sequence[str]) -> None:
    """Prints the table of the work folders given."""
    if not arguments:
        raise InputError(
            "Need the work folder of at least one run, got none: "
            "python -m experiments.task_scores WORKDIR [WORKDIR...]"
        )
    rows = []
    for folder in map(Path, arguments):
        if not (folder / "metrics.jsonl").exists():
            raise InputError(f"Need a work folder with metrics.jsonl, got {folder}.")
        rows += run_folder.read(folder)
    if not scores(rows):
        raise InputError(
            f"Need runs of the multi-task study, got none in {', '.join(arguments)}."
        )
    print(table(rows))


if __name__ == "__main__":
    app.run(lambda argv: common.guarded(lambda: main(argv[1:])))
