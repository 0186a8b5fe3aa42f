"""What the kept runs measured: a number for each run, as a part of a claim asks.

Reads `results/<study>/runs.jsonl`, written by `experiments.keep`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.claims.ledger import Operand, Part
from experiments.engine import reading
from experiments.engine.row_kinds import is_number
from p2pjax.types import InputError

Line = dict[str, Any]
Group = dict[int, Line]  # lines of one scheme and setting, by run
Values = dict[int, float]  # by run

# What was spent until the best evaluation; other columns have a best of their own.
UNTIL_BEST = ("round", "messages", "bytes", "bytes_down")


class Study(NamedTuple):
    """A kept study."""

    name: str
    groups: tuple[Group, ...]


class Sample(NamedTuple):
    """What a part compares: a number per run, and the curves behind it."""

    runs: tuple[int, ...]
    left: np.ndarray  # [S]; changes over the range for trends
    right: np.ndarray  # [S]; zero for trends and numbers
    groups: tuple[Group, ...]


def load(results: Path) -> dict[str, Study]:
    """All kept studies, by name: each folder is one."""
    folders = sorted(path for path in results.glob("[!.]*") if path.is_dir())
    return {folder.name: Study(folder.name, _groups(folder)) for folder in folders}


def _groups(folder: Path) -> tuple[Group, ...]:
    groups = reading.by_scheme(reading.kept_runs(folder)).values()
    return tuple({line["run"]: line for line in same} for same in groups)


def sample(study: Study, part: Part) -> Sample | None:
    """What the study has for a part; None if it lacks a scheme or setting of it."""
    if part.over:
        return _trend(study, part)
    operands = [side for side in (part.left, part.right) if side is not None]
    found = [_measure(study, side) for side in operands]
    sides = [one for one in found if one is not None]
    if len(sides) < len(found):
        return None
    runs = _common(
        [
            one[0]
            for one, side in zip(sides, operands, strict=True)
            if side.value is None
        ]
    )
    groups = tuple(group for _, lines in sides for group in lines)
    left = _column(part.left, sides[0][0], runs)
    right = np.zeros(len(runs))
    if part.right is not None:
        right = _column(part.right, sides[1][0], runs)
    return Sample(runs, left, right, groups)


def _column(operand: Operand, values: Values, runs: Sequence[int]) -> np.ndarray:
    """Numbers `[S]` of a side; a plain number is the same in all runs."""
    if operand.value is not None:
        return np.full(len(runs), operand.value, float)
    return np.asarray([values[run] for run in runs], float)


def _trend(study: Study, part: Part) -> Sample | None:
    """Change over the range by a straight line through equal steps, run by run."""
    points, groups = [], []
    for value in part.values:
        moved = (
            part.left._replace(at=value)
            if part.over == "round"
            else with_setting(part.left, {part.over: value})
        )
        found = _measure(study, moved)
        if found is not None:
            points.append(found[0])
            groups += found[1]
    if len(points) < 2:
        return None
    runs = _common(points)
    curves = np.asarray([[one[run] for run in runs] for one in points])  # [P, S]
    steps = np.arange(len(points)) - (len(points) - 1) / 2
    slopes = steps @ curves / (steps @ steps)
    change = slopes * (len(points) - 1)
    return Sample(runs, change, np.zeros(len(runs)), tuple(groups))


def with_setting(operand: Operand, setting: dict[str, Any]) -> Operand:
    """A side of a comparison in one more setting, with all that it refers to.

    Args:
      operand: the side.
      setting: what is added.
    """
    minus, ratio_to = operand.minus, operand.ratio_to
    return operand._replace(
        setting=operand.setting | setting,
        minus=minus and with_setting(minus, setting),
        ratio_to=ratio_to and with_setting(ratio_to, setting),
    )


def _common(every: Sequence[Values]) -> tuple[int, ...]:
    runs = set(every[0]) if every else set()
    return tuple(sorted(runs.intersection(*every)))


def _measure(study: Study, operand: Operand) -> tuple[Values, list[Group]] | None:
    if operand.value is not None:
        return {}, []
    groups = [_group(study, name, operand.setting) for name in operand.schemes]
    lines = [group for group in groups if group is not None]
    if len(lines) < len(groups):
        return None
    numbers = [
        {run: _number(study, group[run], operand) for run in group} for group in lines
    ]
    every = [{r: v for r, v in one.items() if v is not None} for one in numbers]
    if not all(every):
        return None
    values = _picked(study, operand, every, lines)
    for other, combine in (
        (operand.minus, lambda a, b: a - b),
        (operand.ratio_to, lambda a, b: a / b if b else float("nan")),
    ):
        if other is not None:
            found = _measure(study, other)
            if found is None:
                return None
            others = found[0]
            if other.value is not None:
                others = dict.fromkeys(values, other.value)
            values = {
                run: combine(values[run], others[run])
                for run in _common([values, others])
            }
            lines += found[1]
    return values, lines


def _group(study: Study, scheme: str, setting: dict[str, Any]) -> Group | None:
    """Lines of the one scheme and setting that is meant."""
    fitting = []
    for group in study.groups:
        line = next(iter(group.values()))
        same = all(line["setting"].get(key) == v for key, v in setting.items())
        if line["scheme"] == scheme and same:
            fitting.append(group)
    if len(fitting) > 1:
        settings = [next(iter(group.values()))["setting"] for group in fitting]
        raise InputError(
            f"{study.name} has {scheme} in several settings with {setting}: "
            f"{settings}; say more of the setting."
        )
    return fitting[0] if fitting else None


def _number(study: Study, line: Line, operand: Operand) -> float | None:
    """Of one run; None if it was not measured."""
    if operand.agent is not None:
        agents = line.get("agent_accuracy", [])
        if not 0 <= operand.agent < len(agents):
            raise InputError(
                f"Need the accuracy of agent {operand.agent} for a claim, but "
                f"{study.name} has {len(agents)} agents in {line['scheme']}."
            )
        return agents[operand.agent]
    curve = line.get(operand.metric)
    if curve is None:
        return None
    accuracy = line.get("accuracy", [])
    if operand.until is not None:
        reached = [
            i for i, a in enumerate(accuracy) if a is not None and a >= operand.until
        ]
        return curve[reached[0]] if reached else float("inf")
    if operand.at == "best" and operand.metric in UNTIL_BEST:
        known = [i for i, a in enumerate(accuracy) if a is not None]
        return curve[max(known, key=lambda i: accuracy[i])] if known else None
    if operand.at == "best":
        return max((point for point in curve if point is not None), default=None)
    if operand.at == "last":
        return curve[-1]
    rounds = line["round"]
    return curve[rounds.index(operand.at)] if operand.at in rounds else None


def _picked(
    study: Study, operand: Operand, every: Sequence[Values], groups: Sequence[Group]
) -> Values:
    """One number per run; the best of several schemes is picked on the other runs."""
    if operand.pick == "only":
        return dict(every[0])
    runs = _common(every)
    table = np.asarray([[one[run] for run in runs] for one in every])  # [C, S]
    if operand.pick == "which":
        settings = [next(iter(group.values()))["setting"] for group in groups]
        keys = [setting.get(operand.key) for setting in settings]
        if not all(map(is_number, keys)):
            raise InputError(
                f"Need a number as the setting {operand.key} of each scheme of a claim "
                f"with which_of, but {study.name} has others."
            )
        return {run: float(keys[table[:, i].argmax()]) for i, run in enumerate(runs)}
    if len(runs) > 1:
        others = (table.sum(1, keepdims=True) - table) / (len(runs) - 1)
    else:
        others = table
    chosen = others.argmax(0) if operand.pick == "best" else others.argmin(0)
    return {run: float(table[chosen[i], i]) for i, run in enumerate(runs)}
