"""The multi-task experiment: what it compares, its worlds, refusals, one small run."""

import json

import jax
import numpy as np
import pytest

from experiments import multi_task, run_folder, task_data
from p2pjax.datasets.loaders import pieces
from p2pjax.types import InputError, num_agents

SMALL = (
    "--num_agents=4",
    "--length=12",
    "--layers=1",
    "--stream=4",
    "--feed_forward=4",
    "--max_examples=8",
    "--num_rounds=2",
    "--eval_every=1",
)
FOUR = "--dataset=speakers,tags,speakers_2,tags_2"


def names(jobs):
    return [(job.scheme, job.setting["tasks"], job.setting["graph"]) for job in jobs]


def test_pairs_and_all_tasks(parse):
    parse(*SMALL, FOUR, "--graphs=clustered", experiment="multi_task")
    pairs = names(multi_task.make_jobs())
    assert pairs[:4] == [
        ("cts", name, "random") for name in ("speakers", "tags", "speakers_2", "tags_2")
    ]
    assert len(pairs) == 4 + 6 * 2 + 1
    assert ("mono", "speakers+speakers_2", "clustered") in pairs
    assert ("mt_ef", "tags+tags_2", "clustered") in pairs
    parse(*SMALL, FOUR, "--study=all", "--num_runs=2", experiment="multi_task")
    together = names(multi_task.make_jobs())
    assert len(together) == 2 * (4 + 2 * 2)
    assert together[-1] == ("mt_ef", "speakers+tags+speakers_2+tags_2", "clustered")


def test_mono_is_one_task_and_mt_two(parse):
    parse(
        *SMALL,
        "--dataset=speakers,speakers_2",
        "--methods=mono,mt",
        "--graphs=random",
        experiment="multi_task",
    )
    mono, mt = multi_task.make_jobs()
    for job, num_heads in ((mono, 1), (mt, 2)):
        world = job.make_world()
        assert num_agents(world) == 8
        state = jax.eval_shape(job.algorithm.init, jax.random.key(0), world)
        heads = state.agents.variables.params["head"].parts
        assert len(heads) == num_heads
        models = jax.eval_shape(job.algorithm.models, state)
        values = jax.eval_shape(job.evaluate, models, world)
        assert values["accuracy"].shape == (8,)
        assert values["ua_speakers"].shape == values["ua_speakers_2"].shape == ()


@pytest.mark.parametrize(
    "args, message",
    [
        (("--dataset=tags,chat",), "Need --data_dir for --dataset=chat"),
        (("--dataset=tags,nothing",), "data sets among .* got 'tags,nothing'"),
        (("--dataset=tags,tags",), "different data sets"),
        (("--methods=mt,gossip",), "--methods among cts, mono, mt, mt_ef"),
        (("--graphs=ring",), "--graphs among random, clustered"),
        (("--heads=3",), "width that 3 heads can share equally, got 4"),
        (("--degree=6",), "0 < degree < 4"),
        (("--min_train=10000",), "0 of 4 users are such"),
        (("--vocabulary=none.txt",), "none.txt must be a vocabulary"),
    ],
)
def test_refusals(parse, args, message):
    parse(*SMALL, *args, experiment="multi_task")
    with pytest.raises(InputError, match=message):
        multi_task.make_jobs()


def test_a_trained_vocabulary_is_kept_and_named(parse, tmp_path, monkeypatch):
    """Training it again may give other pieces, so a rerun has to find it."""
    trained = pieces.whole_words(["the", "dog"])
    monkeypatch.setattr(task_data, "train", lambda *_: trained)
    (tmp_path / "nps_chat.json").write_text(
        json.dumps([["s", f"u{n}", "Statement", "the dog the dog"] for n in range(8)])
    )
    args = (
        "--dataset=tags,chat",
        f"--data_dir={tmp_path}",
        f"--workdir={tmp_path / 'run'}",
        "--methods=cts",
    )
    parse(*SMALL, *args, experiment="multi_task")
    assert len(multi_task.make_jobs()) == 2
    kept = tmp_path / "run" / "vocabulary.txt"
    assert f"--vocabulary={kept}" in multi_task.common.own_flags()
    parse(*SMALL, *args, experiment="multi_task")
    with pytest.raises(InputError, match="choose another --workdir, or use it by"):
        multi_task.make_jobs()
    parse(*SMALL, *args, f"--vocabulary={kept}", experiment="multi_task")
    assert len(multi_task.make_jobs()) == 2


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_a_run_has_scores_and_figures_of_every_task(run, capsys):
    folder = run(
        *SMALL, "--methods=cts,mt_ef", "--graphs=clustered", experiment="multi_task"
    )
    said = capsys.readouterr().out
    assert "f1_tags" in said
    assert "ua_speakers" in said
    rows = run_folder.read(folder)
    assert len(rows) == 3 * 2
    last = rows[-1]
    assert last["setting"] == {"tasks": "speakers+tags", "graph": "clustered"}
    assert last["ua_speakers"] == pytest.approx(
        np.mean(last["agent_accuracy"][:4]), abs=1e-6
    )
    summary = json.loads((folder / "summary.json").read_text())["rows"]
    found = {(row["scheme"], row["metric"]) for row in summary}
    assert {("cts", "ua_speakers"), ("mt_ef", "f1_tags")} <= found
    for score in ("ua_speakers", "f1_tags"):
        assert (folder / f"{score}_by_round.png").stat().st_size > 5000
