"""Tables over several studies of choosing peers, from rows of their run folders."""

import json
import runpy
import sys

import pytest

from experiments.connections import scores
from experiments.engine import command
from p2pjax.types import InputError


def rows(method, run, curve, messages, shares=(None, None)):
    return [
        {
            "scheme": method,
            "setting": {},
            "run": run,
            "round": number * 10,
            "accuracy": value,
            "messages": number * messages,
            **({} if messages == 0 else {"gini": 0.25}),
            **({} if share is None else {"in_cluster": share}),
        }
        for number, (value, share) in enumerate(
            zip(curve, shares, strict=False), start=1
        )
    ]


STUDY = [
    *rows("sparse", 0, [0.3, 0.4], 30),
    *rows("sparse", 1, [0.5, 0.2], 30),
    *rows("pens", 0, [0.1, 0.6], 40, (0.5, 0.9)),
    *rows("pens", 1, [0.8, 0.1], 40, (0.5, 0.8)),
    *rows("local", 0, [0.2, 0.1], 0),
    *rows("local", 1, [0.1, 0.2], 0),
    *rows("dac", 0, [0.1, 0.35], 30),
    *rows("dac", 1, [0.1], 30),  # has not ended
]


ROTATION = "--study=rotation\n--num_clusters=2\n--nobilevel\n"


def folder(path, written, flags=ROTATION, num_runs=2, num_rounds=20):
    path.mkdir()
    ends = f"--num_rounds={num_rounds}\n--num_runs={num_runs}\n"
    (path / "run.flags").write_text(flags + ends)
    lines = "".join(json.dumps(row) + "\n" for row in written)
    (path / "metrics.jsonl").write_text(lines)
    return str(path)


def test_tables_over_studies(tmp_path, capsys):
    one = folder(tmp_path / "one", STUDY)
    cifar = "--study=swap\n--num_clusters=4\n--dataset=cifar10\n"
    other = folder(tmp_path / "other", rows("oracle", 0, [0.7, 0.6], 30), cifar, 1)
    scores.print_scores([one, other])
    accuracy, thesis, in_cluster, gini, messages, speed, front, without = (
        table.splitlines() for table in capsys.readouterr().out.split("\n\n")
    )
    assert accuracy == [
        "| accuracy | one | other |",
        "|---|---|---|",
        "| sparse | .450* |  |",  # fewer messages until its best than pens
        "| pens | .700* (+.250, p .1) |  |",  # t = 5 with one degree of freedom
        "| local | .200* (-.250, p .1) |  |",
        "| oracle |  | .700* |",
    ]
    assert thesis[2:] == [
        "| sparse | 48.53 |",
        "| pens | 48.52 |",
        "| local |  |",
        "| oracle | 46.83 |",
    ]
    assert in_cluster[2:] == [
        "| sparse | - |  |",
        "| pens | .850 |  |",
        "| local | - |  |",
        "| oracle |  | - |",
    ]
    assert gini[3:5] == ["| pens | .250 |  |", "| local | - |  |"]
    assert messages[3] == "| pens | 80 |  |"
    assert speed[0] == "| rounds to 90% of best | one | other |"
    # Of .4 and .5 nine tenths are reached in rounds 20 and 10.
    assert speed[2:4] == ["| sparse | 15 |  |", "| pens | 15 |  |"]
    assert front[0] == "| front | one | other |"
    assert front[2:] == [
        "| sparse | .450 at 45* |  |",
        "| pens | .700 at 60* |  |",
        "| local | .200 at 0* |  |",
        "| oracle |  | .700 at 30* |",
    ]
    assert without[0] == "| front without oracle | one | other |"
    assert without[-1] == "| oracle |  |  |"


def test_fronts_are_pooled_over_sizes_and_messages_counted_both_ways(tmp_path, capsys):
    """What no other beats in the mean; PANM is cheaper as the thesis counts."""
    folders = []
    for name, sizes in (("small", "--train_size=100\n"), ("large", "--num_agents=9\n")):
        more = 0.1 * (name == "large")
        panm = rows("panm_loss", 0, [0.5 + more], 50)
        written = [
            *rows("sparse", 0, [0.4], 30),
            *rows("oracle", 0, [0.6 + more], 40),
            *(row | {"messages_thesis": 20} for row in panm),
        ]
        path = tmp_path / name
        flags = ROTATION + sizes
        folders.append(folder(path, written, flags, num_runs=1, num_rounds=10))
    scores.print_scores(folders, averages=True)
    tables = {
        lines[0].split("|")[1].strip(): lines
        for lines in map(str.splitlines, capsys.readouterr().out.split("\n\n"))
    }
    thesis = ", messages as the thesis counts"
    assert tables["front"][0] == "| front | small | large | small + large |"
    found = {
        title: [line.split(" | ")[-1] for line in tables[title][2:]]
        for title in tables
        if title.startswith("front")
    }
    assert found == {
        "front": [".400 at 30* |", ".650 at 40* |", ".550 at 50 |"],
        "front without oracle": [".400 at 30* |", " |", ".550 at 50* |"],
        f"front{thesis}": [".400 at 30 |", ".650 at 40* |", ".550 at 20* |"],
        f"front without oracle{thesis}": [".400 at 30 |", " |", ".550 at 20* |"],
    }
    assert tables["messages, as the thesis counts"][2:] == [
        "| sparse |  |  |",
        "| oracle |  |  |",
        "| panm_loss | 20 | 20 |",
    ]
    assert tables["mean over studies"][2:] == [
        "| sparse | 2 | .400 |  |  |  |",
        "| oracle | 2 | .650 | +.250 | 2 of 2 | 1.33 |",
        "| panm_loss | 2 | .550 | +.150 | 2 of 2 | 1.67 |",
    ]


def test_parts_of_a_study_are_one(tmp_path, capsys):
    """Runs that were made in parts; methods are compared in common runs."""
    later = [row | {"run": row["run"] + 2} for row in STUDY if row["scheme"] != "dac"]
    first = folder(tmp_path / "first", STUDY)
    second = folder(tmp_path / "second", later, ROTATION + "--first_run=2\n")
    scores.print_scores([first, second])
    lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert lines[0] == "| accuracy | first |"
    assert lines[3].startswith("| pens | .700* (+.250, p .003)")  # t = 8.66
    other = [row for row in later if row["round"] == 20]
    third = folder(tmp_path / "third", other, ROTATION + "--first_run=4\n")
    moved = [row | {"run": row["run"] + 2} for row in other]
    (tmp_path / "third" / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in moved)
    )
    with pytest.raises(InputError, match="the same rounds, got others of sparse in"):
        scores.print_scores([first, third])


def test_folders_of_one_study_are_one_column(tmp_path, capsys):
    """A method that is run later, for other rounds, is compared with the same runs."""
    one = folder(tmp_path / "one", STUDY)
    late = [*rows("diple", 0, [0.4], 90), *rows("diple", 1, [0.5], 90)]
    same = folder(tmp_path / "same", late, num_rounds=10)
    other = folder(tmp_path / "other", late, ROTATION + "--seed=1\n", num_rounds=10)
    scores.print_scores([one, same, other])
    accuracy = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert accuracy[0] == "| accuracy | one | other |"
    assert accuracy[-1] == "| diple | .450 (+.000, p 1) | .450* |"


def test_studies_in_folders_of_one_name_are_told_apart(tmp_path, capsys):
    (tmp_path / "other").mkdir()
    one = folder(tmp_path / "run", STUDY)
    other = folder(tmp_path / "other" / "run", STUDY, ROTATION + "--seed=1\n")
    scores.print_scores([one, other])
    assert capsys.readouterr().out.startswith(f"| accuracy | run | {other} |")


def test_what_cannot_be_shown(tmp_path):
    with pytest.raises(InputError, match="at least one study, got none"):
        scores.print_scores([])
    with pytest.raises(InputError, match=r"work folder of a run, but .* no run\.flags"):
        scores.print_scores([str(tmp_path)])
    other = folder(tmp_path / "other", STUDY, "--batch_size=3\n")
    with pytest.raises(InputError, match=r"a study of experiments\.connections"):
        scores.print_scores([other])
    begun = folder(tmp_path / "begun", STUDY[-3:])
    with pytest.raises(InputError, match="whose runs have all ended, got none in"):
        scores.print_scores([begun])
    one, again = (folder(tmp_path / name, STUDY) for name in ("one", "again"))
    with pytest.raises(InputError, match="once, got run 0 of sparse again in"):
        scores.print_scores([one, again])


def test_flags_without_values_make_other_studies(tmp_path, capsys):
    names = {"one": ROTATION, "other": ROTATION.replace("--nobilevel", "--bilevel")}
    scores.print_scores(
        [folder(tmp_path / name, STUDY, flags) for name, flags in names.items()]
    )
    assert capsys.readouterr().out.startswith("| accuracy | one | other |")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_the_command(tmp_path, monkeypatch, capsys):
    one = folder(tmp_path / "one", STUDY)
    monkeypatch.setattr(command.app, "run", lambda main, argv: main(argv))
    monkeypatch.setattr(sys, "argv", ["connection_scores", one])
    runpy.run_module("experiments.connection_scores", run_name="__main__")
    assert capsys.readouterr().out.startswith("| accuracy | one |")
    monkeypatch.setattr(sys, "argv", ["connection_scores"])
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_module("experiments.connection_scores", run_name="__main__")
    assert exit_info.value.code == 2
    assert "at least one study, got none" in capsys.readouterr().err
