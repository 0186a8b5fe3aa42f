"""Combinations of what a study varies: a flag with several values is a factor."""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def combinations(
    factors: Mapping[str, Sequence[Any]],
    relevant: Collection[str] | None = None,
    *,
    named: Collection[str] = (),
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What rows say of each combination, and its values by name.

    Rows say what has several values; the others stand in run.flags. What means nothing
    to a method is at its first value.

    Args:
      factors: values of each flag.
      relevant: names that mean something to a method; all if not given.
      named: what rows say also where it has one value, so that a design can be run in
        parts.

    Example:
      >>> factors = {"rate": (0.1, 0.3), "units": (8,)}
      >>> combinations(factors)[1]
      ({'rate': 0.3}, {'rate': 0.3, 'units': 8})
      >>> combinations(factors, relevant=["units"])
      [({}, {'rate': 0.1, 'units': 8})]
      >>> combinations(factors, relevant=["units"], named=["units"])
      [({'units': 8}, {'rate': 0.1, 'units': 8})]
    """
    own = {
        name: tuple(values) if relevant is None or name in relevant else values[:1]
        for name, values in factors.items()
    }
    found = []
    for values in itertools.product(*own.values()):
        chosen = dict(zip(own, values, strict=True))
        setting = {
            name: value
            for name, value in chosen.items()
            if len(own[name]) > 1
            or (name in named and (relevant is None or name in relevant))
        }
        found.append((setting, chosen))
    return found
