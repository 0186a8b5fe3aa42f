"""The rule's statistics: intervals of paired differences and Holm's correction.

For a part: differences over runs, their mean and 95% t interval. All tests are the
two-sided ones of that interval; with several parts the interval is that of Holm's step.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

ALPHA = 0.05
MIN_RUNS = 3


class Finding(NamedTuple):
    """What a part's differences say before any correction."""

    mean: float
    error: float  # standard error
    num_runs: int
    p_for: float  # that the part is so; 1 for numbers, which are not proven
    p_against: float  # that it is not


class Interval(NamedTuple):
    """Around a mean."""

    low: float
    high: float


def find(
    differences: ArrayLike,
    relation: str,
    margin: float,
    rounding: float = 0,
    source_runs: int | None = None,
) -> Finding:
    """Tests one part.

    Args:
      differences: `[S]`, two runs or more: left - right, change over the range, or
        value - number.
      relation: greater, less, equal, number; rises, falls, flat mean the same of
        changes.
      margin: within which things are equal.
      rounding: half a unit of the last digit of a printed number.
      source_runs: runs behind a printed number, which has their spread as well; none
        for an exact one.
    """
    values = np.asarray(differences, float)
    if relation in ("less", "falls"):
        values = -values
    mean = float(values.mean())
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    if relation == "number" and source_runs is not None:
        error *= np.sqrt(1 + len(values) / source_runs)
    if error < 1e-12 * max(1.0, abs(mean)):
        error = 0.0  # rounding of equal numbers
    df = len(values) - 1
    if relation in ("equal", "flat"):
        p_for = max(
            _p_above(mean, error, df, -margin), _p_below(mean, error, df, margin)
        )
        p_against = min(
            _p_above(mean, error, df, margin), _p_below(mean, error, df, -margin)
        )
    elif relation == "number":
        p_for = 0.5
        p_against = min(
            _p_above(mean, error, df, rounding), _p_below(mean, error, df, -rounding)
        )
    else:
        p_for, p_against = (p(mean, error, df, 0.0) for p in (_p_above, _p_below))
    return Finding(mean, error, len(values), min(1, 2 * p_for), min(1, 2 * p_against))


def _p_above(mean: float, error: float, df: int, bound: float) -> float:
    """One-sided p of the true mean being above the bound."""
    if not error:
        return 0.0 if mean > bound else 1.0
    from scipy import stats

    return float(stats.t.sf((mean - bound) / error, df))


def _p_below(mean: float, error: float, df: int, bound: float) -> float:
    return _p_above(-mean, error, df, -bound)


def holm(p: Sequence[float]) -> tuple[list[bool], list[float]]:
    """Which of the tests are significant together, and the level of each interval.

    Ordered by p, the k-th of m is significant below ALPHA / (m - k + 1) as long as
    all before it are; the others share the level of the first that is not.
    """
    num = len(p)
    significant = [False] * num
    levels = [ALPHA] * num
    for step, part in enumerate(sorted(range(num), key=lambda i: p[i])):
        levels[part] = ALPHA / (num - step)
        if p[part] >= levels[part]:
            break
        significant[part] = True
    num_significant = sum(significant)
    for part in range(num):
        if not significant[part]:
            levels[part] = ALPHA / (num - num_significant)
    return significant, levels


def interval(finding: Finding, level: float = ALPHA) -> Interval:
    """Of the mean, at 1 - level."""
    from scipy import stats

    half = float(stats.t.isf(level / 2, finding.num_runs - 1)) * finding.error
    return Interval(finding.mean - half, finding.mean + half)


def state(
    finding: Finding,
    is_significant: bool,
    relation: str,
    margin: float,
    rounding: float,
) -> str:
    """For, against or open."""
    if is_significant:
        return "for" if finding.p_for < finding.p_against else "against"
    if relation == "number":
        low, high = interval(finding)
        has_it = low <= rounding and high >= -rounding
        return "for" if has_it and (high - low) / 2 <= margin else "open"
    return "open"
