"""Lines of figures: one estimator, intervals, colours, names at the ends."""

import numpy as np
import pytest
from figure_contents import assert_drawn
from scipy import stats

from experiments.analysis import figures, lines
from experiments.engine import run_folder
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
    assert (
        len({(lines.color_of(i, methods), lines.marker_of(i)) for i in range(99)}) == 99
    )
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


def test_many_names_make_a_figure_higher():
    figure, axes = lines.new_figure("x")
    for number in range(43):
        axes.plot([0, 1], [0, 1], label=f"line {number}")
    lines.name_lines(axes)
    places = sorted(text.get_position()[1] for text in axes.texts)
    room = np.diff(places).min() * figure.get_figheight()
    assert room >= 0.18  # inches, for letters of 8 points


def test_costs_have_intervals_and_plain_ticks(tmp_path):
    """A method that sends nothing is a level line; no curve is another's twin."""
    rng = np.random.default_rng(0)
    for name, each in (("dpsgd", 40), ("pens", 12), ("local_only", 0)):
        for run, at in ((run, at) for run in range(4) for at in (1, 2, 3)):
            row = {"messages": each * at, "bytes": 0, "accuracy": rng.uniform()}
            one = {"scheme": name, "setting": {}, "run": run, "round": at} | row
            run_folder.append(tmp_path, "metrics.jsonl", one)
    figures.accuracy_by_messages(tmp_path)
    _, axes = lines.new_figure("cost")
    axes.plot([12, 120], [0, 1])
    lines.cost_axis(axes)
    axes.get_figure().draw_without_rendering()
    shown = [text.get_text() for text in axes.get_xticklabels()]
    assert {"20", "50", "100"} <= set(shown)
    svg = (tmp_path / "accuracy_by_messages.svg").read_text()
    assert svg.count('id="LineCollection_') == 3  # bars of each
    assert_drawn(tmp_path, "accuracy_by_messages", "dpsgd", "pens", "local only")
