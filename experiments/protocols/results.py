"""Tables of a run folder: what methods reach, and where they have spent the same."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.compare.results import at_budget, equal_amount
from experiments.engine import reading
from experiments.engine.row_kinds import Row
from experiments.engine.summary import Runs, by_scheme
from p2pjax.evaluation import statistics

SPENT = ("messages", "bytes")


def metric_of(rows: Sequence[Row]) -> str:
    """What a study judges by: all test examples, own ones where these are not alike."""
    return "pooled_accuracy" if "pooled_accuracy" in rows[0] else "accuracy"


def rows_of(folder: Path) -> list[Row]:
    """All evaluations."""
    return reading.rows(folder, ("accuracy",), numbers=("messages", "bytes"))


def table(folder: Path) -> str:
    """Schemes in rows, a table per setting, best first.

    The last columns are accuracies where all have sent as much as the scheme that sent
    least (but some) has in the end.

    Args:
      folder: of the run.
    """
    rows = rows_of(folder)
    metric = metric_of(rows)
    by_setting: dict[str, list[Runs]] = {}
    for runs in by_scheme(rows):
        setting = next(iter(runs.values()))[-1]["setting"]
        named = ", ".join(f"{key} {value}" for key, value in setting.items())
        by_setting.setdefault(named, []).append(runs)
    lines = []
    for named, schemes in by_setting.items():
        lines += [f"### {named}", ""] if named else []
        lines += [*_of_setting(schemes, metric), ""]
    return "\n".join(lines)


def _of_setting(schemes: list[Runs], metric: str) -> list[str]:
    equal = {name: equal_amount(schemes, name) for name in SPENT}
    head = [
        "scheme",
        "rate",
        metric.replace("_", " "),
        "own test sets",
        "mean model",
        "disagreement",
        "messages",
        "MB",
        f"at {equal['messages']:,.0f} messages",
        f"at {equal['bytes'] / 1e6:,.3g} MB",
    ]
    schemes = sorted(schemes, key=lambda runs: -_mean(_last(runs), metric))
    body = []
    for runs in schemes:
        last = _last(runs)
        body.append(
            [
                last[0]["scheme"],
                f"{_mean(last, 'learning_rate'):g}",
                interval([row[metric] for row in last]),
                _number(_mean(last, "accuracy"), ".3f"),
                _number(_mean(last, "merged_accuracy"), ".3f"),
                _number(_mean(last, "disagreement"), ".2g"),
                f"{_mean(last, 'messages'):,.0f}",
                f"{_mean(last, 'bytes') / 1e6:,.3g}",
                *(
                    interval([r[metric] for r in at_budget(runs, name, equal[name])])
                    for name in SPENT
                ),
            ]
        )
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]


def tuned(folder: Path) -> str:
    """The rate that validation examples choose for each scheme and setting, as a flag.

    Args:
      folder: of a run with --tune.
    """
    rows = rows_of(folder)
    metric = metric_of(rows)
    found: dict[str, dict[float, float]] = {}
    for runs in by_scheme(rows):
        last = _last(runs)
        setting = dict(last[0]["setting"])
        tried = setting.pop("rate")
        named = ", ".join(
            [last[0]["scheme"], *(f"{k} {v}" for k, v in setting.items())]
        )
        found.setdefault(named, {})[tried] = _mean(last, metric)
    grid = sorted({tried for scores in found.values() for tried in scores})
    head = ["scheme", *(f"{tried:g}" for tried in grid), "chosen"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    best, at_edge = [], []
    for named, scores in found.items():
        known = {tried: v for tried, v in scores.items() if np.isfinite(v)}
        chosen = max(known, key=known.__getitem__) if known else grid[0]
        best.append(chosen)
        if chosen in (grid[0], grid[-1]):
            at_edge.append(named)
        cells = [_number(scores.get(tried, np.nan), ".3f") for tried in grid]
        lines.append(f"| {' | '.join([named, *cells, f'{chosen:g}'])} |")
    lines += ["", f"--rates={','.join(f'{chosen:g}' for chosen in best)}"]
    if at_edge:
        lines += ["", f"At an edge of --grid: {'; '.join(at_edge)}."]
    return "\n".join(lines) + "\n"


def _last(runs: Runs) -> list[Row]:
    return [run[-1] for run in runs.values()]


def _mean(rows: Sequence[Row], name: str) -> float:
    """Over runs; not a number where one has none."""
    return float(np.mean(np.asarray([row.get(name) for row in rows], float)))


def _number(value: float, digits: str) -> str:
    return f"{value:{digits}}" if np.isfinite(value) else ""


def interval(values: Sequence[float | None]) -> str:
    """Mean over runs, with its 95% interval where there are several.

    Args:
      values: of the runs.
    """
    found = np.asarray(values, float)
    if not np.isfinite(found).all():
        return ""
    if len(found) < 2:
        return f"{found.mean():.3f}"
    return f"{found.mean():.3f} ± {statistics.mean_interval(found):.3f}"
