"""Methods of choosing peers side by side, over several studies.

    python -m experiments.connection_scores WORKDIR [WORKDIR...]

Every study of `experiments.connections` is a column: a work folder, or several that
differ in nothing but methods and rounds. Runs of the same number have the same data, so
methods are compared with fixed random peers run by run.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from experiments.connections import results, thesis
from experiments.connections.results import Runs
from experiments.engine import reading
from experiments.engine.untrusted_files import refusal, shown
from p2pjax.evaluation import statistics
from p2pjax.types import InputError

Column = TypeVar("Column")
RunsOf = dict[str, Runs]  # by method
OF_METHODS = ("methods", "num_rounds", "eval_every")  # may differ in a study
NUMBERS = frozenset(("num_rounds", "num_runs", "first_run", "train_size", "max_train"))
_STUDY = "a study of experiments.connections"


def settings_of(folder: Path) -> dict[str, str]:
    """Flags of a study of connections; refuses others."""
    settings = reading.flags(folder)
    for name in ("study", "num_rounds", "num_runs"):
        if name not in settings:
            raise refusal(folder / reading.FLAGS, _STUDY, f"has no --{name}")
    for name in settings.keys() & NUMBERS:
        if not re.fullmatch(r"[0-9]{1,9}", settings[name]):
            found = f"has '{shown(settings[name])}' as its --{name}"
            raise refusal(folder / reading.FLAGS, _STUDY, found)
    return settings


def finished(folder: Path, settings: Mapping[str, str]) -> RunsOf:
    """Evaluations by method and run, of methods whose runs have all ended."""
    first, num_runs = int(settings.get("first_run", 0)), int(settings["num_runs"])
    num_rounds = int(settings["num_rounds"])
    found = {
        name: runs
        for name, runs in results.runs_by_method(folder).items()
        if len(runs) == num_runs
        and all(
            (run[-1]["run"], run[-1]["round"]) == (number, num_rounds)
            for number, run in enumerate(runs, first)
        )
    }
    for name, runs in found.items():
        if len({tuple(row["round"] for row in run) for run in runs}) > 1:
            wrong = f"has runs of {name} with other rounds than its first"
            raise refusal(folder / reading.METRICS, _STUDY, wrong)
    return found


def tops(runs: Runs) -> np.ndarray:
    """The best accuracy of every run, `[S]`."""
    return results.curves(runs, "accuracy").max(1)


def accuracy(study: RunsOf, method: str) -> str:
    """Mean best accuracy, difference to sparse and p; a star on the Pareto front."""
    own = tops(study[method])
    is_front = dict(zip(study, results.front(study), strict=True))
    text = _short(own.mean()) + ("*" if is_front[method] else "")
    sparse = results.alike(study, method, "sparse")
    if sparse is None or results.method_of(study[method]) == "sparse":
        return text
    others = tops(study[sparse])
    difference = (own - others).mean()
    text += f" ({'+' if difference >= 0 else '-'}{_short(abs(difference))}"
    if len(own) > 1:
        p = statistics.paired_t_test(own, others).p
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
        settings = settings_of(folder)
        same = [(k, str(v)) for k, v in settings.items() if k not in OF_METHODS]
        is_taken = folder.name in {Path(name).name for name in names.values()}
        new = str(folder) if is_taken else folder.name
        name = names.setdefault(tuple(sorted(same)), shown(new))
        study, found = studies.setdefault(name, {}), finished(folder, settings)
        if twice := study.keys() & found.keys():
            raise InputError(
                f"Need every method of a study once, got {', '.join(sorted(twice))} "
                f"again in {shown(folder)}: leave out one of the folders."
            )
        study.update(found)
        column = thesis.column_of(settings)
        if column is not None:
            printed[name] = column
    methods = list(dict.fromkeys(name for study in studies.values() for name in study))
    if not methods:
        raise InputError(
            "Need a method whose runs have all ended, got none in "
            f"{shown(', '.join(arguments))}: wait for them, or go on by --resume."
        )
    tables = [
        table(title, studies, methods, partial(_cell, measure))
        for title, measure in MEASURES.items()
    ]
    if printed:
        tables.insert(1, table("thesis", printed, methods, _printed))
    print("\n\n".join(tables))
