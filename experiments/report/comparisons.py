"""What agents gain over learning alone, and how right models are class by class."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.engine import summary
from experiments.engine.reading import key_of
from experiments.engine.row_kinds import Row
from experiments.engine.summary import Runs
from experiments.report import markup
from experiments.report.charts import Line, Point
from experiments.report.measures import label, setting_text
from experiments.report.reading import Folder, SchemeRows

COLUMNS = {
    summary.GAIN: "gain over local",
    f"{summary.GAIN}_p10": "gain, lowest tenth",
    f"{summary.GAIN}_p50": "gain, median",
    f"{summary.GAIN}_p90": "gain, highest tenth",
    summary.LOSING: "agents that lose",
}
NO_GAIN = dict.fromkeys(COLUMNS.values(), math.nan)


def gains(folder: Folder) -> list[Row]:
    """For every scheme: gains over learning alone, means over runs of each column.

    The lowest tenth is what a tenth of the agents does not reach, the highest tenth
    what a tenth is above.
    """
    schemes = _schemes(folder)
    found = {key_of(next(iter(runs.values()))[-1]): runs for runs in schemes}
    return [_gain(found.get(key_of(one.rows[0])), schemes) for one in folder.cases]


def agent_gains(folder: Folder) -> list[Line]:
    """Gains of agents over learning alone: sorted in every run, then the mean."""
    schemes = _schemes(folder)
    found = {key_of(next(iter(runs.values()))[-1]): runs for runs in schemes}
    lines = []
    for one in folder.cases:
        runs, name = found.get(key_of(one.rows[0])), label(one)
        last = None if runs is None else next(iter(runs.values()))[-1]
        alone = None if last is None else summary.alone_for(last, schemes)
        of_runs = summary.gains_over(runs, alone) if runs and alone else []
        values = []
        if len({len(gains) for gains in of_runs}) == 1:
            values = np.sort(of_runs, axis=1).mean(0).tolist()
        points = [
            Point(rank, *(gain,) * 3, f"{name}, agent {rank}: {gain:+.4f}")
            for rank, gain in enumerate(values, 1)
        ]
        lines.append(Line(name, points))
    return lines


def _schemes(folder: Folder) -> list[Runs]:
    return summary.by_scheme(
        row for scheme in folder.cases for row in scheme.last_rows if _has_agents(row)
    )


def _gain(runs: Runs | None, schemes: Sequence[Runs]) -> Row:
    if runs is None:
        return dict(NO_GAIN)
    found = summary.gains(runs, schemes)
    return NO_GAIN | {
        said: float(np.mean(found[name]))
        for name, said in COLUMNS.items()
        if name in found
    }


def _has_agents(row: Row) -> bool:
    return _is_numbers(row.get("agent_accuracy"))


def _is_numbers(values: Any) -> bool:
    """Whether it is a list of numbers, null for agents that attack."""
    return isinstance(values, list) and all(
        value is None or (isinstance(value, (int, float)) and math.isfinite(value))
        for value in values
    )


def classes_table(folders: Sequence[Folder]) -> str:
    """Accuracy of each class in the end, mean over the agents who have it and runs."""
    rows, num_classes = [], 0
    for folder in folders:
        for scheme in folder.cases:
            means = _class_means(scheme)
            num_classes = max(num_classes, len(means))
            if means:
                named = {str(label): value for label, value in enumerate(means)}
                where = {"folder": folder.name, "scheme": scheme.scheme}
                rows.append(where | {"setting": setting_text(scheme.setting)} | named)
    if not rows:
        return ""
    columns = ["scheme", "setting", *map(str, range(num_classes))]
    if len(folders) > 1:
        columns.insert(0, "folder")
    return markup.copy_table(
        "classes",
        "Classes",
        "Accuracy on examples of each class at the last round: mean over the agents "
        "who have it, then over runs.",
        columns,
        [{name: row.get(name, math.nan) for name in columns} for row in rows],
    )


def _class_means(scheme: SchemeRows) -> list[float]:
    """Empty where some run does not have them."""
    found = [row.get("class_accuracy") for row in scheme.last_rows]
    lists = [one for one in found if isinstance(one, list)]
    if not lists or len(lists) < len(found) or len({len(one) for one in lists}) > 1:
        return []
    values = np.array(
        [[v if isinstance(v, (int, float)) else math.nan for v in one] for one in lists]
    )
    known = np.isfinite(values)
    total = np.where(known, values, 0).sum(0)
    return [
        float(t / n) if n else math.nan
        for t, n in zip(total, known.sum(0), strict=True)
    ]
