"""Methods of choosing peers side by side, over several studies.

    python -m experiments.connection_scores WORKDIR [WORKDIR...]

Every study of `experiments.connections` is a column: a work folder, or several that
differ in nothing but methods and rounds. Runs of the same number have the same data, so
methods are compared with fixed random peers run by run.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from experiments.connections import results, thesis
from experiments.connections.results import Runs
from experiments.engine import run_folder
from p2pjax.evaluation import statistics
from p2pjax.types import InputError

Column = TypeVar("Column")
RunsOf = dict[str, Runs]  # by method
OF_METHODS = ("methods", "num_rounds", "eval_every")  # may differ in a study


def finished(folder: Path) -> RunsOf:
    """Evaluations by method and run, of methods whose runs have all ended."""
    settings = run_folder.settings(folder)
    ends = [int(settings["num_rounds"])] * int(settings["num_runs"])
    runs_of = results.runs_by_method(folder)
    return {
        name: runs
        for name, runs in runs_of.items()
        if [run[-1]["round"] for run in runs] == ends
    }


def accuracy(study: RunsOf, method: str) -> str:
    """Mean best accuracy, difference to sparse and p; a star on the Pareto front."""
    tops = {
        name: results.curves(study[name], "accuracy").max(1)
        for name in (method, "sparse")
        if name in study
    }
    is_front = dict(zip(study, results.front(study), strict=True))
    text = _short(tops[method].mean()) + ("*" if is_front[method] else "")
    if method == "sparse" or "sparse" not in tops:
        return text
    difference = (tops[method] - tops["sparse"]).mean()
    text += f" ({'+' if difference >= 0 else '-'}{_short(abs(difference))}"
    if len(tops[method]) > 1:
        p = statistics.paired_t_test(tops[method], tops["sparse"]).p
        text += f", p {p:.1g}".replace("0.", ".")
    return text + ")"


def in_cluster(study: RunsOf, method: str) -> str:
    """Share of peers averaged with in the last tenth of the rounds."""
    return _short(results.share_at_the_end(study[method]))


def gini(study: RunsOf, method: str) -> str:
    """Of the messages that agents sent, over all rounds."""
    last = [run[-1].get("gini", np.nan) for run in study[method]]
    return _short(float(np.mean(last)))


def messages(study: RunsOf, method: str) -> str:
    """Sent by an agent, over all rounds."""
    return f"{np.mean([run[-1]['messages'] for run in study[method]]):.0f}"


MEASURES: Mapping[str, Callable[[RunsOf, str], str]] = {
    "accuracy": accuracy,
    "in cluster": in_cluster,
    "Gini": gini,
    "messages": messages,
}


def _cell(measure: Callable[[RunsOf, str], str], study: RunsOf, method: str) -> str:
    return measure(study, method) if method in study else ""


def _short(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3f}".removeprefix("0")


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


def _printed(column: tuple[str, bool], method: str) -> str:
    value = thesis.printed(method, *column)
    return "" if value is None else f"{value:.2f}"


def print_scores(arguments: Sequence[str]) -> None:
    """Prints the tables of the work folders given."""
    if not arguments:
        raise InputError(
            "Need the work folder of at least one study, got none: "
            "python -m experiments.connection_scores WORKDIR [WORKDIR...]"
        )
    studies: dict[str, RunsOf] = {}
    printed: dict[str, tuple[str, bool]] = {}
    names: dict[tuple, str] = {}  # of studies, by all that makes them the same
    for folder in map(Path, arguments):
        if not all(run_folder.size(folder, n) for n in ("run.flags", "metrics.jsonl")):
            raise InputError(f"Need a work folder with results, got {folder}.")
        settings = run_folder.settings(folder)
        if "study" not in settings:
            raise InputError(f"Need a study of experiments.connections, got {folder}.")
        same = [(k, str(v)) for k, v in settings.items() if k not in OF_METHODS]
        name = names.setdefault(tuple(sorted(same)), folder.name)
        study, found = studies.setdefault(name, {}), finished(folder)
        if twice := study.keys() & found.keys():
            raise InputError(
                f"Need every method of a study once, got {', '.join(sorted(twice))} "
                f"again in {folder}: leave out one of the folders."
            )
        study.update(found)
        column = thesis.column_of(settings)
        if column is not None:
            printed[name] = column
    methods = list(dict.fromkeys(name for study in studies.values() for name in study))
    tables = [
        table(title, studies, methods, partial(_cell, measure))
        for title, measure in MEASURES.items()
    ]
    if printed:
        tables.insert(1, table("thesis", printed, methods, _printed))
    print("\n\n".join(tables))
