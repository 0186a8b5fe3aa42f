"""Tables of methods over studies: accuracy, load, speed, fronts, averages."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from experiments.connections import fronts, results, thesis
from experiments.connections.results import Runs
from experiments.engine.summary import rounds_to_share_of_best
from p2pjax.evaluation import statistics

Column = TypeVar("Column")
RunsOf = dict[str, Runs]  # by method with its setting


def tops(runs: Runs) -> dict[int, float]:
    """The best accuracy of every run, by its number."""
    best = results.curves(runs, "accuracy").max(1)
    return {run[0]["run"]: float(top) for run, top in zip(runs, best, strict=True)}


def gains(study: RunsOf, method: str) -> np.ndarray | None:
    """What every run is above fixed random peers, `[S]`; None if there are none."""
    sparse = results.alike(study, method, "sparse")
    if sparse is None or results.method_of(study[method]) == "sparse":
        return None
    own, others = tops(study[method]), tops(study[sparse])
    common = [run for run in own if run in others]
    return np.array([own[run] - others[run] for run in common]) if common else None


def accuracy(study: RunsOf, method: str) -> str:
    """Mean best accuracy, difference to sparse and p; a star on the Pareto front."""
    is_front = fronts.front(fronts.points(study))
    text = _short(float(np.mean(list(tops(study[method]).values()))))
    text += "*" if method in is_front else ""
    above = gains(study, method)
    if above is None:
        return text
    text += f" ({_signed(above.mean())}"
    if len(above) > 1:
        p = statistics.paired_t_test(above, np.zeros_like(above)).p
        text += f", p {p:.1g}".replace("0.", ".")
    return text + ")"


def in_cluster(study: RunsOf, method: str) -> str:
    """Share of peers averaged with in the last tenth of the rounds."""
    return _short(results.share_at_the_end(study[method]))


def gini(study: RunsOf, method: str) -> str:
    """Of the messages that agents sent, over all rounds."""
    last = [run[-1].get("gini") for run in study[method]]
    return _short(float(np.mean(np.asarray(last, float))))


def messages(study: RunsOf, method: str) -> str:
    """Sent by an agent, over all rounds."""
    last = [run[-1]["messages"] for run in study[method]]
    return f"{np.mean(np.asarray(last, float)):.0f}"


def messages_thesis(study: RunsOf, method: str) -> str:
    """Sent by an agent, as the thesis counts; empty where it counts all."""
    last = [run[-1].get("messages_thesis") for run in study[method]]
    return "" if None in last else f"{np.mean(np.asarray(last, float)):.0f}"


def speed(study: RunsOf, method: str) -> str:
    """Rounds until an accuracy of nine tenths of the run's best."""
    first = [rounds_to_share_of_best(run) for run in study[method]]
    return f"{np.mean(np.asarray(first, float)):.0f}"


MEASURES: Mapping[str, Callable[[RunsOf, str], str]] = {
    "accuracy": accuracy,
    "in cluster": in_cluster,
    "Gini": gini,
    "messages": messages,
    "messages, as the thesis counts": messages_thesis,
    "rounds to 90% of best": speed,
}


def measure_tables(studies: Mapping[str, RunsOf], methods: Sequence[str]) -> list[str]:
    """A table for each measure that some study has.

    Args:
      studies: by name.
      methods: rows of the tables.
    """
    return [
        table(title, studies, methods, partial(_cell, measure))
        for title, measure in MEASURES.items()
        if any(
            _cell(measure, study, method)
            for study in studies.values()
            for method in methods
        )
    ]


def _cell(measure: Callable[[RunsOf, str], str], study: RunsOf, method: str) -> str:
    return measure(study, method) if method in study else ""


def _short(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3f}".removeprefix("0")


def _signed(value: float) -> str:
    return ("+" if value >= 0 else "-") + _short(abs(value))


def table(
    title: str,
    columns: Mapping[str, Column],
    methods: Sequence[str],
    cell: Callable[[Column, str], str],
) -> str:
    """Methods in rows, studies in columns."""
    lines = [f"| {title} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for method in methods:
        cells = [cell(column, method) for column in columns.values()]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def printed(column: tuple[str, bool], method: str) -> str:
    value = thesis.printed(method, *column)
    return "" if value is None else f"{value:.2f}"


def front_tables(
    studies: Mapping[str, RunsOf], pools: Mapping[str, Sequence[str]]
) -> list[str]:
    """Accuracy and messages until then, starred on the front: of all, without oracle.

    Each again with messages as the thesis counts, where that is another number.

    Args:
      studies: by name.
      pools: names of the studies whose points are averaged, by a name of the pool.
    """
    found = []
    for counts, said in fronts.COUNTS.items():
        if counts != "messages" and not any(
            fronts.has_two_counts(study) for study in studies.values()
        ):
            continue
        columns = {name: fronts.points(own, counts) for name, own in studies.items()}
        for pool, names in pools.items():
            columns[pool] = fronts.pooled([columns[name] for name in names])
        methods = list(dict.fromkeys(name for own in columns.values() for name in own))
        for without in ((), fronts.NO_ORACLE):
            title = "front" + " without oracle" * bool(without) + said
            cell = partial(_front_cell, without)
            found.append(table(title, columns, methods, cell))
    return found


def _front_cell(
    without: Sequence[str], column: Mapping[str, fronts.Point], method: str
) -> str:
    if method not in column or method.partition(",")[0] in without:
        return ""
    point, star = column[method], "*" * (method in fronts.front(column, without))
    return f"{_short(point.score)} at {point.cost:.0f}{star}"


def average_table(studies: Mapping[str, RunsOf], methods: Sequence[str]) -> str:
    """Means over the studies that have a method, of which each counts the same.

    Args:
      studies: by name.
      methods: rows of the table.
    """
    lines = [
        "| mean over studies | studies | accuracy | above sparse | in how many | "
        "messages / sparse |",
        "|---" * 6 + "|",
    ]
    for method in methods:
        having = [study for study in studies.values() if method in study]
        top = np.mean([np.mean(list(tops(own[method]).values())) for own in having])
        cells = [str(len(having)), _short(float(top))]
        above = [gains(study, method) for study in having]
        means = [float(one.mean()) for one in above if one is not None]
        if means:
            cells.append(_signed(float(np.mean(means))))
            cells.append(f"{sum(mean > 0 for mean in means)} of {len(means)}")
            ratios = [_ratio(study, method) for study in having]
            cells.append(f"{np.mean([one for one in ratios if one is not None]):.2f}")
        cells += [""] * (5 - len(cells))
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(study: RunsOf, method: str) -> float | None:
    """Of messages to those of fixed random peers."""
    sparse = results.alike(study, method, "sparse")
    if sparse is None:
        return None
    own, others = (
        float(np.mean([run[-1]["messages"] / run[-1]["round"] for run in study[name]]))
        for name in (method, sparse)
    )
    return own / others
