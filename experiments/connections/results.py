"""What a study of connections found: best accuracies, shares, Pareto front, table."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.connections.thesis import printed
from experiments.engine import reading
from experiments.engine.row_kinds import Row
from p2pjax.evaluation import statistics

Runs = list[list[Row]]  # evaluations of every run


def named_rows(folder: Path) -> list[Row]:
    """All evaluations, whose scheme is a method with its setting: `pens, view size 5`.

    Args:
      folder: of a run.
    """
    return list(map(_named, reading.rows(folder, ("accuracy", "messages"))))


def named_links(folder: Path) -> list[Row]:
    """Who averaged with whom, of methods with their settings.

    Args:
      folder: of a run.
    """
    return list(map(_named, reading.links(folder)))


def _named(row: Row) -> Row:
    setting = (f"{k.replace('_', ' ')} {v}" for k, v in row["setting"].items())
    return row | {"scheme": ", ".join([row["scheme"], *setting]), "of": row["scheme"]}


def runs_by_method(folder: Path) -> dict[str, Runs]:
    """All evaluations, by method with its setting, and run, in the order of runs."""
    found: dict[str, dict[int, list[Row]]] = {}
    for row in named_rows(folder):
        runs = found.setdefault(row["scheme"], {})
        runs.setdefault(row["run"], []).append(row)
    return {
        name: [runs[number] for number in sorted(runs)] for name, runs in found.items()
    }


def method_of(runs: Runs) -> str:
    """The name of the method without its setting."""
    return runs[0][0]["of"]


def alike(study: Mapping[str, Runs], name: str, method: str) -> str | None:
    """The name of `method` in the setting that is most like that of another.

    None if the study does not have it.

    Args:
      study: runs by method with its setting.
      name: of the other.
      method: without a setting.
    """
    own = study[name][0][0]["setting"]

    def agreement(other: str) -> int:
        setting = study[other][0][0]["setting"]
        return sum(setting.get(key) == value for key, value in own.items())

    same = [other for other, runs in study.items() if method_of(runs) == method]
    return max(same, key=agreement, default=None)


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
    width = max(map(len, runs_of), default=0) + 2
    named = "" if column is None else f" thesis, {column[0]}"
    print(
        f"{'method':<{width}} top     stable  final   messages  /sparse  models    "
        f"MB       gini    in cluster{named}"
    )
    is_best = dict(zip(runs_of, front(runs_of), strict=True))
    for method, runs in runs_of.items():
        sparse = alike(runs_of, method, "sparse")
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
            ratio = messages / np.mean([run[-1]["messages"] for run in runs_of[sparse]])
        gini = np.mean(np.asarray([row.get("gini") for row in last], float))
        known = None if column is None else printed(method_of(runs), *column)
        star = "*" if is_best[method] else ""
        print(
            f"{method + star:<{width}} {accuracy.max(1).mean():.4f}  "
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
