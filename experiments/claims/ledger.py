"""The ledger `results/claims.toml`: claims of the sources and how runs test each.

A claim has parts (comparisons), names the test that shows it, or says why it cannot be
tested or was not run. Parts are written compactly, for several sizes, schemes, points
in time and readings of what a source leaves open at once; here they come apart.
"""

import itertools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.claims import kinds
from experiments.engine import untrusted_files
from experiments.engine.reading import OF_AGENTS, OF_THE_END
from experiments.engine.row_kinds import WHERE
from p2pjax.types import InputError

Table = dict[str, Any]

KINDS = ("order", "effect", "number", "trend", "cost", "property")
COMPARISONS = ("greater", "less", "equal", "number")
TRENDS = ("rises", "falls", "flat")
MARGIN = 0.01  # where a part has none
PICKS = {"scheme": "only", "best_of": "best", "worst_of": "worst", "which_of": "which"}


class Operand(NamedTuple):
    """What one side of a comparison measures: a number for every run."""

    schemes: tuple[str, ...]  # none for a plain number
    pick: str  # of several schemes: only, best, worst, which
    setting: Table  # some of the scheme's setting, enough to tell it
    metric: str
    at: int | str  # a round, "last" or "best"
    agent: int | None = None  # one agent's accuracy in the last evaluation
    until: float | None = None  # when this accuracy is reached first
    key: str = ""  # of the setting, with pick "which"
    value: float | None = None  # a plain number
    minus: "Operand | None" = None
    ratio_to: "Operand | None" = None


class Part(NamedTuple):
    """One comparison in one study."""

    study: str
    relation: str
    left: Operand
    right: Operand | None
    over: str  # what a trend goes over: a setting, or "round"
    values: tuple[Any, ...]
    margin: float
    value: float  # of a number
    rounding: float  # half a unit of the last digit printed
    reading: str  # of what the source leaves open; "" for the only one


class Budget(NamedTuple):
    """What the source spent on what a study repeats."""

    rounds: int | None  # None: not printed
    runs: int | None
    data: float  # examples of an agent here, relative to the source
    core_hours: float  # of the study here
    other_data: str  # what stands in the place of the source's data, if anything


class Claim(NamedTuple):
    """A claim of a source, in our words."""

    id: str
    source: str
    place: str
    statement: str
    kind: str
    metric: str
    setting: str
    printed: str
    needs: str
    parts: tuple[Part, ...]
    readings: tuple[str, ...]
    shown_by: tuple[str, ...]  # tests, file::name
    refuted_by: tuple[str, ...]  # tests that show the contrary
    not_testable: str
    not_run: str
    left_out: str  # what of the statement no part tests
    unread: str  # another reading of what the source leaves open, which no study has
    measured_before: bool  # by runs that were not kept
    note: str
    core_hours: float


class Ledger(NamedTuple):
    """All claims, and the budgets of the sources by study."""

    claims: tuple[Claim, ...]
    budgets: dict[str, Budget]


def load(path: Path) -> Ledger:
    """Reads and checks the ledger."""
    text = untrusted_files.text_of(path, "the ledger", remedy="choose other --results")
    try:
        return _ledger(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"Need a ledger in TOML at {path}: {error}.") from error
    except RecursionError as error:
        raise InputError(
            f"Need a ledger in TOML at {path}: it is nested too deeply."
        ) from error


def _ledger(table: Table) -> Ledger:
    tables = {
        "study": kinds.table_of(kinds.TABLE),
        "claim": kinds.list_of(kinds.TABLE),
    }
    kinds.check("The ledger", table, tables)
    budgets = {
        name: _budget(name, given) for name, given in table.get("study", {}).items()
    }
    claims = tuple(_claim(given) for given in table.get("claim", []))
    repeated = {c.id for c in claims if [d.id for d in claims].count(c.id) > 1}
    if repeated:
        raise InputError(f"Need a name of its own for every claim: {_names(repeated)}.")
    for claim in claims:
        unknown = {part.study for part in claim.parts} - set(budgets)
        if unknown:
            raise InputError(
                f"Claim {claim.id} names {_names(unknown)}: add what the source spent "
                f'in a table [study."{min(unknown)}"].'
            )
    return Ledger(claims, budgets)


def _budget(name: str, given: Table) -> Budget:
    about = f"Study {name}"
    kinds.check(about, given, kinds.BUDGET)
    return Budget(
        given.get("rounds"),
        given.get("runs"),
        float(given.get("data", 1)),
        float(_needed(about, given, "core_hours")),
        given.get("other_data", ""),
    )


def _claim(given: Table) -> Claim:
    about = f"Claim {given.get('id', '(without id)')}"
    kinds.check(about, given, kinds.CLAIM)
    texts = {name: _needed(about, given, name) for name in kinds.TEXTS}
    if texts["kind"] not in KINDS:
        raise InputError(
            f"{about} needs a kind of {_names(KINDS)}, got {texts['kind']}."
        )
    answers = [name for name in kinds.ANSWERS if given.get(name)]
    if given.get("refuted_by") and "shown_by" not in answers:
        answers.append("refuted_by")
    if len(answers) != 1:
        raise InputError(
            f"{about} needs one of {_names(kinds.ANSWERS)} (or refuted_by), got "
            f"{_names(answers) or 'none'}."
        )
    if "not_run" in answers and "core_hours" not in given:
        raise InputError(f"{about} needs core_hours, since it was not run.")
    readings = given.get("reading", [{"name": ""}])
    for reading in readings:
        kinds.check(f"A reading of {about}", reading, kinds.READING)
        _needed(f"A reading of {about}", reading, "name")
    parts = tuple(
        part
        for reading in readings
        for one in given.get("part", [])
        if "reading" not in one or reading is readings[0]
        for part in _expanded(about, one, reading)
    )
    return Claim(
        **texts,
        parts=parts,
        readings=tuple(dict.fromkeys(part.reading for part in parts)),
        shown_by=tuple(_as_list(given.get("shown_by", []))),
        refuted_by=tuple(_as_list(given.get("refuted_by", []))),
        not_testable=given.get("not_testable", ""),
        not_run=given.get("not_run", ""),
        left_out=given.get("left_out", ""),
        unread=given.get("unread", ""),
        measured_before=given.get("measured_before", False),
        note=given.get("note", ""),
        core_hours=float(given.get("core_hours", 0)),
    )


def _expanded(about: str, given: Table, reading: Table) -> list[Part]:
    """A part for every size, point in time and side."""
    about = f"A part of {about}"
    if "reading" in given:
        reading = {"name": given["reading"]}
    kinds.check(about, given, kinds.PART)
    study = _needed(about, given, "study")
    study = reading.get("studies", {}).get(study, study)
    relation = _needed(about, given, "is")
    if relation not in (*COMPARISONS, *TRENDS):
        raise InputError(
            f"{about} needs is of {_names((*COMPARISONS, *TRENDS))}, got {relation}."
        )
    if (relation in TRENDS) != ("over" in given):
        raise InputError(f"{about} needs over with {_names(TRENDS)}, and only then.")
    if (relation == "number") != ("value" in given):
        raise InputError(f"{about} needs value with is = number, and only then.")
    if (relation in ("greater", "less", "equal")) != ("right" in given):
        raise InputError(f"{about} needs right to compare with, and only then.")
    each = given.get("each", {})
    parts = []
    for right, left, at, *sizes in itertools.product(
        _as_list(given.get("right")),
        _as_list(_needed(about, given, "left")),
        _as_list(given.get("at", "last")),
        *each.values(),
    ):
        common = {
            "setting": dict(zip(each, sizes, strict=True)) | reading.get("setting", {}),
            "metric": given.get("metric", "accuracy"),
            "at": at,
        }
        parts.append(
            Part(
                study,
                relation,
                _operand(about, left, common),
                None if right is None else _operand(about, right, common),
                given.get("over", ""),
                tuple(given.get("values", ())),
                float(given.get("margin", MARGIN)),
                float(given.get("value", 0)),
                float(given.get("rounding", 0)),
                reading["name"],
            )
        )
    return parts


def _operand(about: str, given: Table, common: Table) -> Operand:
    kinds.check(about, given, kinds.OPERAND)
    sides = [name for name in (*PICKS, "value") if name in given]
    if len(sides) != 1:
        raise InputError(
            f"{about} needs one of {_names((*PICKS, 'value'))} on a side, got "
            f"{_names(sides) or 'none'}."
        )
    kind = sides[0]
    if (kind == "which_of") != ("key" in given):
        raise InputError(f"{about} needs key with which_of, and only then.")
    named = () if kind == "value" else given[kind]
    here = {
        "setting": common["setting"] | given.get("setting", {}),
        "metric": given.get("metric", common["metric"]),
        "at": given.get("at", common["at"]),
    }
    if here["metric"] in (*WHERE, *OF_AGENTS, *OF_THE_END):
        raise InputError(
            f"{about} needs a metric that is measured in every evaluation, got "
            f"{here['metric']}."
        )
    minus, ratio_to = (
        _operand(about, given[name], common) if name in given else None
        for name in ("minus", "ratio_to")
    )
    return Operand(
        (named,) if isinstance(named, str) else tuple(named),
        PICKS.get(kind, "only"),
        **here,
        agent=given.get("agent"),
        until=given.get("until"),
        key=given.get("key", ""),
        value=given.get("value"),
        minus=minus,
        ratio_to=ratio_to,
    )


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _needed(about: str, given: Mapping[str, Any], name: str) -> Any:
    if name not in given:
        raise InputError(f"{about} needs {name}.")
    return given[name]


def _names(names: Any) -> str:
    return ", ".join(sorted(names) if isinstance(names, set) else names)
