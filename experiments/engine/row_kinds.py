"""Kinds of what rows hold, as JSON gives it: names, settings, counts, lists, links.

Checks raise a ValueError that says what a row is or has instead, such as `has "a" as
its round`; whoever reads the row says where it stands.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]

WHERE = ("scheme", "setting", "run")  # what tells a run from the others of its folder

_DEEPEST = 4  # lists in lists
_PLAIN = frozenset((int, float, bool, type(None)))


def named(found: Any) -> Row:
    """A row that says of which scheme, setting and run it is."""
    row = _object(found)
    if not all(map(is_name, row)):
        raise ValueError("has a column without a name that can be printed")
    row.setdefault("setting", {})  # of old runs
    for name, is_sound in zip(WHERE, (is_name, is_setting, is_count), strict=True):
        require(row, name, is_sound)
    return row


def summed_up(found: Any) -> Row:
    """A row of a summary: a metric of a scheme in a setting."""
    row = _object(found)
    texts = {"scheme": is_name, "setting": is_setting, "metric": is_name}
    for name, is_sound in texts.items():
        require(row, name, is_sound)
    for name in row.keys() - texts:
        require(row, name, is_number_or_null)
    return row


def _object(found: Any) -> Row:
    if not isinstance(found, dict):
        raise ValueError(f"is {_said(found)}")
    return found


def require(row: Row, name: str, is_sound: Callable[[Any], bool]) -> None:
    """Refuses a row without such a column, or with another kind of value in it."""
    if name not in row:
        raise ValueError(f"has no {name}")
    if not is_sound(row[name]):
        raise ValueError(f"has {_said(row[name])} as its {name}")


def _said(value: Any) -> str:
    """A value for a person, however deep or long it is."""
    if isinstance(value, (list, dict)):
        return f"another {'list' if isinstance(value, list) else 'object'}"
    return json.dumps(value)[:40]


def is_name(value: Any) -> bool:
    """Whether it is a word or more, which a terminal shows as it is."""
    return isinstance(value, str) and value.isprintable() and value != ""


def is_setting(value: Any) -> bool:
    """Whether it is an object of numbers, texts and lists of them."""
    return isinstance(value, dict) and all(
        is_name(name) and all(map(_is_word, one if isinstance(one, list) else [one]))
        for name, one in value.items()
    )


def _is_word(value: Any) -> bool:
    return type(value) in _PLAIN or (isinstance(value, str) and value.isprintable())


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 on."""
    return type(value) is int and value >= 0


def is_number(value: Any) -> bool:
    """Whether it is a number, which true and false are not."""
    return type(value) in (int, float)


def is_number_or_null(value: Any) -> bool:
    """Whether it is a number, or was not finite."""
    return value is None or is_number(value)


def is_numbers_by_name(value: Any) -> bool:
    """Whether it is an object of numbers and nulls."""
    return isinstance(value, dict) and all(
        is_name(name) and type(one) in _PLAIN for name, one in value.items()
    )


def is_list(value: Any) -> bool:
    """Whether it is a list of numbers and nulls."""
    return isinstance(value, list) and _PLAIN.issuperset(map(type, value))


def is_values(value: Any, deepest: int = _DEEPEST) -> bool:
    """Whether it is a number or null, or a list of them, or of such lists."""
    if not isinstance(value, list):
        return type(value) in _PLAIN
    return is_list(value) or (
        deepest > 1 and all(is_values(one, deepest - 1) for one in value)
    )


def is_integers(value: Any) -> bool:
    """Whether it is a list of one or more whole numbers."""
    return isinstance(value, list) and set(map(type, value)) == {int}


def is_rising(value: Any) -> bool:
    """Whether it is a list of counts, each above the one before."""
    return (
        is_integers(value)
        and value[0] >= 0
        and all(a < b for a, b in itertools.pairwise(value))
    )


def is_links(value: Any, num_agents: int) -> bool:
    """Whether it is a list of [receiver, sender, messages] with no pair twice."""
    if not isinstance(value, list):
        return False
    if not all(is_integers(link) and len(link) == 3 for link in value):
        return False
    agents = range(num_agents)
    pairs = {(receiver, sender) for receiver, sender, _ in value}
    return len(pairs) == len(value) and all(
        receiver in agents and sender in agents and messages >= 0
        for receiver, sender, messages in value
    )
