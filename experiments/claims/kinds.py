"""Kinds of values in the ledger: what each of its tables may have under which name."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from p2pjax.types import InputError


class Kind(NamedTuple):
    """What a value has to be."""

    words: str
    fits: Callable[[Any], bool]


TEXT = Kind("a text", lambda value: isinstance(value, str))
COUNT = Kind(
    "a whole number from 0 on", lambda value: type(value) is int and value >= 0
)
NUMBER = Kind(
    "a finite number",
    lambda value: type(value) in (int, float) and abs(value) < math.inf,
)
SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
TABLE = Kind("a table", lambda value: isinstance(value, dict))
TIME = Kind(
    'a round, "last" or "best"',
    lambda value: COUNT.fits(value) or value in ("last", "best"),
)
PLAIN = Kind(
    "a text, a number, true or false",
    lambda value: any(kind.fits(value) for kind in (TEXT, NUMBER, SWITCH)),
)


def list_of(kind: Kind) -> Kind:
    """One or more."""
    return Kind(
        f"a list of {kind.words}",
        lambda value: (
            isinstance(value, list) and len(value) > 0 and all(map(kind.fits, value))
        ),
    )


def one_or_more(kind: Kind) -> Kind:
    """By itself, or a list."""
    several = list_of(kind)
    return Kind(
        f"{kind.words}, or a list of such",
        lambda value: kind.fits(value) or several.fits(value),
    )


def table_of(kind: Kind) -> Kind:
    """By any names."""
    return Kind(
        f"a table of {kind.words}",
        lambda value: TABLE.fits(value) and all(map(kind.fits, value.values())),
    )


Kinds = Mapping[str, Kind]  # by name

BUDGET: Kinds = {
    "rounds": COUNT,
    "runs": COUNT,
    "data": NUMBER,
    "core_hours": NUMBER,
    "other_data": TEXT,
    "about": TEXT,
}
TEXTS: Kinds = dict.fromkeys(
    (
        "id",
        "source",
        "place",
        "statement",
        "kind",
        "metric",
        "setting",
        "printed",
        "needs",
    ),
    TEXT,
)
ANSWERS: Kinds = {
    "part": list_of(TABLE),
    "shown_by": one_or_more(TEXT),
    "not_testable": TEXT,
    "not_run": TEXT,
}
CLAIM: Kinds = {
    **TEXTS,
    **ANSWERS,
    "reading": list_of(TABLE),
    "refuted_by": one_or_more(TEXT),
    "left_out": TEXT,
    "unread": TEXT,
    "measured_before": SWITCH,
    "note": TEXT,
    "core_hours": NUMBER,
}
READING: Kinds = {
    "name": TEXT,
    "studies": table_of(TEXT),
    "setting": table_of(PLAIN),
}
PART: Kinds = {
    "study": TEXT,
    "is": TEXT,
    "left": one_or_more(TABLE),
    "right": one_or_more(TABLE),
    "metric": TEXT,
    "at": one_or_more(TIME),
    "each": table_of(list_of(PLAIN)),
    "over": TEXT,
    "values": list_of(PLAIN),
    "margin": NUMBER,
    "value": NUMBER,
    "rounding": NUMBER,
    "reading": TEXT,
}
OPERAND: Kinds = {
    "scheme": TEXT,
    "best_of": one_or_more(TEXT),
    "worst_of": one_or_more(TEXT),
    "which_of": one_or_more(TEXT),
    "setting": table_of(PLAIN),
    "metric": TEXT,
    "at": TIME,
    "agent": COUNT,
    "until": NUMBER,
    "key": TEXT,
    "minus": TABLE,
    "ratio_to": TABLE,
    "value": NUMBER,
}


def check(about: str, given: Any, kinds: Kinds) -> None:
    """Refuses what is no table, or has other names or kinds of values.

    Args:
      about: what the table is.
      given: in the ledger.
      kinds: that it may have.
    """
    if not TABLE.fits(given):
        raise InputError(f"{about} needs to be a table, got another kind of value.")
    unknown = sorted(set(given) - set(kinds))
    if unknown:
        raise InputError(
            f"{about} has {', '.join(unknown)}, not one of {', '.join(kinds)}."
        )
    for name, value in given.items():
        if not kinds[name].fits(value):
            got = value if PLAIN.fits(value) else "another kind of value"
            raise InputError(
                f"{about} needs {name} to be {kinds[name].words}, got {got}."
            )
