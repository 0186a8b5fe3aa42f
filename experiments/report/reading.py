"""Run folders as a report needs them: rows, links and settings by scheme.

A folder without summary.json is of a run that goes on. links.jsonl is missing where a
run is older than it, or where agents have no peers.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.engine import reading
from experiments.engine.row_kinds import Row
from experiments.engine.untrusted_files import MissingFileError


class Exchanges(NamedTuple):
    """Who received from whom in a whole run, and the true groups of the agents."""

    run: int
    cluster: np.ndarray  # [N]
    receiver: np.ndarray  # [L]
    sender: np.ndarray  # [L]
    messages: np.ndarray  # [L], more than zero


class SchemeRows(NamedTuple):
    """A scheme in a setting: all its rows, and the last row of every run."""

    scheme: str
    setting: dict[str, Any]
    rows: list[Row]
    last_rows: list[Row]
    exchanges: list[Exchanges]  # of the runs that have ended


class Folder(NamedTuple):
    """What a run folder holds."""

    name: str
    is_finished: bool
    experiment: str
    settings: dict[str, str]
    environment: dict[str, Any]
    cases: list[SchemeRows]


def read_folder(path: Path, name: str) -> Folder:
    """Reads a run folder."""
    is_finished = reading.is_finished(path)
    rows, links = reading.rows(path), reading.links(path)
    summary = reading.summary(path) if is_finished else None
    return Folder(
        name,
        is_finished,
        "" if summary is None else summary.experiment,
        _settings(path),
        {} if summary is None else summary.environment,
        _cases(rows, links, is_finished),
    )


def _settings(path: Path) -> dict[str, str]:
    try:
        flags = reading.flags(path)
    except MissingFileError:
        return {}
    return {name: value or "on" for name, value in flags.items()}


def _cases(rows: list[Row], links: list[Row], is_finished: bool) -> list[SchemeRows]:
    last_round = max(row["round"] for row in rows)
    exchanges = reading.by_scheme(links)
    cases = []
    for group, same in reading.by_scheme(rows).items():
        finals = {row["run"]: row for row in same}.values()
        kept = [r for r in finals if is_finished or r["round"] == last_round]
        found = [_exchanges(row) for row in exchanges.get(group, [])]
        cases.append(
            SchemeRows(same[0]["scheme"], same[0]["setting"], same, kept, found)
        )
    return cases


def _exchanges(row: Row) -> Exchanges:
    """What agents received from others."""
    links = np.asarray(row["links"], int).reshape(-1, 3)  # [L, 3]
    used = links[(links[:, 2] > 0) & (links[:, 0] != links[:, 1])]
    return Exchanges(row["run"], np.asarray(row["cluster"]), *used.T)
