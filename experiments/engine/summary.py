"""summary.json: what a run folder says in the end, summed up over runs.

Each of its `rows` is a metric of a scheme in a setting. Beside the metrics of the last
evaluation it has what agents gain over learning alone, where some scheme sends nothing:
its mean, its deciles over agents and the share of agents that lose. Where a target
accuracy is given, it has what that took.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine import reading
from experiments.engine.own_files import write_whole
from experiments.engine.run_folder import Row, environment, plain
from p2pjax.evaluation import statistics

Runs = dict[int, list[Row]]  # evaluations of a scheme in a setting, by run
SPEED = "rounds_to_90%_of_best"  # of convergence: until this share of a run's own best
SPENT = ("round", "steps", "examples", "messages", "bytes")  # until a target
GAIN, LOSING = "gain_over_local", "share_of_agents_that_lose"
DECILES = {f"{GAIN}_p{percent}": percent for percent in range(10, 100, 10)}
REACHED = "share_of_runs_that_reach_target"
# What is computed of several runs, of which no row has a column.
DERIVED = (GAIN, *DECILES, LOSING, REACHED, *(f"{name}_to_target" for name in SPENT))
# Schemes that send nothing and are not learning alone: models of all agents' data, and
# labels that are only counted.
NOT_ALONE = ("central", "centralized", "global", "majority")


def summarize(
    folder: Path,
    experiment: str,
    names: Sequence[str],
    target: float | None = None,
    run_id: str | None = None,
) -> list[Row]:
    """Writes summary.json and returns its rows.

    Args:
      folder: of the run.
      experiment: its name.
      names: metrics of the last evaluation, or `SPEED`, of all; schemes without one
        are left out.
      target: accuracy whose cost is told.
      run_id: of what determines the rows.
    """
    schemes = by_scheme(reading.rows(folder, whole=True))
    rows = summary_rows(schemes, names, target)
    summary = {
        "experiment": experiment,
        "id": run_id,
        "rows": rows,
        "environment": environment(),
    }
    write_whole(folder / "summary.json", json.dumps(plain(summary), indent=1) + "\n")
    return rows


def summary_rows(
    schemes: Sequence[Runs], names: Sequence[str], target: float | None = None
) -> list[Row]:
    """A row for each metric of each scheme in each setting.

    Args:
      schemes: their evaluations.
      names: metrics of the last evaluation; schemes without one are left out.
      target: accuracy whose cost is told.
    """
    rows = []
    for runs in schemes:
        last = [run[-1] for run in runs.values()]
        for name in names:
            if name == SPEED:
                speeds = [rounds_to_share_of_best(run) for run in runs.values()]
                rows += _row(last[0], name, speeds)
            else:
                rows += _row(last[0], name, [row.get(name) for row in last])
        for name, values in gains(runs, schemes).items():
            rows += _row(last[0], name, values)
        if target is not None:
            rows += _until(runs, target)
    return rows


def gains(runs: Runs, schemes: Sequence[Runs]) -> dict[str, list[float]]:
    """What agents gain over learning alone, by metric, one value of each run.

    Empty for schemes that send nothing, and where none does.

    Args:
      runs: of the scheme that is compared.
      schemes: all of the run folder.
    """
    alone = alone_for(next(iter(runs.values()))[-1], schemes)
    of_runs = [] if alone is None else gains_over(runs, alone)
    if not of_runs:
        return {}
    found = {GAIN: [float(own.mean()) for own in of_runs]}
    for name, percent in DECILES.items():
        found[name] = [float(np.percentile(own, percent)) for own in of_runs]
    found[LOSING] = [float(np.mean(own < 0)) for own in of_runs]
    return found


def rounds_to_share_of_best(run: Sequence[Row], share: float = 0.9) -> int | None:
    """The first round whose accuracy is a share of the run's best, or above it.

    None if no accuracy is known.

    Args:
      run: evaluations, in order.
      share: of the best accuracy.
    """
    known = [row for row in run if row.get("accuracy") is not None]
    if not known:
        return None
    enough = share * max(row["accuracy"] for row in known)
    return next(row["round"] for row in known if row["accuracy"] >= enough)


def by_scheme(rows: Iterable[Row]) -> list[Runs]:
    """Evaluations of every scheme in every setting, by run."""
    found = []
    for same in reading.by_scheme(rows).values():
        runs: Runs = {}
        for row in same:
            runs.setdefault(row["run"], []).append(row)
        found.append(runs)
    return found


def gains_over(runs: Runs, alone: Runs) -> list[np.ndarray]:
    """Of each run, how much better each judged agent is in the end than alone.

    Agents that attack are not judged; they neither win nor lose.

    Args:
      runs: of the scheme that is compared.
      alone: of agents that send nothing, as many judged ones in the same order.
    """
    found = [
        _difference(_agents(run[-1]), _agents(alone[number][-1]))
        for number, run in runs.items()
        if number in alone
    ]
    return [gain for gain in found if len(gain)]


def _difference(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Of agents that are judged in both; those beside them may be there in one."""
    if len(mine) != len(theirs):
        mine, theirs = (own[~np.isnan(own)] for own in (mine, theirs))
    found = mine - theirs
    return found[~np.isnan(found)]


def _agents(row: Row) -> np.ndarray:
    """Accuracies `[N]`, not a number where none is known."""
    return np.asarray(row.get("agent_accuracy", ()), float)


def alone_for(row: Row, schemes: Sequence[Runs]) -> Runs | None:
    """The scheme that sends nothing, in the setting most like that of `row`.

    It has as many agents, or as many that are judged where attackers come beside them.
    None for schemes that send nothing themselves, or if there is none such.

    Args:
      row: of the scheme that is compared.
      schemes: all of the run folder.
    """

    def agreement(other: Row) -> int:
        return sum(other["setting"].get(k) == v for k, v in row["setting"].items())

    def sizes(of: Row) -> tuple[int, int]:
        return len(_agents(of)), int((~np.isnan(_agents(of))).sum())

    size, judged = sizes(row)
    if row.get("messages") == 0 or not judged:
        return None
    silent = []
    for runs in schemes:
        last = next(iter(runs.values()))[-1]
        is_alone = last.get("messages") == 0 and last["scheme"] not in NOT_ALONE
        if is_alone and (sizes(last)[0] == size or sizes(last)[1] == judged):
            silent.append(runs)
    if not silent:
        return None
    return max(silent, key=lambda runs: agreement(next(iter(runs.values()))[-1]))


def _until(runs: Runs, target: float) -> list[Row]:
    """What each run had spent when it first reached the target."""
    first = [
        next((row for row in run if (row.get("accuracy") or 0) >= target), None)
        for run in runs.values()
    ]
    some = next(iter(runs.values()))[0]
    reached = [row for row in first if row is not None]
    share = _row(some, REACHED, [bool(r) for r in first])
    if not reached:
        return share
    return share + [
        found
        for name in SPENT
        for found in _row(some, f"{name}_to_target", [r.get(name) for r in reached])
    ]


def _row(row: Row, metric: str, values: Sequence[Any]) -> list[Row]:
    """Of a metric, if all runs have it."""
    if any(value is None for value in values) or not len(values):
        return []
    summed_up = statistics.over_runs(np.asarray(values, float))
    named = {"scheme": row["scheme"], "setting": row["setting"], "metric": metric}
    return [named | summed_up]
