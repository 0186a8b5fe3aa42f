"""The table that a study of connections prints, for a person."""

from pathlib import Path

import numpy as np

from experiments.connections import fronts
from experiments.connections.results import (
    Runs,
    alike,
    by_pair,
    curves,
    method_of,
    runs_by_method,
    share_at_the_end,
)
from experiments.connections.score_tables import average_table
from experiments.connections.thesis import printed
from p2pjax.evaluation import statistics


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
    is_best = fronts.front(fronts.points(runs_of))
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
        star = "*" if method in is_best else ""
        print(
            f"{method + star:<{width}} {accuracy.max(1).mean():.4f}  "
            f"{_number(stable, '.4f'):<7} {accuracy[:, -1].mean():.4f}  "
            f"{messages:<9.1f} {_number(ratio, '.3f'):<8} "
            f"{models:<9.1f} {num_bytes / 1e6:<8.2f} {_number(gini, '.3f'):<7} "
            f"{_number(share_at_the_end(runs), '.3f'):<10}"
            f"{'' if known is None else f' {known:.2f}'}"
        )
    pairs = by_pair(runs_of)
    if len(pairs) > 1:
        methods = list(dict.fromkeys(name for own in pairs.values() for name in own))
        print("\n" + average_table(pairs, methods))


def _windows(runs: Runs) -> list[int]:
    """The thesis' windows, which are rounds, in evaluations: two or more."""
    every = runs[0][0]["round"]
    lengths = (length // every for length in statistics.STABLE_LENGTHS)
    return [length for length in lengths if length > 1]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or np.isnan(value) else format(value, form)
