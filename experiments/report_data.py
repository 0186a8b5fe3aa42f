"""What a report says about runs: folders read, values summed up over runs.

Final values are those of each run's last evaluation. While an experiment goes on, they
count the runs that have come as far as the furthest one. A value that is not finite in
one run is not a number over all runs, as in summary.json.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.report_charts import Line, Point
from experiments.run_folder import Row
from p2pjax import InputError, metrics


class Case(NamedTuple):
    """A scheme in a setting: all its rows, and the last row of every run."""

    scheme: str
    setting: dict[str, Any]
    rows: list[Row]
    last_rows: list[Row]


class Folder(NamedTuple):
    """What a run folder holds."""

    name: str
    is_finished: bool
    experiment: str
    settings: dict[str, str]
    environment: dict[str, Any]
    cases: list[Case]


def read_folder(path: Path, name: str) -> Folder:
    """Reads a run folder; one without summary.json is of a run that goes on."""
    if not path.is_dir():
        raise InputError(f"Need the work folder of a run, but {path} is no folder.")
    if not (path / "metrics.jsonl").is_file():
        raise InputError(
            f"Need the work folder of a run, but {path} has no metrics.jsonl."
        )
    is_finished = (path / "summary.json").exists()
    try:
        rows = _read_rows(path / "metrics.jsonl", is_finished)
        summary = _read_summary(path / "summary.json") if is_finished else {}
        flags_path = path / "run.flags"
        flags_text = (
            flags_path.read_text(errors="replace") if flags_path.exists() else ""
        )
    except OSError as error:
        raise InputError(f"Cannot read {path} ({error.strerror}).") from error
    environment = summary.get("environment")
    return Folder(
        name,
        is_finished,
        str(summary.get("experiment", "")),
        _settings(flags_text),
        environment if isinstance(environment, dict) else {},
        _cases(rows, is_finished),
    )


def _read_rows(path: Path, is_finished: bool) -> list[Row]:
    *lines, rest = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate([*lines, rest] if rest else lines, 1):
        try:
            row = json.loads(line)
            valid = (
                isinstance(row["scheme"], str)
                and isinstance(row.setdefault("setting", {}), dict)
                and all(isinstance(row[name], int) for name in ("run", "round"))
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            valid = False
        if valid:
            rows.append(row)
        elif number <= len(lines) or is_finished:  # else it is being written
            raise InputError(
                "Need a row with scheme, run and round in every line, but line "
                f"{number} of {path} is broken."
            )
    if not rows:
        raise InputError(
            f"Need at least one evaluation to report, but {path} has none."
        )
    return rows


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(path.read_bytes())
    except ValueError:
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


def _cases(rows: list[Row], is_finished: bool) -> list[Case]:
    last_round = max(row["round"] for row in rows)
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        group = json.dumps([row["scheme"], row["setting"]])
        grouped.setdefault(group, []).append(row)
    cases = []
    for same in grouped.values():
        finals = {row["run"]: row for row in same}.values()
        kept = [r for r in finals if is_finished or r["round"] == last_round]
        cases.append(Case(same[0]["scheme"], same[0]["setting"], same, kept))
    return cases


def num_agents(folder: Folder) -> int:
    """Agents of the largest run; 0 if nothing is known about agents."""
    lists = [row.get("agent_accuracy") for case in folder.cases for row in case.rows]
    return max((len(one) for one in lists if isinstance(one, list)), default=0)


def setting_text(setting: dict[str, Any]) -> str:
    """A setting for a person."""
    return ", ".join(f"{name}={_text(value)}" for name, value in setting.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def label(case: Case, without: str = "") -> str:
    """Name of a case; says nothing twice (scheme level_80 at level 80)."""
    said = {f"{name}_{_text(value)}": name for name, value in case.setting.items()}
    own_name = said.get(case.scheme)
    others = [
        f"{name} {_text(value)}"
        for name, value in case.setting.items()
        if name not in (own_name, without)
    ]
    is_left_out = own_name is not None and own_name == without
    return ", ".join(others if is_left_out else [case.scheme, *others])


def over_runs(rows: Iterable[Row], name: str) -> dict[str, float]:
    """Summary of a metric; not a number where one of its values is not finite."""
    values = np.array([_number(row.get(name)) for row in rows])
    if len(values) and np.isfinite(values).all():
        return metrics.over_runs(values)
    return dict.fromkeys(metrics.over_runs(np.zeros(1)), math.nan) | {
        "runs": len(values)
    }


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def agent_accuracies(case: Case) -> np.ndarray:
    """`[agents]`, worst first: sorted in every run, then the mean over runs."""
    lists: list[Any] = [row.get("agent_accuracy") for row in case.last_rows]
    if not all(isinstance(one, list) for one in lists):
        return np.zeros(0)
    if len({len(one) for one in lists}) != 1:
        return np.zeros(0)
    values = np.array([[_number(value) for value in one] for one in lists])
    return np.sort(values, 1).mean(0) if np.isfinite(values).all() else np.zeros(0)


def worst_decile(accuracies: np.ndarray) -> float:
    """Mean over the worst tenth of the agents, at least one.

    >>> worst_decile(np.array([0.25, 0.75] + [1.0] * 18))
    0.5
    """
    count = math.ceil(len(accuracies) / 10)
    return float(accuracies[:count].mean()) if count else math.nan


def results(folder: Folder) -> list[Row]:
    """A row of the table per case."""
    return [
        {
            "folder": folder.name,
            "scheme": case.scheme,
            "setting": setting_text(case.setting),
            **over_runs(case.last_rows, "accuracy"),
            "round": max((row["round"] for row in case.last_rows), default=math.nan),
            "worst decile": worst_decile(agent_accuracies(case)),
            "messages": over_runs(case.last_rows, "messages")["median"],
            "bytes": over_runs(case.last_rows, "bytes")["median"],
        }
        for case in folder.cases
    ]


def _point(x: float, rows: list[Row], about: str) -> Point:
    summary = over_runs(rows, "accuracy")
    spread = summary["median"], summary["p40"], summary["p60"]
    note = f"{about}: {spread[0]:.4f} ({spread[1]:.4f} to {spread[2]:.4f})"
    return Point(x, *spread, note)


def curves(folder: Folder) -> list[Line]:
    """Accuracy over rounds."""
    lines = []
    for case in folder.cases:
        name, by_round = label(case), _by_round(case)
        lines.append(
            Line(
                name,
                [_point(r, by_round[r], f"{name}, round {r}") for r in by_round],
            )
        )
    return lines


def _by_round(case: Case) -> dict[int, list[Row]]:
    by_round: dict[int, list[Row]] = {}
    for row in case.rows:
        by_round.setdefault(row["round"], []).append(row)
    return {number: by_round[number] for number in sorted(by_round)}


def trails(folder: Folder) -> list[Line]:
    """Accuracy over bytes that an agent has sent."""
    return [
        Line(
            label(case), [_cost_point(case, rows) for rows in _by_round(case).values()]
        )
        for case in folder.cases
    ]


def trail_ends(folder: Folder) -> list[list[Point]]:
    """The last point of every trail; none where no run has come to its end."""
    return [
        [_cost_point(case, case.last_rows)] if case.last_rows else []
        for case in folder.cases
    ]


def _cost_point(case: Case, rows: list[Row]) -> Point:
    cost = over_runs(rows, "bytes")["median"]
    return _point(cost, rows, f"{label(case)}, {bytes_text(cost)}")


def bytes_text(count: float) -> str:
    """A number of bytes for a person.

    >>> bytes_text(160_700_000)
    '160.7 MB'
    """
    unit, name = byte_unit(count)
    return f"{count / unit:.4g} {name}"


def byte_unit(largest: float) -> tuple[float, str]:
    """The unit in which a number of bytes is short."""
    units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
    return next((unit for unit in units if largest >= unit[0]), (1.0, "bytes"))


def sorted_agents(folder: Folder) -> list[Line]:
    """Accuracy over the agent's rank, worst first."""
    lines = []
    for case in folder.cases:
        name, values = label(case), agent_accuracies(case).tolist()
        points = [
            Point(rank, *(value,) * 3, f"{name}, agent {rank} from below: {value:.4f}")
            for rank, value in enumerate(values, 1)
        ]
        lines.append(Line(name, points))
    return lines


def compared_setting(folder: Folder) -> str:
    """What final accuracy depends on, or '' where only on names."""
    for name, least in (
        ("group_size", 1),
        ("level", -math.inf),
        ("hidden", -math.inf),
        ("batch_size", 1),
    ):
        values = [_number(case.setting.get(name)) for case in folder.cases]
        if all(least <= value < math.inf for value in values):
            return name
    return ""


def finals(folder: Folder) -> list[Line]:
    """Final accuracy over what is compared; a line per case where only names are."""
    key = compared_setting(folder)
    lines: dict[str, list[Point]] = {}
    for case in folder.cases:
        x = _number(case.setting[key]) if key else 0.0
        point = _point(x, case.last_rows, label(case))
        lines.setdefault(label(case, without=key), []).append(point)
    if key == "group_size":
        sizes = sorted({p.x for points in lines.values() for p in points} - {1.0})
        for case in folder.cases:  # at level 0 nobody averages, whatever the group
            name = label(case, without=key)
            if case.setting.get("level") == 0 and len(lines[name]) == 1 and sizes:
                lines[name] = [lines[name][0]._replace(x=size) for size in sizes]
    return [Line(name, sorted(points)) for name, points in lines.items()]
