"""The table of the multi-task study, from rows of one or several run folders."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.multi_task import neighbors, scores
from experiments.multi_task.contenders import Contender
from p2pjax.types import InputError


def rows(method, tasks, graph, run, curve, metric="f1_tags"):
    setting = {"tasks": tasks, "graph": graph}
    return [
        {"scheme": method, "setting": setting, "run": run, "round": 4 * i, metric: y}
        for i, y in enumerate(curve, start=1)
    ]


ALONE = [
    *rows("cts", "tags", "random", 0, [0.1, 0.4]),
    *rows("cts", "tags", "random", 1, [0.5, 0.2]),
    *rows("cts", "tags", "random", 2, [0.9, 0.9]),
]
FIRST = zip(
    rows("mt", "speakers+tags", "clustered", 0, [0.6, 0.1]),
    rows("mt", "speakers+tags", "clustered", 0, [0.2, 0.3], "ua_speakers"),
    strict=True,
)
TOGETHER = [
    *(one | other for one, other in FIRST),
    *rows("mt", "speakers+tags", "clustered", 1, [0.1, 0.8]),
    *rows("mt", "speakers+tags", "clustered", 2, [0.7]),  # has not ended
]


def test_runs_of_the_same_number_are_compared():
    alone, together, other = scores.scores([*ALONE, *TOGETHER])
    assert alone.top == {0: 0.4, 1: 0.5, 2: 0.9}
    assert together.top == {0: 0.6, 1: 0.8}
    assert together.contender == Contender("mt", "clustered", ("speakers", "tags"))
    assert other.metric == "ua_speakers" and other.top == {0: 0.3}
    difference, p = together.difference(alone)
    assert difference == pytest.approx(0.25)  # (.2 + .3) / 2
    assert p == pytest.approx(0.1257, abs=1e-4)  # t = 5 with one degree of freedom


def test_the_table_of_several_folders(tmp_path, capsys):
    folders = []
    for name, written in (("alone", ALONE), ("together", TOGETHER)):
        (tmp_path / name).mkdir()
        text = "".join(json.dumps(row) + "\n" for row in written)
        (tmp_path / name / "metrics.jsonl").write_text(text)
        folders.append(str(tmp_path / name))
    scores.print_table(folders)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| f1_tags | cts | tags | random | 3 | 0.6000 |  |  |  |"
    assert lines[3] == (
        "| f1_tags | mt | speakers+tags | clustered | 2 | 0.7000 | +0.2500 | +55.6% "
        "| 0.13 |"
    )
    assert lines[4].endswith("| clustered | 1 | 0.3000 |  |  |  |")
    assert len(lines) == 5


def test_averages_over_partners():
    """As the thesis has two tasks together: the mean over the other one."""
    more = [
        row
        for run in range(3)
        for row in (
            *rows("mt", "tags+words", "clustered", run, [0.2, 0.3]),
            *rows("mt", "speakers+tags+words", "clustered", run, [0.9, 0.3]),
        )
    ]
    lines = scores.average_table([*ALONE, *TOGETHER, *more]).splitlines()
    assert lines[2:5] == [
        "| f1_tags | cts | random | 1 | 1 | 0.6000 |  |",
        "| f1_tags | mt | clustered | 2 | 2 | 0.5000 | -16.7% |",  # .7 and .3
        "| f1_tags | mt | clustered | 3 | 1 | 0.9000 | +50.0% |",
    ]


def test_scores_by_neighbours_of_the_own_task(tmp_path):
    """Of the last evaluation; tasks that run as one have no foreign neighbours."""
    setting = {"tasks": "tags+speakers", "graph": "clustered", "foreign_share": 0.67}
    both = {"scheme": "mt", "setting": setting, "run": 0}
    mono = both | {"scheme": "mono"}
    scored = [
        one | {"round": number, "agent_accuracy": [0.1 * number, 0.4, None, 0.8]}
        for one in (both, mono)
        for number in (1, 2)
    ]
    heard = [[0, 1, 4], [0, 2, 4], [1, 3, 4], [2, 3, 0], [3, 2, 1]]
    linked = [
        both | {"cluster": [0, 0, 1, 1], "links": heard},
        mono | {"cluster": [0, 0, 0, 0], "links": heard},
    ]
    for name, written in (("metrics", scored), ("links", linked)):
        text = "".join(json.dumps(row) + "\n" for row in written)
        (tmp_path / f"{name}.jsonl").write_text(text)
    graph = "clustered, 0.67 foreign"
    assert neighbors.scores(tmp_path) == {
        ("mt", "tags+speakers", graph, "speakers", 1): [0.8],
        ("mt", "tags+speakers", graph, "tags", 0): [0.4],
        ("mt", "tags+speakers", graph, "tags", 1): [0.2],
    }
    last = neighbors.table(tmp_path).splitlines()[-1]
    assert last == f"| mt | tags+speakers | {graph} | tags | 1 | 1 | 0.2000 |"


def test_what_cannot_be_shown(tmp_path):
    with pytest.raises(InputError, match="at least one run, got none"):
        scores.print_table([])
    with pytest.raises(InputError, match=r"has no metrics\.jsonl"):
        scores.print_table([str(tmp_path)])
    others = {"round": 1, "scheme": "mean", "setting": {}, "run": 0, "accuracy": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(others) + "\n")
    with pytest.raises(InputError, match="runs of the multi-task study"):
        scores.print_table([str(tmp_path)])


def test_rows_that_two_folders_have_count_once_if_they_are_equal(tmp_path, capsys):
    """Such as those of tasks alone, which both have run."""

    def folder(name, written):
        (tmp_path / name).mkdir()
        text = "".join(json.dumps(row) + "\n" for row in written)
        (tmp_path / name / "metrics.jsonl").write_text(text)
        return str(tmp_path / name)

    one, both = folder("one", ALONE), folder("both", [*ALONE, *TOGETHER])
    scores.print_table([both])
    expected = capsys.readouterr().out
    scores.print_table([one, both])
    assert sorted(capsys.readouterr().out) == sorted(expected)
    other = folder("other", [ALONE[0] | {"f1_tags": 0.2}, *TOGETHER])
    with pytest.raises(InputError, match="run 0 of cts has other values in .*other"):
        scores.print_table([one, other])


def test_the_command(tmp_path):
    text = "".join(json.dumps(row) + "\n" for row in ALONE)
    (tmp_path / "metrics.jsonl").write_text(text)

    def command(*args):
        return subprocess.run(
            [sys.executable, "-m", "experiments.task_scores", *map(str, args)],
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=False,
        )

    done = command(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "| f1_tags | cts | tags | random | 3 | 0.6000 |" in done.stdout
    refused = command()
    assert refused.returncode == 2
    assert refused.stderr.startswith("Need the work folder of at least one run")
    assert refused.stderr.count("\n") == 1
    assert "python -m experiments.task_scores WORKDIR" in command("--help").stdout
