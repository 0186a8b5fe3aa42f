"""The experiment that measures how different agents are: values, parts, refusals."""

import json

import numpy as np
import pytest
from figure_contents import assert_drawn

from experiments.engine import reading
from experiments.heterogeneity import practical, study
from p2pjax.datasets import label_skew
from p2pjax.evaluation import statistics
from p2pjax.types import InputError

ARGS = ("--dataset=digits,speakers", "--num_agents=10")


def test_values_and_figure(run, capsys):
    folder = run(*ARGS, "--num_runs=2", experiment="heterogeneity")
    rows = json.loads((folder / "summary.json").read_text())["rows"]
    assert {row["metric"] for row in rows} == {"jsd", "jsd_exact"}
    exact = [row for row in rows if row["metric"] == "jsd_exact"]
    assert [row["scheme"] for row in exact] == ["digits_practical"]
    rows = [row for row in rows if row["metric"] == "jsd"]
    assert {row["runs"] for row in rows} == {2}
    found = {row["scheme"]: row["median"] for row in rows}
    assert found["digits_iid"] < 0.1 < found["digits_practical"]
    assert found["digits_practical"] < found["digits_pathological"]
    assert 0 < found["speakers"] < 1
    shown = (name.replace("_", " ") for name in found)
    assert_drawn(folder, "divergence", "Jensen-Shannon divergence", *shown)
    said = capsys.readouterr().out
    assert f"digits_iid               {found['digits_iid']:.4f} (std" in said


def test_every_population_has_all_agents(parse):
    config = parse(*ARGS, experiment="heterogeneity")
    counts = study.load(config)(0)
    assert [*counts] == [one.name for one in study.populations(config)]
    assert {len(own) for own in counts.values()} == {10}


def test_a_measurement_is_the_mean_over_pairs(parse):
    config = parse("--dataset=digits", "--num_agents=5", experiment="heterogeneity")
    job = study.make_jobs(config)[1]
    assert (job.scheme, job.run) == ("digits_pathological", 0)
    matrix = study.divergences(study.load(config)(0)["digits_pathological"])
    above = matrix[np.triu_indices(5, 1)]
    assert job.measure() == {"jsd": pytest.approx(above.mean())}
    assert above.std() > 0.01
    mean = statistics.mean_jsd(study.load(config)(1)["digits_pathological"])
    assert mean != job.measure()["jsd"]  # another split in another run


class TestPractical:
    """The practical split of images with as many of every class as MNIST has."""

    sizes = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
    y = np.repeat(np.arange(10), sizes)

    def jsd(self, y, **changes):
        own = practical.Construction(**{"other_share": 0.04, "parts": "near"} | changes)
        rows = practical.cut(own, y, np.random.default_rng(0), 100)
        return statistics.mean_jsd(label_skew.histograms(y, rows, 10))

    def test_the_printed_value_has_whole_equal_parts(self):
        assert f"{self.jsd(self.y, parts='same'):.4f}" == "0.5229"  # as printed
        assert f"{self.jsd(self.y):.4f}" == "0.5116"
        assert f"{self.jsd(self.y, other_share=0.05):.4f}" == "0.4651"

    def test_the_closed_form_is_that_of_exact_shares(self):
        y = np.repeat(np.arange(10), 10_000)
        for share in (0.04, 0.05):
            exact = practical.expected_jsd(share, 100, 10)
            for parts in practical.PARTS:
                found = self.jsd(y, other_share=share, parts=parts)
                assert found == pytest.approx(exact, abs=1e-12)

    def test_constructions_are_settings(self, parse):
        flags = ("--dataset=digits", "--other_share=0.04,0.05", "--parts=near,same")
        config = parse(*flags, "--num_agents=10", experiment="heterogeneity")
        jobs = study.make_jobs(config)
        settings = [job.setting for job in jobs if job.scheme == "digits_practical"]
        assert settings == [
            {"other_share": share, "parts": parts}
            for share in (0.04, 0.05)
            for parts in ("near", "same")
        ]
        found = [dict(job.measure()) for job in jobs[2:]]
        assert found[0]["jsd_exact"] == practical.expected_jsd(0.04, 10, 10)
        assert len({row["jsd"] for row in found}) == 4


class TestOwnExamples:
    """An own file is by user, or in splits where it has no users."""

    args = ("--dataset=npz", "--num_agents=5")

    def populations(self, parse, path, *args):
        flags = (*self.args, f"--data_dir={path}", *args)
        config = parse(*flags, experiment="heterogeneity")
        return config, [one.name for one in study.populations(config)]

    def test_users_are_agents(self, parse, tmp_path):
        """Six who each have one class and a half: five are drawn for a run."""
        user = np.repeat(np.arange(6), 20)
        y = np.where(np.arange(120) % 2, user, (user + 1) % 6)
        np.savez(tmp_path / "own.npz", x=np.zeros((120, 3), "f"), y=y, user=user)
        config, found = self.populations(parse, tmp_path / "own.npz")
        assert found == ["npz_by_user"]
        counts = [study.load(config)(run)["npz_by_user"] for run in range(4)]
        for own in counts:
            assert own.shape == (5, 6)
            assert (np.sort(own, axis=1)[:, -2:] == 10).all()
        assert any((own != counts[0]).any() for own in counts)
        config, _ = self.populations(parse, tmp_path / "own.npz", "--num_agents=7")
        with pytest.raises(InputError, match="Need 7 users, .* has 6: lower"):
            study.load(config)(0)

    @pytest.mark.parametrize("num_classes", [4, 10])
    def test_without_users(self, parse, tmp_path, num_classes):
        y = np.arange(200) % num_classes
        np.savez(tmp_path / "own.npz", x=np.zeros((200, 3), "f"), y=y)
        config, found = self.populations(parse, tmp_path / "own.npz")
        splits = ["npz_iid", "npz_pathological"]
        assert found == splits + ["npz_practical"] * (num_classes == 10)
        assert {*study.load(config)(0)} == {*found}


def test_runs_in_parts_are_those_of_the_whole(run):
    options = {"experiment": "heterogeneity"}
    whole = reading.rows(run(*ARGS, "--num_runs=2", workdir="whole", **options))
    part = reading.rows(run(*ARGS, "--first_run=1", workdir="part", **options))
    assert part == [row for row in whole if row["run"] == 1]


@pytest.mark.parametrize(
    "args, message",
    [
        (("--dataset=chats",), "got 'chats'"),
        (("--dataset=mnist",), "Need --data_dir for --dataset=mnist"),
        (("--dataset=digits", "--num_agents=7"), "divide 7 agents and 10 classes"),
        (("--num_agents=1",), "need 2 or more, got 1"),
        (("--other_share=0.9",), "above 0 and up to 0.8, got 0.9"),
        (("--parts=some",), "need near, same, got 'some'"),
        (("--num_words=0",), "need 1 or more, got 0"),
    ],
)
def test_refusals(run, capsys, tmp_path, args, message):
    with pytest.raises(SystemExit) as exit_info:
        run(*args, workdir="refused", experiment="heterogeneity")
    assert exit_info.value.code == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not (tmp_path / "refused").exists()
