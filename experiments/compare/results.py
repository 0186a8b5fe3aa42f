"""The table of a comparison: accuracies where methods have used the same budget."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.engine import reading
from experiments.engine.row_kinds import Row
from experiments.engine.summary import Runs, by_scheme
from p2pjax.evaluation import statistics

COLUMNS = {"rounds": "round", "examples": "examples", "messages": "messages"}


class Contender(NamedTuple):
    """A method in a setting with one learning rate, where its budget is used up."""

    name: str  # of the method, and what else its setting says
    learning_rate: float
    rows: list[Row]  # of its runs

    def mean(self, name: str) -> float:
        """Over runs; not a number where a run does not have it."""
        return float(np.mean(_floats([row.get(name) for row in self.rows])))


def spent(row: Row, budget: str) -> float:
    """What a run had used at an evaluation, mean over agents."""
    if budget == "bytes":  # of servers too
        return row["bytes"] + row.get("bytes_down", 0)
    return row[COLUMNS[budget]]


def name_of(row: Row) -> str:
    """The method of a row in its setting, whatever its learning rate."""
    others = (
        f"{key} {value}"
        for key, value in row["setting"].items()
        if key != "learning_rate"
    )
    return " ".join((row["scheme"], *others))


def at_budget(runs: Runs, budget: str, amount: float) -> list[Row]:
    """The last evaluation of each run within the budget; the first if none is."""
    return [
        ([row for row in run if spent(row, budget) <= amount] or run[:1])[-1]
        for run in runs.values()
    ]


def equal_amount(schemes: Sequence[Runs], budget: str) -> float:
    """What the method has used in the end that has used least of those that use any."""
    ends = [spent(run[-1], budget) for runs in schemes for run in runs.values()]
    return min((end for end in ends if end > 0), default=0.0)


def contenders(schemes: Sequence[Runs], budget: str, amount: float) -> list[Contender]:
    """Every method in every setting with the rate that its validation data choose.

    Without validation data all rates stay: none may be chosen by the test.
    """
    found: dict[str, list[Contender]] = {}
    for runs in schemes:
        rows = at_budget(runs, budget, amount)
        rate = rows[0]["setting"]["learning_rate"]
        one = Contender(name_of(rows[0]), rate, rows)
        found.setdefault(one.name, []).append(one)
    chosen = []
    for same in found.values():
        if all("valid_accuracy" in row for one in same for row in one.rows):
            same = [max(same, key=lambda one: one.mean("valid_accuracy"))]
        chosen += same
    return chosen


def _rows(folder: Path) -> list[Row]:
    spent = ("messages", "examples", "bytes")
    return reading.rows(folder, ("accuracy",), numbers=spent)


def chosen_rows(folder: Path, budget: str, amount: float | None) -> list[Row]:
    """All evaluations of every method with its learning rate, for figures.

    Where no rate is chosen, methods are named with theirs.

    Args:
      folder: of the run.
      budget: rounds, examples, messages or bytes.
      amount: of it, mean over agents; what the thriftiest method used if None.
    """
    rows = _rows(folder)
    schemes = by_scheme(rows)
    found = contenders(schemes, budget, amount or equal_amount(schemes, budget))
    kept = {(one.name, one.learning_rate) for one in found}
    several = len(kept) > len({name for name, _ in kept})
    chosen = []
    for row in rows:
        name, rate = name_of(row), row["setting"]["learning_rate"]
        if (name, rate) in kept:
            shown = f"{name} {rate:g}" if several else name
            chosen.append(row | {"scheme": shown})
    return chosen


def table(folder: Path, budget: str, amount: float | None) -> str:
    """Methods in rows, best first; accuracies are means with 95% intervals over runs.

    Args:
      folder: of the run.
      budget: rounds, examples, messages or bytes.
      amount: of it, mean over agents; what the thriftiest method used if None.
    """
    schemes = by_scheme(_rows(folder))
    if amount is None:
        amount = equal_amount(schemes, budget)
    found = contenders(schemes, budget, amount)
    found.sort(key=lambda one: -one.mean("accuracy"))
    alone = {
        row["run"]: row["agent_accuracy"]
        for one in found
        if one.name == "local_only"
        for row in one.rows
    }
    more = [
        one.name
        for one in found
        if any(spent(row, budget) > amount for row in one.rows)
    ]
    beyond = f", but for {', '.join(more)} at the first evaluation" if more else ""
    lines = [
        f"Each agent has used at most {amount:,.0f} {budget}{beyond}; mean over "
        f"{len(found[0].rows)} runs, with 95% intervals.",
        "",
        "| method | learning rate | accuracy | before averaging | after | worst tenth "
        "| gain over local | agents that lose | rounds | examples | messages | MB |",
        "|---" * 12 + "|",
    ]
    for one in found:
        gains = [
            _floats(row["agent_accuracy"]) - _floats(alone[row["run"]])
            for row in one.rows
            if row["run"] in alone and one.name != "local_only"
        ]
        cells = [
            one.name,
            f"{one.learning_rate:g}",
            _interval([row["accuracy"] for row in one.rows]),
            _number(one.mean("accuracy_before")),
            _number(one.mean("accuracy_after")),
            _number(one.mean("worst_decile")),
            f"{np.mean(gains):+.3f}" if gains else "",
            f"{np.mean(np.less(gains, 0)):.0%}" if gains else "",
            f"{one.mean('round'):.0f}",
            f"{one.mean('examples'):,.0f}",
            f"{one.mean('messages'):,.1f}",
            f"{np.mean([spent(row, 'bytes') for row in one.rows]) / 1e6:.3g}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += _beyond(found, budget, amount)
    majority = found[0].mean("majority")
    if np.isfinite(majority):
        lines += ["", f"The most frequent label alone is right for {majority:.3f}."]
    return "\n".join(lines) + "\n"


def _beyond(found: Sequence[Contender], budget: str, amount: float) -> list[str]:
    """Lines on methods that had used up more than the budget when first evaluated."""
    most = {
        one.name: max(spent(row, budget) for row in one.rows) for one in found[::-1]
    }
    over = [f"{name} {used:,.0f}" for name, used in most.items() if used > amount]
    if not over:
        return []
    return [
        "",
        f"Not so of {', '.join(over)}: so many {budget} had been used when it was "
        "first evaluated. Evaluate more often (--eval_every), or give a larger "
        "--budget_amount.",
    ]


def _number(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else ""


def _interval(values: Sequence[float | None]) -> str:
    mean = float(np.mean(_floats(values)))
    if len(values) < 2:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {statistics.mean_interval(_floats(values)):.3f}"


def _floats(values: Sequence[float | None]) -> np.ndarray:
    """Not a number where there is none."""
    return np.asarray(values, float)
