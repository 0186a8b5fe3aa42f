"""What is reported of finished runs: accuracies, their tops, spread, significance.

On the host, in float64. Definitions follow Sajina (2025), corrected where noted.
Axis letters: N agents, S runs, E evaluations of a curve, V histogram bins, P points.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from p2pjax.types import InputError

STABLE_LENGTHS = range(300, 30, -10)  # windows of a converged curve: 300, 290, ... 40


PAIR_NUMBERS = 1 << 21  # histogram entries compared at a time: 16 MB


class UserAccuracy(NamedTuple):
    """A mean over agents, and how many had nothing to be measured on."""

    value: np.ndarray  # [...]; NaN where none was measured
    num_excluded: np.ndarray  # [...]


class TTest(NamedTuple):
    """Student's test of the difference of two means."""

    t: float
    p: float  # two-sided
    df: int  # degrees of freedom


def accuracy(correct: ArrayLike, counted: ArrayLike) -> np.ndarray:
    """Of every agent, `[..., N]`; NaN for an agent without counted predictions."""
    correct, counted = np.asarray(correct, float), np.asarray(counted, float)
    return np.where(counted > 0, correct / np.where(counted > 0, counted, 1), np.nan)


def ua(scores: ArrayLike) -> UserAccuracy:
    """User accuracy: the mean over agents `[..., N]`, whatever their sizes.

    Agents whose score is NaN are left out.

    >>> ua(accuracy([3, 1, 5], [10, 4, 5])).value.round(6).item()
    0.516667
    """
    scores = np.asarray(scores, float)
    measured = ~np.isnan(scores)
    number = measured.sum(-1)
    total = np.where(measured, scores, 0).sum(-1)
    mean = np.where(number > 0, total / np.maximum(number, 1), np.nan)
    return UserAccuracy(mean, scores.shape[-1] - number)


def worst_decile(scores: ArrayLike) -> np.ndarray:
    """Mean over the worst tenth of the agents `[..., N]`, rounded up to whole agents.

    Agents whose score is NaN are left out; NaN where that leaves none.
    """
    ordered = np.sort(np.asarray(scores, float), axis=-1)  # NaN come last
    number = (~np.isnan(ordered)).sum(-1)
    worst = np.arange(ordered.shape[-1]) < -(-number[..., None] // 10)
    total = np.where(worst, ordered, 0).sum(-1)
    return np.where(number > 0, total / np.maximum(worst.sum(-1), 1), np.nan)


def top_ua_mean_of_max(curves: ArrayLike, start: int = 0) -> float:
    """Mean over runs of the highest point of each run's curve `[S, E]`."""
    return float(top_of_runs(curves, start).mean())


def top_of_runs(curves: ArrayLike, start: int = 0) -> np.ndarray:
    """The highest point of each run `[S]` from evaluation `start`: t-test samples."""
    return _curves(curves, start).max(1)


def top_ua_max_of_mean(curves: ArrayLike) -> float:
    """Highest point of the curve averaged over runs `[S, E]`."""
    return float(_curves(curves).mean(0).max())


def top_ua_stable_max(
    curves: ArrayLike,
    tolerance: float = 0.01,
    lengths: Sequence[int] = STABLE_LENGTHS,
) -> float | None:
    """Highest point of the averaged curve where it has converged.

    The longest windows in which the curve varies by less than the tolerance; of these,
    the one with the largest maximum.

    Args:
      curves: `[S, E]`.
      tolerance: one percentage point: 0.01 for fractions, 1 for curves in percent.
      lengths: of windows, in evaluations, longest first; the first with a stable window
        counts.

    Returns:
      None if no window is stable.
    """
    curve = _curves(curves).mean(0)
    for length in lengths:
        if length > len(curve):
            continue
        windows = np.lib.stride_tricks.sliding_window_view(curve, length)
        highest = windows.max(1)
        is_stable = highest - windows.min(1) < tolerance
        if is_stable.any():
            return float(highest[is_stable].max())
    return None


def until_top(curve: ArrayLike, amount: ArrayLike) -> float:
    """Sum of what each evaluation cost `[E]` up to the first highest one `[E]`."""
    top = int(_curves(np.asarray(curve)[None])[0].argmax())
    return float(np.asarray(amount, float)[: top + 1].sum())


def _curves(curves: ArrayLike, start: int = 0) -> np.ndarray:
    curves = np.asarray(curves, float)
    if curves.ndim != 2 or not curves.size or not 0 <= start < curves.shape[1]:
        raise InputError(
            f"Need curves of one run or more with evaluations from {start} on, of "
            f"shape [runs, evaluations], got shape {curves.shape}."
        )
    return curves[:, start:]


def relative_gain(new: float, old: float) -> float:
    """By how many percent `new` is above `old`."""
    return 100 * (new / old - 1)


def t_test(a: ArrayLike, b: ArrayLike) -> TTest:
    """Student's t-test: two-sided, independent samples, equal variances.

    Samples without any spread give t = 0 if they are equal, else an infinite t.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    if a.ndim != 1 or b.ndim != 1 or min(len(a), len(b)) < 2:
        raise InputError(
            "Need two samples of two numbers or more for a t-test, got shapes "
            f"{a.shape} and {b.shape}."
        )
    df = len(a) + len(b) - 2
    if not (np.ptp(a) or np.ptp(b)):
        return _without_spread(a.mean() - b.mean(), df)
    from scipy import stats

    found = stats.ttest_ind(a, b)
    return TTest(float(found.statistic), float(found.pvalue), df)


def paired_t_test(a: ArrayLike, b: ArrayLike) -> TTest:
    """The t-test on differences `a - b` of pairs, such as runs with the same users.

    Differences without any spread give t = 0 if they are 0, else an infinite t.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise InputError(
            "Need two pairs of numbers or more for a paired t-test, got shapes "
            f"{a.shape} and {b.shape}."
        )
    df = len(a) - 1
    if not np.ptp(a - b):
        return _without_spread((a - b).mean(), df)
    from scipy import stats

    found = stats.ttest_rel(a, b)
    return TTest(float(found.statistic), float(found.pvalue), df)


def _without_spread(difference: float, df: int) -> TTest:
    if difference:
        return TTest(float(np.sign(difference)) * np.inf, 0.0, df)
    return TTest(0.0, 1.0, df)


def t_curve(a: ArrayLike, b: ArrayLike, start: int = 40) -> TTest:
    """The t-test on the points of two averaged curves `[S, E]`, as was published.

    Points of a learning curve are not independent, so its p is too small: prefer
    `t_test` on `top_of_runs`.
    """
    return t_test(_curves(a, start).mean(0), _curves(b, start).mean(0))


def jsd(p: ArrayLike, q: ArrayLike) -> np.ndarray:
    """Jensen-Shannon divergence of histograms `[..., V]`, in bits, from 0 to 1.

    Histograms are normalised first. Its square root is a metric, itself is not.
    """
    return _jsd(_distributions(p), _distributions(q))


def mean_jsd(histograms: ArrayLike) -> float:
    """Mean divergence over all pairs of agents `[N, V]`, a few megabytes at a time."""
    every = _distributions(histograms)
    num_agents = len(every)
    if every.ndim != 2 or num_agents < 2:
        raise InputError(
            "Need histograms [agents, bins] of two agents or more, got shape "
            f"{every.shape}."
        )
    step = max(1, PAIR_NUMBERS // every.shape[1])
    total = sum(
        _jsd(every[n], every[first : first + step]).sum()
        for n in range(num_agents)
        for first in range(n + 1, num_agents, step)
    )
    return float(total / (num_agents * (num_agents - 1) / 2))


def _distributions(histograms: ArrayLike) -> np.ndarray:
    histograms = np.asarray(histograms, float)
    total = histograms.sum(-1, keepdims=True)
    if (histograms < 0).any() or not (np.isfinite(total) & (total > 0)).all():
        raise InputError(
            "Need histograms of counts that are not negative and not all zero: leave "
            "out agents without examples."
        )
    return histograms / total


def _jsd(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    middle = (p + q) / 2
    from scipy import special

    nats = (special.rel_entr(p, middle) + special.rel_entr(q, middle)).sum(-1) / 2
    return np.clip(nats / np.log(2), 0, 1)  # rounding


def gini(counts: ArrayLike) -> np.ndarray:
    """Inequality of what the agents `[..., N]` sent: 0 equal, at most 1 - 1 / N.

    Runs are rows: take the mean of their coefficients, do not join them.
    """
    ordered = np.sort(np.asarray(counts, float), axis=-1)
    if ordered.ndim == 0 or not ordered.size or not (ordered >= 0).all():
        raise InputError(
            "Need a count that is not negative for one agent or more, got "
            f"{np.asarray(counts).tolist()}."
        )
    num_agents = ordered.shape[-1]
    rank = 2 * np.arange(num_agents) - num_agents + 1  # sum over pairs of differences
    total = ordered.sum(-1)
    return (ordered * rank).sum(-1) / (num_agents * np.where(total > 0, total, 1))


def pareto_front(score: ArrayLike, cost: ArrayLike) -> np.ndarray:
    """Which points `[P]` no other beats: as good in both and better in one.

    Args:
      score: the higher, the better: accuracy.
      cost: the lower, the better: messages per agent until that accuracy.
    """
    score, cost = np.asarray(score, float), np.asarray(cost, float)
    if score.ndim != 1 or score.shape != cost.shape or np.isnan(score + cost).any():
        raise InputError(
            "Need a score and a cost of every point, all of them numbers, got "
            f"{score.tolist()} and {cost.tolist()}."
        )
    as_good = (score[:, None] >= score) & (cost[:, None] <= cost)  # [by, of]
    better = (score[:, None] > score) | (cost[:, None] < cost)
    return np.logical_not((as_good & better).any(0))


PERCENTILES = (20, 40, 60, 80)


def over_runs(values: np.ndarray) -> dict[str, float]:
    """Summary of one value per run.

    `half_width` is that of the 95% interval of the mean; the bars of Bouchra Pilet et
    al. are the 40th and 60th percentile.

    >>> over_runs(np.array([1.0, 2.0, 4.0]))["median"]
    2.0
    """
    values = np.asarray(values, np.float64)
    percentiles = np.percentile(values, PERCENTILES)
    return {
        "median": float(np.median(values)),
        **{f"p{p}": float(v) for p, v in zip(PERCENTILES, percentiles, strict=True)},
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        "runs": len(values),
        "half_width": mean_interval(values),
    }


def mean_interval(values: np.ndarray, level: float = 0.95) -> float:
    """Half of the width of Student's interval of a mean; 0 of a single value.

    >>> values = np.array([1.0, 2.0, 4.0])
    >>> round(mean_interval(values), 3)
    3.795

    Args:
      values: one of each run.
      level: how often such an interval has the mean of all runs there could be.
    """
    from scipy import stats

    if len(values) < 2:
        return 0.0
    return float(stats.t.ppf((1 + level) / 2, len(values) - 1) * stats.sem(values))
