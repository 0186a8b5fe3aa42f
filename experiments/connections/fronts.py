"""Fronts of accuracy against messages: with the oracle or without, pooled over sizes.

The thesis pools the studies that differ in how much data agents have, leaves PANM's
ordinary pulls out of its count, and has the oracle among the methods that can be on the
front, though none can be the oracle.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from experiments.analysis import lines
from experiments.connections.results import Runs, curves
from p2pjax.evaluation import statistics

NO_ORACLE = ("oracle",)
COUNTS = {"messages": "", "messages_thesis": ", messages as the thesis counts"}
OF_SIZES = ("train_size", "proportional", "num_agents", "min_train", "max_train")


class Point(NamedTuple):
    """Where a method lies."""

    score: float  # best accuracy, mean over runs
    cost: float  # messages that an agent sent until then


def at_best(runs: Runs, messages: str = "messages") -> Point:
    """Means over runs: of their best accuracy, and of what was sent until then.

    Args:
      runs: of a method.
      messages: the column that counts them; where a row does not have it, it is
        `messages`.
    """
    accuracy = curves(runs, "accuracy")
    sent = np.asarray(
        [[row.get(messages, row["messages"]) for row in run] for run in runs], float
    )
    best = accuracy.argmax(1)[:, None]
    until = np.take_along_axis(sent, best, 1)
    return Point(float(accuracy.max(1).mean()), float(until.mean()))


def points(runs_of: Mapping[str, Runs], messages: str = "messages") -> dict[str, Point]:
    """Where all methods lie.

    Args:
      runs_of: by method with its setting.
      messages: see `at_best`.
    """
    return {name: at_best(runs, messages) for name, runs in runs_of.items()}


def pooled(studies: Sequence[Mapping[str, Point]]) -> dict[str, Point]:
    """Means over studies, of the methods that all of them have.

    Args:
      studies: that differ in sizes.
    """
    return {
        name: Point(*np.mean([study[name] for study in studies], 0).tolist())
        for name in studies[0]
        if all(name in study for study in studies)
    }


def front(found: Mapping[str, Point], without: Collection[str] = ()) -> frozenset[str]:
    """Which methods no other beats in accuracy and in messages until then.

    Args:
      found: where methods lie.
      without: methods, whatever their setting, that are not compared.
    """
    names = [name for name in found if name.partition(",")[0] not in without]
    if not names:
        return frozenset()
    score, cost = zip(*(found[name] for name in names), strict=True)
    is_best = statistics.pareto_front(score, cost)
    return frozenset(name for name, best in zip(names, is_best, strict=True) if best)


def has_two_counts(runs_of: Mapping[str, Runs]) -> bool:
    """Whether the thesis counts the messages of some method in another way.

    Args:
      runs_of: by method with its setting.
    """
    return any("messages_thesis" in runs[0][0] for runs in runs_of.values())


def pools(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Names of the studies that differ in sizes only, by a name of all of them.

    Args:
      settings: what tells the studies apart, by their names.
    """
    found: dict[tuple, list[str]] = {}
    for name, own in settings.items():
        key = tuple(sorted((k, v) for k, v in own.items() if k not in OF_SIZES))
        found.setdefault(key, []).append(name)
    return {
        " + ".join(names) if len(names) == 2 else f"{len(names)} like {names[0]}": names
        for names in found.values()
        if len(names) > 1
    }


def draw(axes: Axes, runs_of: Mapping[str, Runs]) -> None:
    """Best accuracies against messages until then, and fronts of all and of methods.

    Bars are 95% intervals over runs. What the thesis counts is a hollow marker.

    Args:
      axes: to draw in.
      runs_of: by method with its setting.
    """
    found = points(runs_of)
    for without, style, gray in (((), "-", "0.7"), (NO_ORACLE, ":", "0.4")):
        best = sorted(found[name][::-1] for name in front(found, without))
        if best:
            axes.plot(*zip(*best, strict=True), style, c=gray, zorder=1)
    for position, (name, point) in enumerate(found.items()):
        color = lines.color_of(position, list(found))
        marker = lines.marker_of(position)
        best = curves(runs_of[name], "accuracy").max(1)
        best_of_runs = {point.cost: statistics.over_runs(best)}
        lines.draw_points(axes, best_of_runs, name, position, list(found))
        if "messages_thesis" in runs_of[name][0][0]:
            least = at_best(runs_of[name], "messages_thesis")
            axes.plot(least.cost, least.score, marker, c=color, mfc="none")
    smallest = min((p.cost for p in found.values() if p.cost > 0), default=1.0)
    axes.set_xscale("symlog", linthresh=smallest)
