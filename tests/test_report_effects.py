"""What the report says of simulated time, both scores, gains of agents and attacks."""

import numpy as np
import pytest
from report_pages import Page, effect_rows, make_row, num_points, write_folder

from experiments.report import command, comparisons, measures, reading


@pytest.fixture
def folder(tmp_path):
    return reading.read_folder(write_folder(tmp_path, effect_rows()), "run")


def test_charts_have_those_who_know(folder):
    page = Page(command.page([folder]))
    for title, points in {
        "Accuracy over simulated time": [3],
        "Gains of the agents": [4, 4, 4],
        "Success of the attack over rounds": [3],
    }.items():
        (chart,) = page.charts(title)
        assert num_points(chart) == points, title
    (both,) = page.charts("Before and after averaging")
    dots = [one for _, one, _ in both if one.get("class") == "dot"]
    assert len(dots) == 2
    for name in ("simulated time", "attackers", "from attackers", "attack success"):
        assert name in page.texts("th")


def test_nothing_of_it_where_no_row_knows(tmp_path):
    plain = [make_row("one", run, 1, 0.5, messages=1, bytes=4.0) for run in (0, 1)]
    page = Page(
        command.page([reading.read_folder(write_folder(tmp_path, plain), "run")])
    )
    heads = page.texts("h2")
    assert not {
        "Accuracy over simulated time",
        "Before and after averaging",
        "Gains of the agents",
        "Success of the attack over rounds",
    } & set(heads)
    assert "simulated time" not in page.texts("th")


def test_gains_are_sorted_by_agent(folder):
    alone, together, _, attacked = comparisons.agent_gains(folder)
    assert not alone.points
    gains = [point.middle for point in together.points]
    np.testing.assert_allclose(gains, [-0.2, 0, 0.05, 0.4], atol=1e-12)
    # Four are judged, as many as are alone: the same agents.
    gains = [point.middle for point in attacked.points]
    np.testing.assert_allclose(gains, [-0.1, -0.1, 0, 0], atol=1e-12)


def test_agents_that_attack_have_no_rank(folder):
    of_attacked = measures.by_rank(folder.cases[3], "agent_accuracy")
    np.testing.assert_allclose(of_attacked, [0.4, 0.6, 0.6, 0.8])


def test_time_of_runs_is_their_median(tmp_path):
    made = [
        make_row("waking", run, number, 0.5, time=number * (1 + run))
        for run in range(3)
        for number in (1, 2)
    ]
    (line,) = measures.over_time(reading.read_folder(write_folder(tmp_path, made), "a"))
    assert [point.x for point in line.points] == [2, 4]
