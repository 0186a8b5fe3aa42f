"""Methods of choosing peers side by side, over several studies.

    python -m experiments.connection_scores WORKDIR [WORKDIR...] [--averages]

Every study of `experiments.connections` is a column: a work folder, or several that
differ in nothing but methods, rounds and runs. Runs of the same number have the same
data, so methods are compared with fixed random peers run by run. Fronts of studies that
differ in how much data agents have are pooled as well.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.connections import fronts, results, score_tables, thesis
from experiments.connections.score_tables import RunsOf
from experiments.engine import reading
from experiments.engine.untrusted_files import refusal, shown
from p2pjax.types import InputError

# May differ in a study.
OF_METHODS = ("methods", "num_rounds", "eval_every", "num_runs", "first_run")
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


def print_scores(arguments: Sequence[str], averages: bool = False) -> None:
    """Prints the tables of the work folders given.

    Args:
      arguments: the folders.
      averages: whether means over all of their studies are printed too.
    """
    if not arguments:
        raise InputError(
            "Need the work folder of at least one study, got none: "
            "python -m experiments.connection_scores WORKDIR [WORKDIR...]"
        )
    studies: dict[str, RunsOf] = {}
    printed: dict[str, tuple[str, bool]] = {}
    told_apart: dict[str, dict[str, str]] = {}
    names: dict[tuple, str] = {}  # of studies, by all that makes them the same
    for folder in map(Path, arguments):
        settings = settings_of(folder)
        same = [(k, str(v)) for k, v in settings.items() if k not in OF_METHODS]
        is_taken = folder.name in {Path(name).name for name in names.values()}
        new = str(folder) if is_taken else folder.name
        name = names.setdefault(tuple(sorted(same)), shown(new))
        for pair, found in results.by_pair(finished(folder, settings)).items():
            column = f"{name}, {shown(pair)}" if pair else name
            told_apart[column] = dict(same)
            _add(studies.setdefault(column, {}), found, folder)
            in_print = thesis.column_of(settings)
            if in_print is not None:
                printed[column] = in_print
    methods = list(dict.fromkeys(name for study in studies.values() for name in study))
    if not methods:
        raise InputError(
            "Need a method whose runs have all ended, got none in "
            f"{shown(', '.join(arguments))}: wait for them, or go on by --resume."
        )
    tables = score_tables.measure_tables(studies, methods)
    if printed:
        said = score_tables.table("thesis", printed, methods, score_tables.printed)
        tables.insert(1, said)
    tables += score_tables.front_tables(studies, fronts.pools(told_apart))
    if averages:
        tables.append(score_tables.average_table(studies, methods))
    print("\n\n".join(tables))


def _add(study: RunsOf, found: RunsOf, folder: Path) -> None:
    """Runs of another folder of the same study."""
    for method, runs in found.items():
        own = study.setdefault(method, [])
        known = {run[0]["run"] for run in own}
        if again := sorted(known & {run[0]["run"] for run in runs}):
            raise InputError(
                f"Need every run of a method of a study once, got run {again[0]} of "
                f"{method} again in {shown(folder)}: leave out one of the folders."
            )
        if own and [row["round"] for row in own[0]] != [r["round"] for r in runs[0]]:
            raise InputError(
                f"Need runs of a method with the same rounds, got others of {method} "
                f"in {shown(folder)}: leave out one of the folders."
            )
        own += runs
