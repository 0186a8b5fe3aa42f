"""Kinds of settings: fields of a config that are read from flags and checked.

Every kind refuses what it cannot be: numbers are finite and in their range, words are
among those that are known.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

STUDY = "What is studied"
DATA = "Data"
TRAINING = "Training"
RESULTS = "Results"
MACHINE = "Machine"
PROCESSES = "Several processes"
TOPICS = (STUDY, DATA, TRAINING, RESULTS, MACHINE, PROCESSES)

MOST = 2**31 - 1  # of whole numbers: JAX counts with 32 bits


# Computation is in single precision: beyond, numbers become infinite or 0 in silence.
_SMALLEST, _LARGEST = 1.4e-45, 3.4e38


class FormerSwitch(NamedTuple):
    """A switch that was a flag before it had more than two values.

    It is still taken, as `--name` or `--noname`, but not together with the flag.
    """

    name: str
    on: str  # value that `--name` stands for
    off: str


def _field(
    default: Any,
    help_text: str,
    topic: str,
    read: Callable[[Any], Any] | None,
    write: Callable[[Any], str] = str,
    former: FormerSwitch | None = None,
) -> Any:
    metadata = {
        "help": help_text,
        "topic": topic,
        "read": read,
        "write": write,
        "former": former,
    }
    return dataclasses.field(default=default, metadata=metadata)


def integer(
    default: int | None,
    help_text: str,
    *,
    at_least: int | None = None,
    at_most: int = MOST,
    topic: str = STUDY,
) -> Any:
    """A whole number.

    Args:
      default: None where something else decides.
      help_text: a sentence.
      at_least: smallest value that is taken.
      at_most: largest value that is taken.
      topic: under which the help lists it.
    """
    check = _integer_in(at_least, at_most)
    return _field(default, help_text, topic, check)


def integers(
    default: Sequence[int] | None,
    help_text: str,
    *,
    at_least: int = 0,
    at_most: int = MOST,
    distinct: bool = True,
    topic: str = STUDY,
) -> Any:
    """Whole numbers joined by commas; repeated ones count once, if not said otherwise.

    Args:
      default: None where something else decides.
      help_text: a sentence.
      at_least: smallest value that is taken.
      at_most: largest value that is taken.
      distinct: whether a repeated one counts once; those of layers do not.
      topic: under which the help lists it.
    """
    one = _integer_in(at_least, at_most)

    def read(value: Any) -> tuple[int, ...]:
        fields = _split(value)
        if not fields:
            raise ValueError("need whole numbers joined by commas, got none")
        found = map(one, fields)
        return tuple(dict.fromkeys(found) if distinct else found)

    value = None if default is None else tuple(default)
    return _field(value, help_text, topic, read, _joined)


def number(
    default: float | None,
    help_text: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    topic: str = STUDY,
) -> Any:
    """A finite number.

    Args:
      default: None where something else decides.
      help_text: a sentence.
      above: values that are taken are larger.
      at_least: smallest value that is taken.
      below: values that are taken are smaller.
      at_most: largest value that is taken.
      topic: under which the help lists it.
    """
    check = _number_in(above, at_least, below, at_most)
    return _field(default, help_text, topic, check, repr)


def numbers(
    default: Sequence[float] | None,
    help_text: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    distinct: bool = True,
    topic: str = STUDY,
) -> Any:
    """Finite numbers joined by commas; repeated ones count once, if not said otherwise.

    Args:
      default: None where something else decides.
      help_text: a sentence.
      above: values that are taken are larger.
      at_least: smallest value that is taken.
      below: values that are taken are smaller.
      at_most: largest value that is taken.
      distinct: whether repeated numbers count once.
      topic: under which the help lists it.
    """
    one = _number_in(above, at_least, below, at_most)

    def read(value: Any) -> tuple[float, ...]:
        fields = _split(value)
        if not fields:
            raise ValueError("need numbers joined by commas, got none")
        found = map(one, fields)
        return tuple(dict.fromkeys(found) if distinct else found)

    value = None if default is None else tuple(default)
    return _field(
        value, help_text, topic, read, lambda value: ",".join(map(repr, value))
    )


def text(default: str | None, help_text: str, *, topic: str = STUDY) -> Any:
    """Any text.

    Args:
      default: None where something else decides.
      help_text: a sentence.
      topic: under which the help lists it.
    """
    return _field(default, help_text, topic, str)


def checked_text(
    default: str | None,
    help_text: str,
    check: Callable[[str], None],
    *,
    topic: str = STUDY,
) -> Any:
    """Text that has to be of some form.

    Args:
      default: None where something else decides.
      help_text: a sentence.
      check: raises a ValueError for what is not taken.
      topic: under which the help lists it.
    """

    def read(value: Any) -> str:
        check(str(value))
        return str(value)

    return _field(default, help_text, topic, read)


def choice(
    default: str | None, values: Sequence[str], help_text: str, *, topic: str = STUDY
) -> Any:
    """One of a few words.

    Args:
      default: None where something else decides.
      values: that are taken.
      help_text: a sentence.
      topic: under which the help lists it.
    """
    known = tuple(values)

    def read(value: Any) -> str:
        if value not in known:
            raise ValueError(f"need one of {', '.join(known)}, got '{value}'")
        return str(value)

    return _field(default, f"{help_text} One of: {', '.join(known)}.", topic, read)


def names(
    default: Sequence[str] | None,
    help_text: str,
    *,
    among: Sequence[str] | None = None,
    also: Callable[[str], bool] = lambda name: False,
    refused: Mapping[str, str] = MappingProxyType({}),
    distinct: bool = True,
    former: FormerSwitch | None = None,
    topic: str = STUDY,
) -> Any:
    """Words joined by commas; repeated ones count once, if not said otherwise.

    Args:
      default: None where something else decides.
      help_text: a sentence.
      among: the words that are taken; any if not given.
      also: whether another word is taken.
      refused: other words that one could expect, and why they are not taken.
      distinct: whether a repeated one counts once.
      former: a switch that the flag replaces, which is still taken.
      topic: under which the help lists it.
    """

    def read(value: Any) -> tuple[str, ...]:
        found = tuple(field for field in _split(value) if field)
        found = tuple(dict.fromkeys(found)) if distinct else found
        if not found:
            raise ValueError("need words joined by commas, got none")
        known = found if among is None else among
        unknown = [name for name in found if name not in known and not also(name)]
        if unknown:
            if unknown[0] in refused:
                raise ValueError(refused[unknown[0]])
            raise ValueError(f"need {', '.join(among or ())}, got '{unknown[0]}'")
        return found

    value = None if default is None else tuple(default)
    said = help_text if among is None else f"{help_text} Among: {', '.join(among)}."
    return _field(value, said, topic, read, _joined, former)


def switch(default: bool | None, help_text: str, *, topic: str = STUDY) -> Any:
    """Yes or no: `--name` or `--noname`.

    Args:
      default: None where something else decides.
      help_text: a sentence.
      topic: under which the help lists it.
    """
    return _field(default, help_text, topic, None)


def _split(value: Any) -> list[str]:
    if not isinstance(value, str):
        return [str(item) for item in value]
    return [field.strip() for field in value.split(",")] if value.strip() else []


def _joined(value: Sequence[Any]) -> str:
    return ",".join(map(str, value))


def _integer_in(at_least: int | None, at_most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        digits = str(value).strip()
        if not (digits.isascii() and digits.removeprefix("-").isdigit()):
            raise ValueError(f"need a whole number, got '{value}'")
        if len(digits) > 18:
            raise ValueError("need a whole number of at most 18 digits")
        found = int(digits)
        if at_least is not None and found < at_least:
            raise ValueError(f"need {at_least} or more, got {found}")
        if found > at_most:
            raise ValueError(f"need {at_most} or less, got {found}")
        return found

    return read


def _number_in(
    above: float | None,
    at_least: float | None,
    below: float | None,
    at_most: float | None,
) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        try:
            found = float(value)
        except ValueError as error:
            raise ValueError(f"need a number, got '{value}'") from error
        if not math.isfinite(found):
            raise ValueError(f"need a finite number, got {found}")
        if abs(found) > _LARGEST or 0 < abs(found) < _SMALLEST:
            raise ValueError(
                f"need a number of single precision, 0 or {_SMALLEST:.2g} to "
                f"{_LARGEST:.2g}, got {found:g}"
            )
        if above is not None and not found > above:
            raise ValueError(f"need more than {above:g}, got {found:g}")
        if at_least is not None and found < at_least:
            raise ValueError(f"need {at_least:g} or more, got {found:g}")
        if below is not None and not found < below:
            raise ValueError(f"need less than {below:g}, got {found:g}")
        if at_most is not None and found > at_most:
            raise ValueError(f"need {at_most:g} or less, got {found:g}")
        return found

    return read
