"""What a report says about runs: values summed up over runs, as lines and rows.

Final values are those of each run's last evaluation. While an experiment goes on, they
count the runs that have come as far as the furthest one. A value that is not finite in
one run is not a number over all runs, as in summary.json.
"""

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from experiments.engine.run_folder import Row
from experiments.report.charts import Line, Point, Series
from experiments.report.reading import Exchanges, Folder, SchemeRows
from p2pjax.evaluation import statistics

# What final accuracy may depend on, first the more telling, and the least it can be.
_COMPARED = {"group_size": 1, "level": -math.inf, "hidden": -math.inf, "batch_size": 1}


# Columns of the table that are means over runs, and what rows call them.
MEANS = {
    "before averaging": "accuracy_before",
    "after averaging": "accuracy_after",
    "majority label": "majority",
    "examples": "examples",
    "balanced": "balanced_accuracy",
    "worst class": "worst_class_accuracy",
    "simulated time": "time",
    "attackers": "num_byzantine",
    "from attackers": "from_attackers",
    "attack success": "attack_success",
    "rejected a round": "rejected",
    "server deviation": "server_stddev",
    "from its 5%": "server_stddev_low",
    "to its 95%": "server_stddev_high",
    "gate": "gate",
    "KL of server": "server_divergence",
    "KL of client": "client_divergence",
    "KL to cavity": "cavity_divergence",
    "factor precision": "factor_precision",
}
SCORES = ("before averaging", "after averaging")


def num_agents(folder: Folder) -> int:
    """Agents of the largest run; 0 if nothing is known about agents."""
    lists = [row.get("agent_accuracy") for case in folder.cases for row in case.rows]
    return max((len(one) for one in lists if isinstance(one, list)), default=0)


def setting_text(setting: dict[str, Any]) -> str:
    """A setting for a person."""
    return ", ".join(f"{name}={_text(value)}" for name, value in setting.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def label(case: SchemeRows, without: str = "") -> str:
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
        return statistics.over_runs(values)
    return dict.fromkeys(statistics.over_runs(np.zeros(1)), math.nan) | {
        "runs": len(values)
    }


def _number(value: Any) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else math.nan


def by_rank(case: SchemeRows, name: str) -> np.ndarray:
    """A value per agent `[N]`, smallest first: sorted in every run, then the mean.

    Empty where some run does not have it, finite and for the same number of agents.
    Agents that attack are left out where they have none.
    """
    lists: list[Any] = [_of_judged(row, name) for row in case.last_rows]
    if not all(isinstance(one, list) for one in lists):
        return np.zeros(0)
    if len({len(one) for one in lists}) != 1:
        return np.zeros(0)
    values = np.array([[_number(value) for value in one] for one in lists])
    return np.sort(values, 1).mean(0) if np.isfinite(values).all() else np.zeros(0)


def _of_judged(row: Row, name: str) -> Any:
    values = row.get(name)
    if isinstance(values, list) and values.count(None) == row.get("num_byzantine", 0):
        return [value for value in values if value is not None]
    return values


def _worst_decile(accuracies: np.ndarray) -> float:
    return float(statistics.worst_decile(accuracies)) if accuracies.size else math.nan


def results(folder: Folder) -> list[Row]:
    """A row of the table per case."""
    return [
        {
            "folder": folder.name,
            "scheme": case.scheme,
            "setting": setting_text(case.setting),
            **over_runs(case.last_rows, "accuracy"),
            "round": max((row["round"] for row in case.last_rows), default=math.nan),
            "worst decile": _worst_decile(by_rank(case, "agent_accuracy")),
            "best": _best_point(case).middle,
            "messages to best": _best_point(case).x,
            **{
                name: over_runs(case.last_rows, name)["median"]
                for name in ("messages", "bytes", "gini")
            },
            "in cluster": over_runs(case.last_rows, "in_cluster")["median"],
            **{
                shown: over_runs(case.last_rows, name)["mean"]
                for shown, name in MEANS.items()
            },
        }
        for case in folder.cases
    ]


def _point(x: float, rows: list[Row], about: str, name: str = "accuracy") -> Point:
    return _summed_up(x, over_runs(rows, name), about)


def _summed_up(x: float, summary: dict[str, float], about: str) -> Point:
    spread = summary["median"], summary["p40"], summary["p60"]
    note = f"{about}: {spread[0]:.4f} ({spread[1]:.4f} to {spread[2]:.4f})"
    return Point(x, *spread, note)


def curves(folder: Folder, name: str = "accuracy") -> list[Line]:
    """A metric over rounds."""
    lines = []
    for case in folder.cases:
        points = [
            _point(number, rows, f"{label(case)}, round {number}", name)
            for number, rows in _by_round(case).items()
        ]
        lines.append(Line(label(case), points))
    return lines


def _by_round(case: SchemeRows) -> dict[int, list[Row]]:
    by_round: dict[int, list[Row]] = {}
    for row in case.rows:
        by_round.setdefault(row["round"], []).append(row)
    return {number: by_round[number] for number in sorted(by_round)}


def over_time(folder: Folder) -> list[Line]:
    """Accuracy over simulated time; no point where none is known."""
    lines = []
    for case in folder.cases:
        points = []
        for number, rows in _by_round(case).items():
            time = over_runs(rows, "time")["median"]
            about = f"{label(case)}, time {time:.4g} (round {number})"
            if math.isfinite(time):
                points.append(_point(time, rows, about))
        lines.append(Line(label(case), points))
    return lines


def score_series(folder: Folder) -> list[tuple[str, list[Series]]]:
    """Accuracy before and after averaging, a point each, where both are known."""
    rows = []
    for case in folder.cases:
        points = [
            _point(0, case.last_rows, f"{label(case)}, {said}", MEANS[said])
            for said in SCORES
        ]
        if all(math.isfinite(point.middle) for point in points):
            series = [
                Series(said, [point], style)
                for style, (said, point) in enumerate(zip(SCORES, points, strict=True))
            ]
            rows.append((label(case), series))
    return rows


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


def _cost_point(case: SchemeRows, rows: list[Row]) -> Point:
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


def best_points(folder: Folder) -> list[Line]:
    """Best accuracy over the messages of an agent up to then, a point per case."""
    return [Line(label(case), [_best_point(case)]) for case in folder.cases]


def _best_point(case: SchemeRows) -> Point:
    """Every run counts up to its own best evaluation, the first if there are more."""
    tops = []
    for last in case.last_rows:
        own = sorted((r for r in case.rows if r["run"] == last["run"]), key=_round_of)
        curve = [_number(row.get("accuracy")) for row in own]
        sent = [_number(row.get("messages")) for row in own]
        if np.isfinite([*curve, *sent]).all():
            cost = statistics.until_top(curve, np.diff(sent, prepend=0.0))
            tops.append({"accuracy": max(curve), "messages": cost})
    known = tops if len(tops) == len(case.last_rows) else []
    cost = over_runs(known, "messages")["median"]
    return _point(cost, known, f"{label(case)}, {cost:,.4g} messages")


def _round_of(row: Row) -> int:
    return row["round"]


def sorted_agents(folder: Folder, name: str, about: str) -> list[Line]:
    """A value of an agent over its rank, smallest first."""
    lines = []
    for case in folder.cases:
        points = [
            Point(rank, *(value,) * 3, f"{label(case)}, {about} {rank}: {value:,.4g}")
            for rank, value in enumerate(by_rank(case, name).tolist(), 1)
        ]
        lines.append(Line(label(case), points))
    return lines


def agent_spreads(folder: Folder) -> list[Line]:
    """The median agent, with the worst and the best tenth of the agents around it."""
    lines = []
    for case in folder.cases:
        values = by_rank(case, "agent_accuracy")
        points = []
        if values.size:
            middle, low = float(np.median(values)), _worst_decile(values)
            high = -_worst_decile(-values)
            note = (
                f"{label(case)}: median agent {middle:.4f}, worst tenth {low:.4f}, "
                f"best tenth {high:.4f}"
            )
            points = [Point(0, middle, low, high, note)]
        lines.append(Line(label(case), points))
    return lines


def cluster_results(folder: Folder) -> list[Row]:
    """A row of the table per case and true cluster."""
    return [
        {
            "folder": folder.name,
            "scheme": case.scheme,
            "setting": setting_text(case.setting),
            "cluster": cluster,
            **summary,
        }
        for case in folder.cases
        for cluster, summary in _clusters(case).items()
    ]


def cluster_series(folder: Folder) -> list[tuple[str, list[Series]]]:
    """Accuracy of each true cluster, a point each, of the cases that have clusters."""
    rows = []
    for case in folder.cases:
        series = []
        for cluster, summary in _clusters(case).items():
            about = f"{label(case)}, cluster {cluster} ({summary['agents']} agents)"
            point = _summed_up(0, summary, about)
            series.append(Series(f"cluster {cluster}", [point], cluster))
        if series:
            rows.append((label(case), series))
    return rows


def _clusters(case: SchemeRows) -> dict[int, dict[str, float]]:
    """Mean accuracy of the agents of a cluster, over runs; none if all are alike."""
    clusters = {found.run: found.cluster for found in case.exchanges}
    means: dict[int, list[Row]] = {}
    for row in case.last_rows:
        values = row.get("agent_accuracy")
        cluster = clusters.get(row["run"], np.zeros(0, int))
        if isinstance(values, list) and len(values) == len(cluster):
            accuracy = np.array([_number(value) for value in values])
            for one in np.unique(cluster).tolist():
                own = accuracy[cluster == one]
                means.setdefault(one, []).append({"mean": own.mean(), "size": own.size})
    if len(means) < 2:
        return {}
    return {
        one: {"agents": max(row["size"] for row in rows)} | over_runs(rows, "mean")
        for one, rows in sorted(means.items())
    }


def link_tables(folder: Folder) -> list[tuple[list[str], Exchanges]]:
    """Who received from whom in the first run; cases that agree in it are together."""
    tables: dict[bytes, tuple[list[str], Exchanges]] = {}
    for case in folder.cases:
        for found in case.exchanges[:1]:
            if found.messages.size:
                same = b"|".join(part.tobytes() for part in found[1:])
                tables.setdefault(same, ([], found))[0].append(label(case))
    return list(tables.values())


def compared_setting(folder: Folder) -> str:
    """What final accuracy depends on, or '' where only on names."""
    others = [name for name in folder.cases[0].setting if name not in _COMPARED]
    for name in [*_COMPARED, *others]:
        values = [_number(case.setting.get(name)) for case in folder.cases]
        is_known = all(_COMPARED.get(name, -math.inf) <= v < math.inf for v in values)
        if is_known and (name in _COMPARED or len(set(values)) > 1):
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
        for case in folder.cases:  # at level 0 no agent averages, whatever the group
            name = label(case, without=key)
            if case.setting.get("level") == 0 and len(lines[name]) == 1 and sizes:
                lines[name] = [lines[name][0]._replace(x=size) for size in sizes]
    return [Line(name, sorted(points)) for name, points in lines.items()]
