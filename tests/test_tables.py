"""Tables of results: computed from kept runs, and equal to what is committed."""

import json
import re

import experiment_modules
import numpy as np
import pytest
from experiment_modules import run_tool
from scipy import stats

from experiments.claims import evidence
from experiments.engine import reading
from experiments.keep import kept_study
from experiments.tables import __main__ as command
from experiments.tables import leaderboard, render
from p2pjax.types import InputError

ROOT = experiment_modules.ROOT


def test_committed_pages_are_what_the_results_say():
    pages = render.pages(ROOT)
    names = {path.parent.name for path in pages}
    assert names == {*experiment_modules.NAMES}
    for path, text in pages.items():
        assert path.read_text() == text, f"{path}: run python -m experiments.tables"


def test_every_kept_study_has_a_flagfile_and_a_section():
    for folder in (ROOT / "results").iterdir():
        if folder.is_dir():
            experiment, _, _ = folder.name.partition(".")
            page = (ROOT / "experiments" / experiment / "RESULTS.md").read_text()
            assert f"### {folder.name}\n" in page
            for name in ("run.flags", "summary.json", "runs.jsonl"):
                assert (folder / name).exists()


def test_kept_summaries_say_all_that_is_computed_of_their_runs():
    for path in (ROOT / "results").glob("*/runs.jsonl"):
        kept = reading.summary(path.parent).rows
        found = kept_study.updated(path.parent)["rows"]
        command = "python -m experiments.keep --update"
        assert found == kept, f"{path.parent.name}: run {command}"


def test_no_kept_study_has_typed_numbers_as_well():
    """What was typed in before goes when the study is kept."""
    for name in experiment_modules.NAMES:
        page = (ROOT / "experiments" / name / "RESULTS.md").read_text()
        _, _, typed = page.partition("## Earlier measurements\n")
        named = set(re.findall(r"flags/(\w+)\.flags", typed))
        named |= set(re.findall(rf"\b{name}\.(\w+)", typed))
        both = {own for own in named if (ROOT / f"results/{name}.{own}").exists()}
        assert not both, f"{name}: delete the typed numbers of {sorted(both)}"


def test_tables_that_are_not_computed_say_so():
    """They are earlier measurements, typed in, or what the authors print."""
    for name in experiment_modules.NAMES:
        page = (ROOT / "experiments" / name / "RESULTS.md").read_text()
        before, rest = page.split(render.BEGIN)
        after, _, earlier = rest.split(render.END)[1].partition(
            "## Earlier measurements\n"
        )
        assert "\n|---" not in earlier or "typed in" in earlier[:200]
        for part in (before, after):
            for lead in part.split("\n|---")[:-1]:
                said = " ".join(lead.split("\n\n")[-2].split())
                assert re.search("typed in|authors print", said), f"{name}: {said}"


def write_study(root, name, lines):
    folder = root / "results" / name
    folder.mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "runs.jsonl").write_text(text)
    (folder / "run.flags").write_text("--seed=0\n")
    environment = {
        "jax": "0",
        "python": "3",
        "devices": 1,
        "backend": "cpu",
        "cpus": 2,
    }
    summary = {"experiment": "toy", "rows": [], "environment": environment}
    (folder / "summary.json").write_text(json.dumps(summary))
    return evidence.load(root / "results")[name]


def line(scheme, run, accuracy, **setting):
    return {
        "scheme": scheme,
        "setting": setting,
        "run": run,
        "round": [10, 15, 20],
        "accuracy": accuracy,
    }


def test_cells_are_means_with_intervals(tmp_path):
    values = [[0.1, 0.2, 0.4], [0.3, 0.3, 0.5], [0.2, 0.2, 0.9]]
    study = write_study(
        tmp_path, "toy.one", [line("a", run, own) for run, own in enumerate(values)]
    )
    last = np.array(values)[:, 2]
    low, high = stats.t.interval(0.95, 2, last.mean(), stats.sem(last))
    head, _, row = render.table(study, "accuracy")
    assert head == "| scheme | round 10 | round 20 |"
    assert row.endswith(f"| {last.mean():.3f} ± {(high - low) / 2:.3f} |")


def test_settings_that_vary_are_columns(tmp_path):
    lines = [
        line(scheme, 0, [0.0, 0.0, size / 100], size=size, other=other)
        for scheme in ("a", "b")
        for other in (1, 2)
        for size in (5, 7)
    ]
    head, _, first, *_ = render.table(
        write_study(tmp_path, "toy.two", lines), "accuracy"
    )
    assert head == "| scheme | size | other 1 | other 2 |"
    assert first == "| a | 5 | 0.050 | 0.050 |"


def test_gains_have_a_table_where_agents_learn_alone(tmp_path):
    def own(scheme, messages, agents, **setting):
        more = {"messages": [messages] * 3, "agent_accuracy": agents}
        return line(scheme, 0, [0.1, 0.2, 0.3], **setting) | more

    lines = [own("alone", 0, [0.5, 0.5]), own("together", 3, [0.4, 0.9])]
    head, _, row = render.gains(write_study(tmp_path, "toy.one", lines))
    assert head == "| scheme | gain |"
    assert row == "| together | +0.150 (-0.050, 50% lose) |"
    lines.append(own("together", 3, [0.6, 0.6], size=4))
    lines[1]["setting"] = {"size": 3}
    found = render.gains(write_study(tmp_path, "toy.two", lines))
    assert found[0] == "| scheme |  | size 3 | size 4 |"
    assert found[2].endswith("| +0.100 (+0.100, 0% lose) |")
    assert render.gains(write_study(tmp_path, "toy.no", lines[1:])) == []


def test_steps_stand_beside_those_of_the_source(tmp_path):
    lines = [
        line("virtual", run, [0.1, 0.2, 0.3], rate=rate)
        | {"steps": [10, 20, steps], "source_steps": [5400] * 3}
        for rate in (0.1, 0.2)
        for run, steps in enumerate((710, 730))
    ]
    lines.append(line("fedavg", 0, [0.1, 0.2, 0.3]) | {"steps": [1, 2, 3]})
    study = write_study(tmp_path, "toy.steps", lines)
    _, _, head, _, *rows, last = render.steps_beside_source(study)
    assert head == "| scheme | rate | steps of an agent | of the source |"
    assert rows == [f"| virtual | {rate} | 720 | 5,400 |" for rate in (0.1, 0.2)]
    assert last == ""
    assert "\n".join(render.steps_beside_source(study)) in render.section(
        tmp_path, study
    )
    plain = write_study(tmp_path, "toy.plain", [line("a", 0, [0.1, 0.2, 0.3])])
    assert render.steps_beside_source(plain) == []


def test_pages_that_cannot_be_written_are_refused(tmp_path, capsys):
    page = tmp_path / "RESULTS.md"
    page.write_text("# Results\n")
    with pytest.raises(InputError, match="once each in"):
        render.replaced(page, "new")
    page.write_text(f"before\n{render.BEGIN}\nold\n{render.END}\nafter\n")
    text = render.replaced(page, "new")
    assert text == f"before\n{render.BEGIN}\n\nnew\n{render.END}\nafter\n"
    with pytest.raises(SystemExit) as exit_info:
        run_tool(command.Options, command.main, "all")
    assert exit_info.value.code == 2
    assert "Need no arguments but --check, got 'all'" in capsys.readouterr().err


class TestLeaderboard:
    def test_is_what_the_results_say(self):
        found = (ROOT / leaderboard.PAGE).read_text()
        assert found == leaderboard.page(ROOT), "run python -m experiments.tables"

    def test_says_when_no_study_is_kept(self, tmp_path):
        (tmp_path / "results").mkdir()
        assert "No study of learning is kept yet." in leaderboard.page(tmp_path)
        write_study(tmp_path, "toy.one", [line("a", 0, [0.1, 0.2, 0.3])])
        assert "No study of learning is kept yet." in leaderboard.page(tmp_path)

    def test_ranks_schemes_within_settings(self, tmp_path):
        pooled = {"low": [0.1, 0.3], "high": [0.6, 0.8]}
        lines = [
            line(scheme, run, [0.5, 0.5, 0.9], alpha=alpha)
            | {
                "pooled_accuracy": [0.0, 0.0, own],
                "merged_accuracy": [0.0, 0.0, None if alpha == 1 else 0.25],
                "messages": [1, 2, 1200],
                "bytes": [1, 2, 3_450_000],
                "learning_rate": [0.2] * 3,
            }
            for scheme, values in pooled.items()
            for alpha in (1, 10)
            for run, own in enumerate(values)
        ]
        write_study(tmp_path, "protocols.toy", lines)
        found = leaderboard.page(tmp_path)
        assert "No study" not in found
        assert found.index("**alpha 1**") < found.index("**alpha 10**")
        first, second, *_ = [row for row in found.splitlines() if "| 0.2 |" in row]
        half = stats.t.ppf(0.975, 1) * 0.1
        assert first.startswith(f"| high | 0.2 | 0.700 ± {half:.3f} | 0.900 ± 0.000 |")
        assert first.endswith("|  |  | 1,200 | 3.45 | 2 |")
        assert second.startswith("| low | 0.2 | 0.200 ±")
        assert "| 0.250 ± 0.000 |" in found
