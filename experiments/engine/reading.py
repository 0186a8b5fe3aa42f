"""The one reader of run folders and kept studies, for all programs.

Files may be unfinished, damaged or someone else's: whatever is read is held against
what a run writes, names, kinds and order, and what no run writes is refused by an
InputError that names the file, the line and what to do. Of a run that goes on the last
line may be cut.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from experiments.engine import row_kinds, untrusted_files
from experiments.engine.row_kinds import WHERE, Row, require
from experiments.engine.untrusted_files import MissingFileError, refusal

METRICS, LINKS = "metrics.jsonl", "links.jsonl"
SUMMARY, FLAGS, KEPT = "summary.json", "run.flags", "runs.jsonl"
OF_AGENTS = ("agent_accuracy", "agent_messages")  # a number for each agent
UNCHANGED = "unchanged"  # columns of a kept run that stay the same
OF_THE_END = ("agent_accuracy", "class_accuracy")  # of a kept run's last evaluation
# A number in each row that has it, wherever `rows.metrics_row` writes it.
SCALARS = frozenset(
    (
        "accuracy",
        "accuracy_after",
        "accuracy_before",
        "bytes",
        "bytes_down",
        "epochs",
        "examples",
        "gini",
        "in_cluster",
        "majority",
        "merged_in_cluster",
        "messages",
        "messages_thesis",
        "num_diverged",
        "rejected",
        "steps",
        "time",
        "train_loss",
        "weight_sum",
    )
)

_RUN, _FINISHED = "the work folder of a run", "the work folder of a finished run"
_MOST_FLAGS = 2**20  # bytes
_FLAG = re.compile(r"--(\w+)(?:=(.*))?")


class Summary(NamedTuple):
    """What summary.json says."""

    experiment: str
    rows: list[Row]  # a metric of a scheme in a setting, summed up over runs
    environment: Row


def is_finished(folder: Path) -> bool:
    """Whether the run has ended; else the last line of a file may be cut."""
    return os.path.lexists(folder / SUMMARY)


def flags_text(folder: Path) -> str:
    """All of run.flags."""
    return untrusted_files.text_of(folder / FLAGS, _RUN, _MOST_FLAGS)


def flags(folder: Path) -> dict[str, str]:
    """Flags of a run, by name; those without a value, `--x` or `--nox`, have ""."""
    found: dict[str, str] = {}
    for number, line in enumerate(flags_text(folder).removesuffix("\n").split("\n"), 1):
        flag = _FLAG.fullmatch(line)
        if flag is None or flag[1] in found:
            wrong = "is none" if flag is None else f"has --{flag[1]} again"
            needed = "a flag of its own in every line"
            raise refusal(folder / FLAGS, needed, wrong, number)
        found[flag[1]] = flag[2] or ""
    return found


def rows(
    folder: Path,
    columns: Sequence[str] = (),
    *,
    numbers: Sequence[str] = (),
    check: Callable[[Row], None] | None = None,
    whole: bool = False,
) -> list[Row]:
    """Evaluations of all runs, in the order of metrics.jsonl.

    Each has a scheme, a setting, a run and a round, which rises from row to row of a
    run. All other columns are numbers, lists of them, or null where a number was not
    finite.

    Args:
      folder: of a run.
      columns: that every row must have, as a number or null.
      numbers: columns that every row must have as a number.
      check: what else a row must be; it raises a ValueError that says what it is.
      whole: whether no line may be cut, though the run has no summary yet.

    Raises:
      InputError: no run writes this, or it lacks a column.
    """

    def checked(found: Any) -> Row:
        row = row_kinds.named(found)
        require(row, "round", row_kinds.is_count)
        for name in row.keys() - {*WHERE, "round"}:
            require(row, name, row_kinds.is_values)
        for name in (*columns, *(SCALARS & row.keys())):
            require(row, name, row_kinds.is_number_or_null)
        for name in numbers:
            require(row, name, row_kinds.is_number)
        if check is not None:
            check(row)
        return row

    path, needed = folder / METRICS, "a row with scheme, run, round and numbers"
    may_be_cut = not (whole or is_finished(folder))
    found = _lines(path, _RUN, needed, may_be_cut, checked, _Order())
    if not found:
        raise refusal(path, "at least one evaluation of a run", "has none")
    return found


class _Order:
    """Refuses rounds that do not rise, and other numbers of agents in a scheme."""

    def __init__(self) -> None:
        self._rounds: dict[str, int] = {}  # the last of each run
        self._sizes: dict[str, int] = {}  # agents of each scheme in each setting

    def __call__(self, row: Row) -> None:
        now, before = row["round"], self._rounds.get(_run_of(row))
        if before is not None and now <= before:
            raise ValueError(f"has round {now} after round {before} of the same run")
        self._rounds[_run_of(row)] = now
        for name in OF_AGENTS:
            if name in row:
                require(row, name, row_kinds.is_list)
                size = len(row[name])
                if self._sizes.setdefault(key_of(row), size) != size:
                    raise ValueError(f"has {name} of {size} agents, others do not")


def links(folder: Path) -> list[Row]:
    """Who received from whom in each run that has ended; none if agents have no peers.

    `cluster` has the true group of each agent; `links` and, where it is there, `merged`
    have receivers, senders and numbers of messages, `[L, 3]`.

    Args:
      folder: of a run.
    """

    def check(found: Any) -> Row:
        row = row_kinds.named(found)
        require(row, "cluster", row_kinds.is_integers)
        is_links = partial(row_kinds.is_links, num_agents=len(row["cluster"]))
        for name in ("links", *({"merged"} & row.keys())):
            require(row, name, is_links)
        return row

    path, needed = folder / LINKS, "a row with scheme, run, cluster and links"
    try:
        return _lines(path, _RUN, needed, not is_finished(folder), check, _Once())
    except MissingFileError:
        return []


class _Once:
    """Refuses a second row of a run."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, row: Row) -> None:
        if _run_of(row) in self._seen:
            raise ValueError(f"has run {row['run']} of {row['scheme']} again")
        self._seen.add(_run_of(row))


def summary(folder: Path) -> Summary:
    """What a finished run, or a kept study, says in the end."""
    path = folder / SUMMARY
    found = untrusted_files.document_of(path, _FINISHED)
    try:
        if not isinstance(found, dict):
            raise ValueError("is another value")
        require(found, "experiment", row_kinds.is_name)
        require(found, "environment", row_kinds.is_setting)
        require(found, "rows", lambda value: isinstance(value, list))
    except ValueError as error:
        raise refusal(path, "the summary of a run", str(error)) from error
    _check_each(path, found["rows"], row_kinds.summed_up)
    return Summary(found["experiment"], found["rows"], found["environment"])


def summary_rows(folder: Path, metric: str, numbers: Sequence[str]) -> list[Row]:
    """What a finished run says about a metric in the end.

    Args:
      folder: of the run.
      metric: such as "accuracy".
      numbers: columns that every row must have as a number, such as "median".
    """

    def check(row: Row) -> None:
        for name in numbers:
            require(row, name, row_kinds.is_number)

    found = [row for row in summary(folder).rows if row["metric"] == metric]
    _check_each(folder / SUMMARY, found, check)
    return found


def _check_each(path: Path, found: list[Any], check: Callable[[Any], object]) -> None:
    for number, row in enumerate(found, 1):
        try:
            check(row)
        except ValueError as error:
            wrong = f"has a row, number {number}, that {error}"
            raise refusal(path, "the summary of a run", wrong) from error


def kept_runs(folder: Path) -> list[Row]:
    """Runs of a kept study: lists over the evaluations, and of agents in the end."""

    def check(found: Any) -> Row:
        row = row_kinds.named(found)
        require(row, "round", row_kinds.is_rising)
        length = len(row["round"])
        row |= unchanged(row, length)
        for name in row.keys() - {*WHERE, "round"}:
            require(row, name, row_kinds.is_list)
            if name not in OF_THE_END and len(row[name]) != length:
                raise ValueError(f"has {len(row[name])} values of {name}, not {length}")
        return row

    path, needed = folder / KEPT, "a run with lists of its rounds and their values"
    found = _lines(path, "a kept study", needed, False, check, _Once())
    if not found:
        raise refusal(path, "at least one run of a study", "has none")
    return found


def unchanged(row: Row, length: int) -> dict[str, list]:
    """Columns whose values are the same throughout a run, which a line has once.

    Args:
      row: a line of `runs.jsonl`; loses its `UNCHANGED`.
      length: how many evaluations it has.
    """
    if UNCHANGED not in row:
        return {}
    require(row, UNCHANGED, row_kinds.is_numbers_by_name)
    once = row.pop(UNCHANGED)
    twice = once.keys() & row.keys()
    if twice:
        raise ValueError(f"has {min(twice)} twice")
    return {name: [value] * length for name, value in once.items()}


def by_scheme(found: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of each scheme in each setting, in the order in which these appear."""
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(key_of(row), []).append(row)
    return groups


def key_of(row: Row) -> str:
    """Equal for rows of the same scheme in the same setting."""
    return json.dumps([row["scheme"], row["setting"]], sort_keys=True)


def _run_of(row: Row) -> str:
    return f"{row['run']} {key_of(row)}"


def _lines(
    path: Path,
    needed: str,
    content: str,
    may_be_cut: bool,
    check: Callable[[Any], Row],
    check_order: Callable[[Row], None],
) -> list[Row]:
    """Rows of a file, each checked alone and then against those before it."""
    found, content = [], f"{content} in every line"
    for number, value in untrusted_files.lines_of(path, needed, content, may_be_cut):
        try:
            row = check(value)
            check_order(row)
        except ValueError as error:
            raise refusal(path, content, str(error), number) from error
        found.append(row)
    return found
