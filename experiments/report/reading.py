"""Run folders as a report reads them: metrics.jsonl, links.jsonl, run.flags, summary.

A folder without summary.json is of a run that goes on: the last line of its files may
be cut. links.jsonl is missing where a run is older than it, or where agents have no
peers.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.engine.run_folder import Row
from p2pjax.datasets.loaders.packed import read_unpacked
from p2pjax.types import InputError

# What a row that is not as it should be raises.
_BAD = (
    *(ValueError, TypeError, KeyError, AttributeError),
    *(OverflowError, RecursionError),
)


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
    if not path.is_dir():
        raise InputError(f"Need the work folder of a run, but {path} is no folder.")
    if not (path / "metrics.jsonl").is_file():
        raise InputError(
            f"Need the work folder of a run, but {path} has no metrics.jsonl."
        )
    is_finished = (path / "summary.json").exists()
    try:
        rows = _read_lines(
            path / "metrics.jsonl", is_finished, _metrics, "scheme, run and round"
        )
        links = _read_lines(
            path / "links.jsonl", is_finished, _links, "scheme, run, cluster and links"
        )
        summary = _read_summary(path / "summary.json") if is_finished else {}
        flags_text = _text_of(path / "run.flags").decode(errors="replace")
    except OSError as error:
        raise InputError(f"Cannot read {path} ({error.strerror}).") from error
    if not rows:
        raise InputError(
            "Need at least one evaluation to report, but "
            f"{path / 'metrics.jsonl'} has none."
        )
    environment = summary.get("environment")
    return Folder(
        name,
        is_finished,
        str(summary.get("experiment", "")),
        _settings(flags_text),
        environment if isinstance(environment, dict) else {},
        _cases(rows, links, is_finished),
    )


def _text_of(path: Path) -> bytearray:
    return read_unpacked(path, "a file of a run") if path.exists() else bytearray()


def _read_lines(
    path: Path, is_finished: bool, checked: Callable[[Row], Row | None], needed: str
) -> list[Row]:
    """Rows of a JSON-lines file, none if there is no file."""
    *lines, rest = _text_of(path).split(b"\n")
    rows = []
    for number, line in enumerate([*lines, rest] if rest else lines, 1):
        try:
            row = checked(json.loads(line))
        except _BAD:
            row = None
        if row is not None:
            rows.append(row)
        elif number <= len(lines) or is_finished:  # else it is being written
            raise InputError(
                f"Need a row with {needed} in every line, but line {number} of {path} "
                "is broken."
            )
    return rows


def _metrics(row: Row) -> Row | None:
    is_valid = (
        isinstance(row["scheme"], str)
        and isinstance(row.setdefault("setting", {}), dict)
        and all(isinstance(row[name], int) for name in ("run", "round"))
    )
    return row if is_valid else None


def _links(row: Row) -> Row | None:
    cluster = np.asarray(row["cluster"])
    links = np.asarray(row["links"] or np.zeros((0, 3), int))
    is_valid = (
        isinstance(row["scheme"], str)
        and isinstance(row.setdefault("setting", {}), dict)
        and isinstance(row["run"], int)
        and (cluster.ndim, links.ndim, links.shape[-1]) == (1, 2, 3)
        and cluster.dtype.kind == "i"
        and (links >= 0).all()
        and (links[:, :2] < len(cluster)).all()
    )
    if not is_valid:
        return None
    used = links[(links[:, 2] > 0) & (links[:, 0] != links[:, 1])]
    receiver, sender = used[:, :2].astype(int).T
    return row | {"found": Exchanges(row["run"], cluster, receiver, sender, used[:, 2])}


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(_text_of(path))
    except (ValueError, RecursionError):
        summary = None
    if not isinstance(summary, dict):
        raise InputError(f"Need a summary that is JSON, but {path} is broken.")
    return summary


def _settings(flags_text: str) -> dict[str, str]:
    pairs = [
        line.strip().lstrip("-").partition("=")
        for line in flags_text.splitlines()
        if line.strip().startswith("-")
    ]
    return {name: value if equals else "on" for name, equals, value in pairs}


def _cases(rows: list[Row], links: list[Row], is_finished: bool) -> list[SchemeRows]:
    last_round = max(row["round"] for row in rows)
    exchanges = _grouped(links)
    cases = []
    for group, same in _grouped(rows).items():
        finals = {row["run"]: row for row in same}.values()
        kept = [r for r in finals if is_finished or r["round"] == last_round]
        ended = {row["run"]: row["found"] for row in exchanges.get(group, [])}
        found = list(ended.values())
        cases.append(
            SchemeRows(same[0]["scheme"], same[0]["setting"], same, kept, found)
        )
    return cases


def _grouped(rows: list[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        group = json.dumps([row["scheme"], row["setting"]], sort_keys=True)
        grouped.setdefault(group, []).append(row)
    return grouped
