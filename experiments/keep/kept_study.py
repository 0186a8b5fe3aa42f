"""A kept study: `run.flags`, `summary.json` and `runs.jsonl` of its run folders.

`runs.jsonl` has a line per scheme, setting and run, with a list over the evaluations
for `round` and for every scalar column, and the last evaluation's `agent_accuracy` and
`class_accuracy`; columns that stay the same are said once, in `unchanged`. The summary
has what is computed of several runs, such as gains over learning alone, whether or not
the summaries of the run folders have it.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.engine import reading
from experiments.engine.command import SUMMARY
from experiments.engine.reading import OF_THE_END, Summary
from experiments.engine.row_kinds import WHERE, Row
from experiments.engine.summary import DERIVED, by_scheme, summary_rows
from experiments.engine.untrusted_files import refusal, shown
from p2pjax.types import InputError

Flags = dict[str, str]  # by name; "" for those without a value, `x` or `nox`

DIGITS = (5, 4)  # of numbers that are no counts; the second in large studies
LARGE = 300_000  # bytes of runs.jsonl
OF_RUNS = ("num_runs", "first_run")
# Lists of what was tried: a study can be run in parts of them.
LISTS = (
    "attacks",
    "consensus_steps",
    "formats",
    "graphs",
    "hidden",
    "levels",
    "methods",
    "modified",
    "num_byzantine",
    "rules",
    "schemes",
    "shared_hidden",
    "splits",
    "strengths",
    "values",
)
# Lists of what was tried where rows say so whatever their number, with --design.
LISTS_OF_DESIGNS = (
    "averaging",
    "cycles",
    "init",
    "loss",
    "privacy_level",
    "update",
    "weights",
)
# How a run is computed; equal to six digits whatever they say.
OF_THE_MACHINE = (
    "agent_loop",
    "checkpoint_every",
    "num_devices",
    "runs_at_once",
    "notensorboard",
    "nowandb",
    "tensorboard",
    "wandb",
)
PATHS = ("data_dir", "workdir", "vocabulary")


class FinishedRun(NamedTuple):
    """A finished run folder."""

    folder: Path
    flags: Flags
    rows: list[Row]  # a row per evaluation
    summary: Summary


def keep(name: str, folders: Sequence[Path], results: Path, replace: bool) -> Path:
    """Makes `results/name` of the parts of a study.

    Args:
      name: experiment and study, such as mnist.level.
      folders: finished run folders.
      results: where studies are kept.
      replace: whether a study of this name may be there already.

    Returns:
      The folder of the study.
    """
    parts = [read_part(folder) for folder in folders]
    experiment = _only({part.summary.experiment for part in parts}, folders)
    if name.split(".")[0] != experiment or name.count(".") != 1:
        raise InputError(
            f"Need the name of a study of {experiment}, such as {experiment}.level, "
            f"got {name}."
        )
    folder = results / name
    if folder.exists() and not replace:
        raise InputError(
            f"{folder} is there already: pass --replace to put these runs in its place."
        )
    flags = merged_flags(parts)
    runs = merged_runs(parts)
    names = [row["metric"] for part in parts for row in part.summary.rows]
    summary = {
        "experiment": experiment,
        "rows": summary_rows(
            by_scheme(row for rows in runs for row in rows),
            metrics_of(names),
            _target(parts[0].flags),
        ),
        "environment": _environment(parts),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.flags").write_text("\n".join(flags) + "\n")
    _write_summary(folder, summary)
    (folder / "runs.jsonl").write_text(lines_of(runs))
    update_summary(folder)  # what is computed of several runs, of the digits kept
    return folder


def update_summary(folder: Path) -> None:
    """Adds to the summary of a kept study what its `runs.jsonl` says and it lacks.

    Args:
      folder: of the study.
    """
    _write_summary(folder, updated(folder))


def updated(folder: Path) -> Row:
    """The summary of a kept study with all that its `runs.jsonl` says.

    What is computed of several runs is computed anew; metrics of the last evaluation
    that are there already stay, because they were computed of more digits.

    Args:
      folder: of the study.
    """
    before = reading.summary(folder)
    schemes = by_scheme(
        row for line in reading.kept_runs(folder) for row in evaluations(line)
    )
    names = metrics_of([row["metric"] for row in before.rows])
    kept = {(reading.key_of(row), row["metric"]): row for row in before.rows}
    rows = [
        found
        if found["metric"] in DERIVED
        else kept.get((reading.key_of(found), found["metric"]), found)
        for found in summary_rows(schemes, names, _target(reading.flags(folder)))
    ]
    summary = {"experiment": before.experiment, "rows": plain(rows, 7)}
    return summary | {"environment": before.environment}


def metrics_of(names: Sequence[str]) -> list[str]:
    """Columns of rows that a kept summary has: those asked for, and the usual ones."""
    return [name for name in dict.fromkeys((*names, *SUMMARY)) if name not in DERIVED]


def _target(flags: Flags) -> float | None:
    """The accuracy whose cost is told, if one is."""
    return float(flags["target_accuracy"]) if "target_accuracy" in flags else None


def _write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    (folder / "summary.json").write_text(json.dumps(plain(summary, 7), indent=1) + "\n")


def lines_of(runs: Sequence[Sequence[Row]]) -> str:
    """All of `runs.jsonl`, with as many digits as its size allows."""
    for digits in DIGITS:
        lines = (shortened(plain(line_of(rows), digits)) for rows in runs)
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        if len(text) < LARGE:
            break
    return text


def read_part(folder: Path) -> FinishedRun:
    """A run folder that is complete, or a kept study to which others are added."""
    if os.path.lexists(folder / "lock"):
        raise InputError(
            f"Need the work folder of a finished run, but {shown(folder)} is still in "
            "use: wait for its end."
        )
    summary = reading.summary(folder)
    flags = reading.flags(folder)
    if os.path.lexists(folder / reading.KEPT):
        lines = reading.kept_runs(folder)
        rows = [row for line in lines for row in evaluations(line)]
    else:
        rows = reading.rows(folder)
    for name in {row["metric"] for row in summary.rows}:
        if any(isinstance(row.get(name), (str, list, dict)) for row in rows):
            needed = "metrics that are one number in a row"
            raise refusal(folder / reading.SUMMARY, needed, f"has {name}")
    return FinishedRun(folder, flags, rows, summary)


def merged_flags(parts: Sequence[FinishedRun]) -> list[str]:
    """Lines of `run.flags` for all parts together, without any path."""
    first = parts[0].flags
    lists = (*LISTS, *LISTS_OF_DESIGNS) if "design" in first else LISTS
    free = (*OF_RUNS, *lists, *OF_THE_MACHINE, *PATHS)
    for part in parts[1:]:
        differ = sorted(
            flag
            for flag in {*first, *part.flags}
            if flag not in free and first.get(flag) != part.flags.get(flag)
        )
        if differ:
            was = ", ".join(
                f"--{flag} ({_said(first, flag)} and {_said(part.flags, flag)})"
                for flag in differ
            )
            raise InputError(
                f"Need parts of one study, but {parts[0].folder} and {part.folder} "
                f"differ in {was}."
            )
    flags = dict(first)
    for flag in lists:
        tried = [v for part in parts for v in part.flags.get(flag, "").split(",")]
        if any(tried):
            flags[flag] = ",".join(dict.fromkeys(value for value in tried if value))
    runs = {row["run"] for part in parts for row in part.rows}
    flags["num_runs"] = str(len(runs))
    if min(runs) > 0:
        flags["first_run"] = str(min(runs))
    else:
        flags.pop("first_run", None)
    return [
        f"--{flag}={value}" if value else f"--{flag}"
        for flag, value in sorted(flags.items())
        if flag not in PATHS and not value.startswith(("/", "~", "."))
    ]


def _said(flags: Flags, flag: str) -> str:
    return (flags[flag] or "set") if flag in flags else "not given"


def merged_runs(parts: Sequence[FinishedRun]) -> list[list[Row]]:
    """Evaluations of every scheme, setting and run, of all parts."""
    runs: dict[str, list[Row]] = {}
    first_in: dict[str, int] = {}  # which part
    for number, part in enumerate(parts):
        for row in part.rows:
            where = json.dumps([row[key] for key in WHERE], sort_keys=True)
            if first_in.setdefault(where, number) != number:
                setting = ", ".join(f"{k}={v}" for k, v in row["setting"].items())
                other = parts[first_in[where]].folder
                raise InputError(
                    f"Run {row['run']} of {row['scheme']} ({setting or 'no setting'}) "
                    f"is in {other} and in {part.folder}: leave one of them out."
                )
            runs.setdefault(where, []).append(row)
    return list(runs.values())


def line_of(rows: Sequence[Row]) -> Row:
    """One line of `runs.jsonl`: evaluations of one run, column by column."""
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if name not in WHERE and not any(isinstance(r.get(name), list) for r in rows)
    ]
    line = {key: rows[0][key] for key in WHERE}
    line |= {name: [row.get(name) for row in rows] for name in names}
    return line | {name: rows[-1][name] for name in OF_THE_END if name in rows[-1]}


def shortened(line: Row) -> Row:
    """A line with columns that stay the same said once; `reading` undoes it."""
    fixed = (*WHERE, "round", *OF_THE_END)
    once = {
        name: values[0]
        for name, values in line.items()
        if name not in fixed and len(values) > 1 and len({*map(repr, values)}) == 1
    }
    if not once:
        return line
    return {k: v for k, v in line.items() if k not in once} | {reading.UNCHANGED: once}


def evaluations(line: Row) -> list[Row]:
    """What `line_of` was given, but for other lists than those of the end."""
    columns = {k: v for k, v in line.items() if k not in (*WHERE, *OF_THE_END)}
    where = {key: line[key] for key in WHERE}
    rows = [
        where | {name: values[place] for name, values in columns.items()}
        for place in range(len(line["round"]))
    ]
    rows[-1] |= {name: line[name] for name in OF_THE_END if name in line}
    return rows


def plain(value: Any, digits: int) -> Any:
    """As JSON has it: counts are whole, other numbers have that many digits."""
    if isinstance(value, Mapping):
        return {key: plain(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, digits) for item in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None  # JSON has no infinity
    if not value.is_integer():
        value = float(f"{value:.{digits}g}")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _environment(parts: Sequence[FinishedRun]) -> Row:
    """What the numbers were made with; a list where parts differ."""
    every = [part.summary.environment for part in parts]
    found = {name: _distinct([one.get(name) for one in every]) for name in every[0]}
    return {name: v[0] if len(v) == 1 else v for name, v in found.items()}


def _distinct(values: Sequence[Any]) -> list[Any]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _only(experiments: set[str], folders: Sequence[Path]) -> str:
    if len(experiments) > 1:
        raise InputError(
            f"Need parts of one study, but {', '.join(map(str, folders))} are of "
            f"{' and '.join(sorted(experiments))}."
        )
    return experiments.pop()
