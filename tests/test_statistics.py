"""Statistics of runs, against published vectors and plain definitions."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2pjax.evaluation import statistics
from p2pjax.types import InputError

VECTORS = json.loads(
    (Path(__file__).parent / "vectors" / "peer_to_peer.json").read_text()
)
counts = hnp.arrays(np.int64, st.integers(1, 12), elements=st.integers(0, 1000))
histogram_pairs = (
    st.integers(1, 8)
    .flatmap(
        lambda bins: hnp.arrays(float, (2, bins), elements=st.floats(0, 100, width=32))
    )
    .filter(lambda pair: (pair.sum(1) > 1e-3).all())
)


def close(value):
    return pytest.approx(value, abs=1e-6)


def test_user_accuracy():
    vector = VECTORS["UA"]
    accuracy = statistics.accuracy(vector["correct"], vector["total"])
    assert accuracy == close([0.3, 0.25, 1.0])
    assert statistics.ua(accuracy).value == close(vector["UA"])
    assert statistics.ua(accuracy).value != close(vector["pooled"])


def test_agents_without_counted_predictions_are_excluded():
    curve = statistics.accuracy([[3, 1, 5, 0], [0, 0, 0, 0]], [[10, 4, 5, 0], [0] * 4])
    found = statistics.ua(curve)
    assert found.value[0] == close(VECTORS["UA"]["UA"])
    assert found.num_excluded.tolist() == [1, 4]
    assert np.isnan(found.value[1])
    assert np.isnan(statistics.worst_decile(curve)[1])


def test_worst_decile():
    scores = np.random.default_rng(0).permutation(np.arange(25) / 100)
    assert statistics.worst_decile(scores) == close((0 + 0.01 + 0.02) / 3)
    assert statistics.worst_decile(scores[:20]) == close(
        np.sort(scores[:20])[:2].mean()
    )
    assert statistics.worst_decile([0.5, 0.25, np.nan]) == 0.25
    with_gaps = np.append(np.arange(20.0), [np.nan] * 10)
    assert statistics.worst_decile(np.stack([with_gaps, with_gaps + 1])) == close(
        [0.5, 1.5]
    )


def test_top_of_runs():
    runs = VECTORS["topUA"]["runs"]
    assert statistics.top_ua_mean_of_max(runs) == VECTORS["topUA"]["mean_of_max"]
    assert statistics.top_ua_max_of_mean(runs) == VECTORS["topUA"]["max_of_mean"]
    assert statistics.top_of_runs(runs, start=2).tolist() == [2, 4]
    assert statistics.top_ua_mean_of_max(runs, start=2) == 3
    with pytest.raises(InputError, match=r"\[runs, evaluations\], got shape \(3,\)"):
        statistics.top_ua_max_of_mean([1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="evaluations from 3 on"):
        statistics.top_of_runs(runs, start=3)


def plain_stable_max(curve):
    """In percent, in the words of the definition."""
    length = 300
    while length >= 40:
        windows = [curve[i : i + length] for i in range(len(curve) - length + 1)]
        stable = [w for w in windows if max(w) - min(w) < 1]
        if stable:
            return max(max(w) for w in stable)
        length -= 10
    return None


def test_stable_max_follows_its_definition():
    rng = np.random.default_rng(0)
    outcomes = set()
    for slope, noise in ((0.001, 0.1), (0.02, 0.1), (0.024, 0.05), (0.1, 0.1)):
        for _ in range(3):
            walk = np.cumsum(rng.normal(slope, noise, (2, 350)), axis=1)
            expected = plain_stable_max(walk.mean(0).tolist())
            found = statistics.top_ua_stable_max(walk, tolerance=1)
            assert found == (expected if expected is None else close(expected))
            in_fractions = statistics.top_ua_stable_max(walk / 100)
            assert (in_fractions is None) == (expected is None)
            outcomes.add(expected is None)
    assert outcomes == {True, False}


def test_stable_max_prefers_long_windows_to_high_points():
    curve = np.concatenate([np.full(100, 50.0), np.full(90, 60.0), [99.0], [60.0] * 9])
    assert statistics.top_ua_stable_max([curve], tolerance=1) == 50
    both = np.concatenate([np.full(100, 50.0), np.full(100, 60.0)])
    assert statistics.top_ua_stable_max([both], tolerance=1) == 60
    assert statistics.top_ua_stable_max([both[:39]], tolerance=1) is None
    assert statistics.top_ua_stable_max([both[:40]], tolerance=1) == 50
    # Less than one percentage point, not one.
    steps = np.tile([50.0, 51.0], 50)
    assert statistics.top_ua_stable_max([steps], tolerance=1) is None
    assert statistics.top_ua_stable_max([both[:6]], tolerance=1, lengths=[5]) == 50


def test_costs_until_the_top():
    curve = np.append(np.linspace(1, 2, 28), [1.5, 2.0])  # the first top is the 28th
    assert statistics.until_top(curve, np.full(30, 3030)) == 84_840


def test_relative_gain():
    assert statistics.relative_gain(9.0, 8.0) == close(12.5)
    assert statistics.relative_gain(6.0, 8.0) == close(-25)


@pytest.mark.parametrize("name", ["t_sig", "t_ns"])
def test_t_test_vectors(name):
    vector = VECTORS[name]
    found = statistics.t_test(vector["a"], vector["b"])
    assert found.t == close(vector["t"])
    assert found.p == pytest.approx(vector["p"], rel=1e-6)
    assert found.df == vector["df"]


def test_t_test_equals_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 4), rng.normal(1, 2, 9)
    expected = scipy.stats.ttest_ind(a, b)
    found = statistics.t_test(a, b)
    assert found == pytest.approx((expected.statistic, expected.pvalue, 11))


def test_t_test_without_spread():
    assert statistics.t_test([1, 1], [1, 1]) == (0, 1, 2)
    assert statistics.t_test([1, 1], [2, 2]) == (-math.inf, 0, 2)
    with pytest.raises(InputError, match="two numbers or more"):
        statistics.t_test([1.0], [1.0, 2.0])


def test_paired_t_test_equals_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 5), rng.normal(1, 2, 5)
    expected = scipy.stats.ttest_rel(a, b)
    found = statistics.paired_t_test(a, b)
    assert found == pytest.approx((expected.statistic, expected.pvalue, 4))


def test_paired_t_test_without_spread():
    assert statistics.paired_t_test([1, 2], [1, 2]) == (0, 1, 1)
    assert statistics.paired_t_test([1, 2], [2, 3]) == (-math.inf, 0, 1)
    for a, b in (([1.0], [2.0]), ([1.0, 2.0], [1.0, 2.0, 3.0])):
        with pytest.raises(InputError, match="two pairs of numbers or more"):
            statistics.paired_t_test(a, b)


def test_t_curve():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 60)), rng.normal(size=(4, 60))
    expected = scipy.stats.ttest_ind(a.mean(0)[40:], b.mean(0)[40:])
    assert statistics.t_curve(a, b).p == pytest.approx(expected.pvalue)


def test_jsd_vectors():
    vector = VECTORS["JSD"]
    assert statistics.jsd(vector["P"], vector["Q"]) == close(vector["JSD2"])
    a, b, c = (vector["triple"][name] for name in "abc")
    assert statistics.jsd(a, b) == close(vector["triple"]["ab"])
    assert statistics.jsd(a, c) == close(vector["triple"]["ac"])
    assert statistics.jsd(b, c) == close(vector["triple"]["bc"])
    assert statistics.mean_jsd([a, b, c]) == close(vector["triple"]["avg"])


def test_jsd_is_no_metric():
    """It breaks the triangle inequality; its square root does not."""
    a, b, c = np.array([[1.0, 0], [0.5, 0.5], [0, 1]])
    direct, around = statistics.jsd(a, c), statistics.jsd(a, b) + statistics.jsd(b, c)
    assert direct == pytest.approx(1) and around == pytest.approx(0.6226, abs=1e-4)
    assert math.sqrt(direct) <= 2 * math.sqrt(around / 2)


def plain_jsd(p, q):
    total = 0.0
    for mine, other in ((p, q), (q, p)):
        for x, y in zip(mine / sum(mine), other / sum(other), strict=True):
            if x > 0:
                total += x * math.log2(2 * x / (x + y)) / 2
    return total


@given(histogram_pairs)
def test_jsd_is_symmetric_and_bounded(pair):
    p, q = pair
    found = statistics.jsd(p, q)
    assert found == pytest.approx(plain_jsd(p, q), abs=1e-9)
    assert found == pytest.approx(statistics.jsd(q, p), abs=1e-12)
    assert 0 <= found <= 1
    assert statistics.jsd(p, 3 * p) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("at_a_time", [1, 30, 1 << 21])
def test_mean_jsd_in_blocks(monkeypatch, at_a_time):
    monkeypatch.setattr(statistics, "PAIR_NUMBERS", at_a_time)
    histograms = np.random.default_rng(0).integers(0, 4, (9, 10)) + np.eye(9, 10)
    pairs = [
        plain_jsd(histograms[i], histograms[j]) for i in range(9) for j in range(i)
    ]
    assert statistics.mean_jsd(histograms) == close(np.mean(pairs))


@pytest.mark.parametrize(
    "find, message",
    [
        (lambda: statistics.jsd([0, 0], [1, 1]), "not all zero"),
        (lambda: statistics.jsd([-1, 2], [1, 1]), "not negative"),
        (lambda: statistics.mean_jsd([[1, 2]]), "two agents or more"),
        (lambda: statistics.gini([1, -1]), "not negative"),
        (lambda: statistics.gini([]), "one agent or more"),
        (lambda: statistics.pareto_front([1, 2], [1]), "of every point"),
        (lambda: statistics.pareto_front([1, np.nan], [1, 2]), "all of them numbers"),
    ],
)
def test_bad_samples_are_refused(find, message):
    with pytest.raises(InputError, match=message):
        find()


def test_gini_vectors():
    for sent, expected in VECTORS["gini"].items():
        assert statistics.gini(json.loads(sent)) == close(expected)
    assert statistics.gini([0, 0, 0]) == 0
    assert statistics.gini([[3, 3], [0, 2]]) == close([0, 0.5])


@given(counts, st.integers(1, 50))
def test_gini_range_and_scale(sent, scale):
    found = statistics.gini(sent)
    number = len(sent)
    differences = np.abs(sent[:, None] - sent).sum()
    expected = differences / (2 * number**2 * sent.mean()) if sent.any() else 0
    assert found == close(expected)
    assert found + 1e-12 >= 0 and found <= 1 - 1 / number + 1e-12
    assert statistics.gini(scale * sent) == close(found)
    assert statistics.gini(sent[::-1]) == close(found)


def test_pareto_front_vector():
    names, points = zip(*VECTORS["pareto"]["points"].items(), strict=True)
    front = statistics.pareto_front(*np.transpose(points))
    assert [n for n, kept in zip(names, front, strict=True) if kept] == (
        VECTORS["pareto"]["front"]
    )


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12)
)
def test_pareto_front_is_what_nobody_beats(points):
    expected = [
        not any(
            other[0] >= mine[0] and other[1] <= mine[1] and other != mine
            for other in points
        )
        for mine in points
    ]
    score, cost = np.transpose(points)
    assert statistics.pareto_front(score, cost).tolist() == expected
    assert any(expected)
