"""What a study of connections found: runs by method and setting, curves, shares."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine import reading
from experiments.engine.row_kinds import Row

PAIR = "pair"  # in settings: which two groups of texts
SETTINGS = {PAIR, "max_in_load", "view_size"}
Runs = list[list[Row]]  # evaluations of every run


def named_rows(folder: Path) -> list[Row]:
    """All evaluations, whose scheme is a method with its setting: `pens, view size 5`.

    Args:
      folder: of a run.
    """
    found = reading.rows(folder, ("accuracy", "messages"), check=_check_setting)
    return list(map(_named, found))


def _check_setting(row: Row) -> None:
    unknown = sorted(row["setting"].keys() - SETTINGS)
    if unknown:
        raise ValueError(
            f"has {unknown[0]} in its setting, which experiments.connections does not"
        )


def named_links(folder: Path) -> list[Row]:
    """Who averaged with whom, of methods with their settings.

    Args:
      folder: of a run.
    """
    return list(map(_named, reading.links(folder)))


def _named(row: Row) -> Row:
    name = _label(row["scheme"], row["setting"])
    return row | {"scheme": name, "of": row["scheme"]}


def _label(method: str, setting: Mapping[str, Any]) -> str:
    return ", ".join(
        [method, *(f"{k.replace('_', ' ')} {setting[k]}" for k in setting)]
    )


def by_pair(runs_of: Mapping[str, Runs]) -> dict[str, dict[str, Runs]]:
    """Runs by method with the rest of its setting, for each pair of groups of texts.

    Without pairs all are those of the pair "".

    Args:
      runs_of: by method with its setting.
    """
    found: dict[str, dict[str, Runs]] = {}
    for runs in runs_of.values():
        rest = dict(runs[0][0]["setting"])
        of_pair = found.setdefault(str(rest.pop(PAIR, "")), {})
        of_pair[_label(method_of(runs), rest)] = runs
    return found


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
