"""Lines of figures: one estimator, intervals, colours, names at the ends."""

import numpy as np
import pytest
from scipy import stats

from experiments.analysis import lines
from p2pjax.evaluation import statistics


def rows(name, values, at=1):
    return [
        {"scheme": name, "run": run, "round": at, "accuracy": value}
        for run, value in enumerate(values)
    ]


def test_intervals_are_students():
    values = np.array([0.2, 0.5, 0.6, 0.9])
    low, high = stats.t.interval(0.95, 3, values.mean(), stats.sem(values))
    assert statistics.mean_interval(values) == pytest.approx((high - low) / 2)
    assert statistics.mean_interval(values[:1]) == 0
    assert statistics.over_runs(values)["half_width"] == pytest.approx((high - low) / 2)


def drawn(num_runs):
    """A figure of two methods at two rounds."""
    _, axes = lines.new_figure("rounds")
    rng = np.random.default_rng(0)
    found = {
        name: [
            row
            for at in (1, 2)
            for row in rows(name, rng.uniform(0.4, 0.6, num_runs), at)
        ]
        for name in ("dpsgd", "pens")
    }
    xs = lines.draw_lines(axes, found, lambda row: row["round"])
    assert xs == [1, 2]
    return axes, found


def test_lines_are_means_with_intervals_from_three_runs_on():
    axes, found = drawn(4)
    first = next(line for line in axes.get_lines() if line.get_label() == "dpsgd")
    expected = [
        np.mean([row["accuracy"] for row in found["dpsgd"] if row["round"] == at])
        for at in (1, 2)
    ]
    np.testing.assert_allclose(first.get_ydata(), expected)
    (bars,) = axes.containers[0].lines[2]
    low, high = bars.get_segments()[0][:, 1]
    values = np.array([r["accuracy"] for r in found["dpsgd"] if r["round"] == 1])
    assert (high - low) / 2 == pytest.approx(statistics.mean_interval(values))
    axes, _ = drawn(2)
    (bars,) = axes.containers[0].lines[2]
    assert np.ptp(bars.get_segments()[0][:, 1]) == 0


def test_methods_differ_in_colour_marker_and_dashes_levels_in_shade():
    methods = [f"method {letter}" for letter in "abcdefghijkl"]
    assert len({lines.color_of(i, methods) for i in range(12)}) == 12
    assert len({lines.marker_of(i) for i in range(12)}) == 12
    levels = ["level_0", "level_60", "level_80"]
    shades = [lines.color_of(i, levels) for i in range(3)]
    assert len(set(shades)) == 3
    brightness = [sum(shade[:3]) for shade in shades]
    assert brightness == sorted(brightness, reverse=True)


def test_names_do_not_overlap():
    _, axes = lines.new_figure("x")
    for number in range(8):
        axes.plot([0, 1], [0, 0.5 + number / 1000], label=f"line {number}")
    axes.plot([0, 1], [0, 1], label="top")
    lines.name_lines(axes)
    places = sorted(text.get_position()[1] for text in axes.texts)
    assert len(places) == 9
    assert np.diff(places).min() >= lines._GAP - 1e-9
    assert places[0] >= 0 and places[-1] <= 1
