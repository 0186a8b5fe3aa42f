"""The report on run folders: numbers, charts, page, every refusal."""

import doctest
import html
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from experiment_modules import run_tool
from report_pages import (
    Page,
    json_line,
    level_rows,
    make_row,
    num_points,
    scheme_rows,
    table_rows,
    text_to_copy,
    write_folder,
)

from experiments.engine.summary import summarize
from experiments.report import charts, command, comparisons, measures, reading, svg
from experiments.report.charts import Line, Point, Series

ROOT = Path(__file__).parents[1]
STRANGE = '<b>"&'
NUMBERS = ("median", "p40", "p60", "mean", "std")


@pytest.fixture
def folder(tmp_path):
    """Makes a run folder."""
    return partial(write_folder, tmp_path)


@pytest.fixture
def report_on():
    """Runs the command inside this process."""

    def run(*args):
        run_tool(command.Options, command.main, *args)

    return run


@pytest.fixture
def page(report_on):
    """The page about some folders, parsed."""

    def make(*folders):
        report_on(*folders)
        return Page((folders[0] / "report.html").read_text())

    return make


@pytest.fixture
def refused(report_on, capsys):
    """Runs with bad input; returns what standard error said."""

    def run(*args):
        with pytest.raises(SystemExit) as exit_info:
            report_on(*args)
        assert exit_info.value.code == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        return said

    return run


def test_level_study(folder, page):
    rows = level_rows()
    made = page(folder(rows))
    assert len(made.all("svg", "chart")) == 7
    (curves,) = made.charts("Accuracy over rounds")
    assert num_points(curves) == [4, 4, 4]
    assert sum(tag == "polygon" for tag, *_ in curves) == 3
    notes = [text for tag, _, text in curves if tag == "title"]
    assert "level_50, round 4: 0.5600 (0.5580 to 0.5620)" in notes
    (finals,) = made.charts("Final accuracy")
    assert num_points(finals) == [3]  # one line over the levels
    assert [text for tag, _, text in finals if tag == "title"][1].startswith(
        "level_50: 0.5600"
    )
    assert "averaging level (%)" in made.texts("text")
    (agents,) = made.charts("Agents, worst to best")
    assert num_points(agents) == [4, 4, 4]
    (spread,) = made.charts("Median agent, worst and best tenth")
    assert [text for tag, _, text in spread if tag == "title"][1] == (
        "level_0: median agent 0.5100, worst tenth 0.4100, best tenth 0.6100"
    )
    (costs,) = made.charts("Accuracy over bytes sent")
    # More bytes, more accuracy: all on the front.
    kinds = [attributes["class"] for tag, attributes, _ in costs if tag == "circle"]
    assert kinds == ["dot"] * 3
    assert "sent per agent (kB)" in made.texts("text")

    assert made.texts("h1") == ["Report: run"]
    cells = made.texts("td")
    for expected in ("tiny", "finished", "3.99.1", "cpu", "seed", "3", "per_sample"):
        assert expected in cells


def test_table_is_what_was_put_in(folder, page):
    rows = level_rows()
    made = page(folder(rows))
    results = table_rows(made)
    assert [row["scheme"] for row in results] == ["level_0", "level_50", "level_100"]
    assert [row["setting"] for row in results] == ["level=0", "level=50", "level=100"]
    for row in results:
        last = [r for r in rows if r["scheme"] == row["scheme"] and r["round"] == 4]
        values = np.array([r["accuracy"] for r in last])
        expected = [
            np.median(values),
            *np.percentile(values, [40, 60]),
            values.mean(),
            values.std(ddof=1),
        ]
        assert [float(row[name]) for name in NUMBERS] == pytest.approx(expected)
        assert float(row["worst decile"]) == pytest.approx(values.mean() - 0.1)
        assert (row["runs"], row["round"]) == ("3", "4")
        assert float(row["messages"]) == last[0]["messages"]
        assert float(row["bytes"]) == last[0]["bytes"]
        # The same numbers for a person, in the page and as Markdown.
        shown = [f"{value:.4f}" for value in expected]
        cells = made.texts("td")
        start = cells.index(row["scheme"])
        assert cells[start + 2 : start + 7] == shown
        text = text_to_copy(made, "results-markdown")
        (line,) = [line for line in text.splitlines() if f"{row['scheme']} |" in line]
        assert line.strip("| ").split(" | ") == cells[start : start + len(row)]


def test_agrees_with_summary(folder):
    """The folder's own summary has the same numbers."""
    path = folder(level_rows())
    every = summarize(path, "tiny", ("accuracy",))
    theirs = [row for row in every if row["metric"] == "accuracy"]
    ours = measures.results(reading.read_folder(path, "run"))
    for their, our in zip(theirs, ours, strict=True):
        assert [their[name] for name in NUMBERS] == [our[name] for name in NUMBERS]


def test_peers_study_has_a_line_per_level(folder, page):
    rows = [make_row("level_0", 0, 5, 0.4, {"level": 0, "group_size": 1})]
    for level in (60, 80):
        for size in (2, 4, 8):
            setting = {"level": level, "group_size": size}
            rows.append(make_row(f"level_{level}", 0, 5, 0.5 + size / 100, setting))
    made = page(folder(rows))
    (finals,) = made.charts("Final accuracy")
    assert num_points(finals) == [3, 3, 3]  # level 0 is the same at every size
    # Doubling the group is the same step everywhere.
    places = [p for tag, p, _ in finals if tag == "circle"][3:6]
    x = [float(place["cx"]) for place in places]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)
    names = [text for attributes, text in made.all("span", "name")]
    assert names[-3:] == ["level_0", "level_60", "level_80"]
    assert "level_60, group_size 2" in names
    # Nobody sent anything and nothing is known about agents: no such charts.
    assert len(made.all("svg", "chart")) == 2


def test_schemes_without_setting_become_a_dot_plot(folder, page):
    made = page(folder(scheme_rows(["first", "second", "a name that is far too long"])))
    (finals,) = made.charts("Final accuracy")
    assert num_points(finals) == []
    dots = [attributes for tag, attributes, _ in finals if tag == "circle"]
    assert len(dots) == 3
    assert float(dots[0]["cx"]) < float(dots[1]["cx"]) < float(dots[2]["cx"])
    assert len({dot["cy"] for dot in dots}) == 3
    assert "a name that is far too long" in made.texts("title")  # in full


def test_what_comes_from_files_is_escaped(folder, page):
    rows = scheme_rows([STRANGE], setting={STRANGE: STRANGE}, bytes=8)
    path = folder(rows, name=f"x{STRANGE}", flags=f"--name={STRANGE}\n")
    made = page(path)
    text = (path / "report.html").read_text()
    assert STRANGE not in text
    assert html.escape(STRANGE) in text
    assert not made.all("b")
    assert text.isascii()
    (row,) = table_rows(made)
    assert row["scheme"] == STRANGE
    assert row["setting"] == f"{STRANGE}={STRANGE}"
    assert STRANGE in made.texts("td")


def test_names_beyond_ascii(folder, page):
    made = page(folder(scheme_rows(["Größe 大"])))
    assert "Größe 大" in made.texts("td")


@pytest.mark.parametrize("name", ["\ud800", "\x1b[31m", "\u202e", "a\nb", ""])
def test_names_that_cannot_be_printed_are_refused(folder, refused, name):
    said = refused(folder(scheme_rows([name])))
    assert "as its scheme" in said and said[:-1].isprintable()


def test_needs_nothing_else(folder, page):
    path = folder(level_rows())
    page(path)
    text = (path / "report.html").read_text()
    for word in ("http:", "https:", "src=", "href=", "@import", "url("):
        assert word not in text
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text


def test_compares_folders(folder, page, tmp_path):
    first = folder(level_rows(), "first")
    second = folder(level_rows((50, 80)), "second", flags="--seed=4\n--per_sample\n")
    made = page(first, second)
    assert not (second / "report.html").exists()
    assert len(made.all("svg", "chart")) == 13
    assert [num_points(one) for one in made.charts("Accuracy over rounds")] == [
        [4, 4, 4],
        [4, 4],
    ]
    results = table_rows(made)
    assert [(row["folder"], row["scheme"]) for row in results] == [
        ("first", "level_0"),
        ("first", "level_50"),
        ("first", "level_100"),
        ("second", "level_50"),
        ("second", "level_80"),
    ]
    assert "Settings that differ" in made.texts("h2")
    assert made.texts("td").count("per_sample") == 1  # among all settings only
    assert made.texts("td").count("seed") == 2
    # A scheme has one colour in both.
    looks = [
        attributes["class"]
        for chart in made.charts("Accuracy over rounds")
        for tag, attributes, _ in chart
        if tag == "g"
    ]
    assert looks == ["s0 d0", "s1 d0", "s2 d0", "s1 d0", "s3 d0"]
    # Both have the same scale.
    scales = [
        [text for tag, _, text in chart if tag == "text"][:5]
        for chart in made.charts("Accuracy over rounds")
    ]
    assert scales[0] == scales[1]


def test_folders_of_one_name_are_told_apart(folder, page, tmp_path):
    (tmp_path / "other").mkdir()
    paths = folder(level_rows(), "run"), folder(level_rows(), "other/run")
    results = table_rows(page(*paths, paths[0]))
    assert {row["folder"] for row in results} == set(map(str, paths))
    assert len(results) == 6


def test_unfinished_run(folder, page):
    """The last line is cut, the last run has only begun, nothing is summed up."""
    lines = [json_line(row) for row in level_rows()]
    lines = [*lines[:-3], lines[-3][:40]]  # run 2 of level 100 was at round 2
    made = page(folder("".join(lines), finished=False))
    assert "unfinished" in made.texts("td")
    results = table_rows(made)
    assert [row["runs"] for row in results] == ["3", "3", "2"]
    assert float(results[2]["median"]) == pytest.approx(0.605)


def test_unfinished_first_run(folder, page):
    made = page(folder(level_rows()[:2], finished=False))
    (row,) = table_rows(made)
    assert (row["runs"], row["round"]) == ("1", "2")


def test_scheme_that_has_only_begun(folder, page):
    rows = level_rows((0, 50), num_runs=1)
    made = page(folder(rows[:-2], finished=False))
    _, begun = table_rows(made)
    assert (begun["runs"], begun["median"], begun["round"]) == ("0", "", "")
    (curves,) = made.charts("Accuracy over rounds")
    assert num_points(curves) == [4, 2]
    (costs,) = made.charts("Accuracy over bytes sent")
    assert sum(tag == "circle" for tag, *_ in costs) == 1


def test_values_that_are_not_finite_are_gaps(folder, page):
    rows = scheme_rows(["whole"]) + [
        make_row("broken", 0, number, None if number == 3 else 0.5, bytes=None)
        for number in range(1, 7)
    ]
    rows.append(make_row("diverged", 0, 1, None, agent_accuracy=[None, 0.5]))
    made = page(folder(rows))
    (curves,) = made.charts("Accuracy over rounds")
    assert num_points(curves) == [2, 2, 3]
    assert "nan" not in "".join(text for _, _, text in made.elements)
    results = {row["scheme"]: row for row in table_rows(made)}
    assert results["diverged"]["median"] == results["diverged"]["worst decile"] == ""
    assert results["broken"]["bytes"] == ""
    assert float(results["broken"]["median"]) == 0.5


def test_nothing_finite_at_all(folder, page):
    made = page(folder([make_row("diverged", 0, 1, None)]))
    assert not made.all("svg", "chart")
    assert len(table_rows(made)) == 1


def test_many_lines_differ(folder, page):
    made = page(folder(scheme_rows([f"scheme {n}" for n in range(20)])))
    looks = [attributes["class"] for attributes, _ in made.all("li")]
    assert len(set(looks[:20])) == 20


def test_pareto_front(folder, page):
    cheap, good, bad = (0.5, 10), (0.9, 100), (0.8, 200)
    rows = [
        make_row(name, 0, 1, accuracy, bytes=count)
        for name, (accuracy, count) in {
            "cheap": cheap,
            "good": good,
            "bad": bad,
        }.items()
    ]
    made = page(folder(rows))
    (costs,) = made.charts("Accuracy over bytes sent")
    kinds = [attributes["class"] for tag, attributes, _ in costs if tag == "circle"]
    assert kinds == ["dot", "dot", "dot hollow"]
    names = [text for _, text in made.all("span", "name")]
    assert names[-3:] == ["cheap (Pareto front)", "good (Pareto front)", "bad"]


def test_way_to_the_end_stays_in_the_chart(folder, page):
    """It may be better on the way, or far worse."""
    values = (0.99, 0.9, 0.1, 0.88, 0.9)
    rows = [make_row("a", 0, n, value, bytes=n) for n, value in enumerate(values)]
    (costs,) = page(folder(rows)).charts("Accuracy over bytes sent")
    assert num_points(costs, "line trail") == [2, 2]
    frame = svg.Frame()
    for tag, attributes, _ in costs:
        if tag == "polyline":
            heights = [float(p.split(",")[1]) for p in attributes["points"].split()]
            assert frame.top <= min(heights) <= max(heights) <= frame.bottom


def test_folder_without_flags_or_setting(folder, page):
    rows = [{"scheme": "only", "run": 0, "round": 1, "accuracy": 0.25}]
    path = folder(rows, finished=False)
    (path / "run.flags").unlink()
    (row,) = table_rows(page(path))
    assert float(row["median"]) == 0.25


def test_output(folder, report_on, tmp_path, capsys):
    path, output = folder(level_rows()), tmp_path / "page.html"
    report_on(path, f"--output={output}")  # flags may come last
    assert Page(output.read_text()).all("svg", "chart")
    assert not (path / "report.html").exists()
    assert str(output) in capsys.readouterr().out


def test_refusals(folder, refused, tmp_path):
    assert "got none" in refused()
    assert "is no folder" in refused(tmp_path / "missing")
    assert "has no metrics.jsonl" in refused(tmp_path)
    assert "'colour'" in refused(tmp_path, "--colour=red")
    good = folder(level_rows())
    missing = tmp_path / "missing" / "report.html"
    assert "choose another --output" in refused(good, f"--output={missing}")
    assert "is a folder" in refused(good, f"--output={tmp_path}")
    assert not tmp_path.with_name(tmp_path.name + ".tmp").exists()
    assert not (good / "report.html").exists()
    (good / "summary.json").write_text("{")
    assert "summary.json is broken" in refused(good)


@pytest.mark.parametrize(
    "broken",
    [
        "{\n",
        "\n",
        "[]\n",
        "5\n",
        '{"scheme": "a", "run": 0}\n',
        '{"scheme": "a", "run": 0, "round": "1"}\n',
        '{"scheme": "a", "setting": 5, "run": 0, "round": 1}\n',
        '{"scheme": 5, "run": 0, "round": 1}\n',
    ],
)
def test_broken_lines(folder, refused, broken):
    good = [json_line(row) for row in level_rows()[:2]]
    path = folder(good[0] + broken + good[1], finished=False)
    assert "line 2 of" in refused(path)


def test_last_line_of_a_finished_run_may_not_be_cut(folder, refused):
    good = json_line(level_rows()[0])
    assert "line 2 of" in refused(folder(good + good[:30]))


@pytest.mark.parametrize("text", ["", '{"scheme": '])
def test_no_rows(folder, refused, text):
    assert "has none" in refused(folder(text, finished=False))


@pytest.mark.parametrize(
    "low, high",
    [(0, 1), (0.07, 0.95), (3, 3), (0, 0), (-5, 17), (0, 1e9), (0.5, 0.501)],
)
def test_ticks_enclose(low, high):
    ticks = svg.round_ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 2 <= len(ticks) <= 8
    assert np.allclose(np.diff(ticks), ticks[1] - ticks[0])


def test_chart_places():
    """Pixels are where the scales say."""
    points = [Point(x, y, y, y) for x, y in ((0, 0.0), (5, 0.5), (10, 1.0))]
    (series,) = charts.styled([[Line("a", points)]])[0]
    assert series == Series("a", points, 0)
    x, y = (
        svg.tight_axis("x", [0, 10]),
        svg.enclosing_axis("y", [0, 1]),
    )
    frame = svg.Frame()
    assert svg.position(y, 0.0, frame.bottom, frame.top) == frame.bottom
    assert svg.position(y, 1.0, frame.bottom, frame.top) == frame.top
    drawn = Page(charts.line_chart("t", [series], x, y))
    ((attributes, _),) = drawn.all("polyline")
    places = np.array([p.split(",") for p in attributes["points"].split()], float)
    np.testing.assert_allclose(places[1], (places[0] + places[2]) / 2, atol=0.1)
    assert not drawn.all("polygon")  # no spread, no band


def test_examples_in_docstrings():
    for module in (charts, measures, svg):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed


def test_command(folder, tmp_path):
    """As a user types it."""
    path = folder(level_rows())
    module = [sys.executable, "-m", "experiments.report"]
    done = subprocess.run(
        [*module, path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"Report is in {path / 'report.html'}\n"
    Page((path / "report.html").read_text())


def test_gains_classes_and_scores_before_and_after(page, folder):
    """Columns and a table that are there where rows have what they need."""

    def row(scheme, run, messages, agents, **more):
        return {
            "scheme": scheme,
            "setting": {},
            "run": run,
            "round": 1,
            "accuracy": float(np.mean(np.array(agents, float))),
            "messages": messages,
            "bytes": 4 * messages,
            "agent_accuracy": agents,
            **more,
        }

    shared = {"accuracy_before": 0.5, "accuracy_after": 0.75, "majority": 0.25}
    shared["rejected"] = 1.25
    rows = [
        row("alone", 0, 0, [0.5, 0.5]),
        row("together", 0, 3, [0.9, 0.4], class_accuracy=[0.5, None, 1.0], **shared),
        row("together", 1, 3, [0.9, 0.4], class_accuracy=[1.0, None, 1.0], **shared),
        row("attacked", 0, 3, [None, 0.4], **shared) | {"accuracy": 0.4},
    ]
    path = folder(rows)
    made = page(path)
    heads = made.texts("th")
    for name in ("gain over local", "agents that lose", "before averaging"):
        assert name in heads
    assert "rejected a round" in heads and "1.2500" in made.texts("td")
    assert "Classes" in made.texts("h2")
    alone, together, attacked = comparisons.gains(reading.read_folder(path, "run"))
    assert np.isnan(alone["gain over local"])
    assert together["gain over local"] == pytest.approx(0.15)  # of the run both have
    assert together["agents that lose"] == 0.5
    assert together["gain, lowest tenth"] == pytest.approx(-0.05)
    assert attacked["gain over local"] == pytest.approx(-0.1)  # of the honest agent
    assert attacked["agents that lose"] == 1
    one, _ = reading.read_folder(path, "run").cases[1:]
    np.testing.assert_allclose(comparisons._class_means(one), [0.75, np.nan, 1])
