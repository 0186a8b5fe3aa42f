"""The multi-task experiment: what it compares, its data, refusals, one small run."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from experiments.engine import config as configs
from experiments.engine import reading
from experiments.multi_task import contenders, data, study
from p2pjax.datasets.loaders import pieces
from p2pjax.training.agent_loop import IN_PLACE, VMAP
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


@pytest.mark.slow
def test_pairs_and_all_tasks(parse):
    config = parse(*SMALL, FOUR, "--graphs=clustered", experiment="multi_task")
    pairs = names(study.make_jobs(config))
    assert pairs[:4] == [
        ("cts", name, "random") for name in ("speakers", "tags", "speakers_2", "tags_2")
    ]
    assert len(pairs) == 4 + 6 * 2 + 1
    assert ("mono", "speakers+speakers_2", "clustered") in pairs
    assert ("mt_ef", "tags+tags_2", "clustered") in pairs
    config = parse(*SMALL, FOUR, "--study=all", "--num_runs=2", experiment="multi_task")
    together = names(study.make_jobs(config))
    assert len(together) == 2 * (4 + 2 * 2)
    assert together[-1] == ("mt_ef", "speakers+tags+speakers_2+tags_2", "clustered")


IMAGES = "--dataset=glyphs_digits,glyphs_letters"


def test_agents_of_digits_and_of_letters_share_an_encoder(parse):
    """Other writers in each run; two tasks are one only with equal heads."""
    config = parse(
        *SMALL,
        IMAGES,
        "--channels=2",
        "--features=3",
        "--methods=cts,mono,mt",
        "--graphs=clustered",
        "--num_runs=2",
        experiment="multi_task",
    )
    jobs = study.make_jobs(config)
    assert [job.scheme for job in jobs] == ["cts"] * 4 + ["mt"] * 2  # no mono
    one, other = (job.make_data() for job in jobs[-2:])
    digits, letters = one.train.examples.parts
    assert digits["x"].shape == (4, 8, 28, 28, 1)  # at most 8 examples
    assert one.train.size.tolist() == [8] * 8
    assert digits["y"].max() < 10
    assert letters["y"].max() < 26
    assert not np.array_equal(digits["x"], other.train.examples.parts[0]["x"])
    algorithm, evaluate = jobs[-1].program
    state = jax.eval_shape(algorithm.init, jax.random.key(0), one)
    params = state.agents.variables.params
    assert set(params) == {"encoder", "head"}
    assert [part["bias"].shape for part in params["head"].parts] == [(4, 10), (4, 26)]
    values = jax.eval_shape(evaluate, jax.eval_shape(algorithm.models, state), one)
    assert values["ua_glyphs_digits"].shape == values["encoder_spread"].shape == ()


def test_shares_of_foreign_edges_and_local_epochs_are_compared(parse):
    config = parse(
        *SMALL,
        IMAGES,
        "--methods=cts,mt",
        "--foreign_share=0,0.67",
        "--local_epochs=1,2",
        experiment="multi_task",
    )
    tasks = "glyphs_digits+glyphs_letters"
    compared = contenders.contenders(config, data.load(config))
    of_mt = [setting for one, setting in compared if one.method == "mt"]
    random = {"tasks": tasks, "graph": "random"}
    clustered = {"tasks": tasks, "graph": "clustered"}
    assert of_mt == [
        *(random | {"local_epochs": e} for e in (1, 2)),
        *(
            clustered | {"foreign_share": share, "local_epochs": e}
            for share in (0, 0.67)
            for e in (1, 2)
        ),
    ]
    assert len(compared) == 2 * 2 + len(of_mt)
    for one, setting in compared:
        row = {"scheme": one.method, "setting": setting}
        assert contenders.of_row(row) == one
        graph = study.graph_of(config, one)(np.random.default_rng(0))
        cluster = np.repeat(np.arange(len(one.names)), 4)
        foreign = (cluster[graph.neighbor] != cluster[:, None]).sum(1)
        if one.graph == "clustered":
            assert set(foreign.tolist()) == {round(3 * one.foreign_share)}


def test_mono_is_one_task_and_mt_two(parse):
    config = parse(
        *SMALL,
        "--dataset=speakers,speakers_2",
        "--methods=mono,mt",
        "--graphs=random",
        experiment="multi_task",
    )
    mono, mt = study.make_jobs(config)
    for job, num_heads in ((mono, 1), (mt, 2)):
        (algorithm, evaluate), own = job.program, job.make_data()
        assert num_agents(own) == 8
        state = jax.eval_shape(algorithm.init, jax.random.key(0), own)
        heads = state.agents.variables.params["head"].parts
        assert len(heads) == num_heads
        models = jax.eval_shape(algorithm.models, state)
        values = jax.eval_shape(evaluate, models, own)
        assert values["accuracy"].shape == (8,)
        assert values["ua_speakers"].shape == values["ua_speakers_2"].shape == ()


@pytest.mark.slow
def test_runs_in_parts_have_the_data_of_the_whole(parse):
    args = (*SMALL, "--methods=mt", "--graphs=random")
    whole = study.make_jobs(parse(*args, "--num_runs=2", experiment="multi_task"))
    (part,) = study.make_jobs(parse(*args, "--first_run=1", experiment="multi_task"))
    assert [job.run for job in whole] == [0, 1]
    assert part.run == 1
    one, other = part.make_data(), whole[1].make_data()
    np.testing.assert_array_equal(one.train.size, other.train.size)
    for mine, theirs in zip(
        jax.tree.leaves(one.train), jax.tree.leaves(other.train), strict=True
    ):
        # Only the padding depends on the other runs.
        shared = tuple(map(slice, np.minimum(mine.shape, theirs.shape)))
        np.testing.assert_array_equal(mine[shared], theirs[shared])
    assert not jax.tree.all(
        jax.tree.map(np.array_equal, whole[0].make_data().train, other.train)
    )


def test_tasks_that_train_in_place_share_one_device(parse):
    config = parse(*SMALL, "--num_devices=4", experiment="multi_task")
    in_place = dataclasses.replace(config, agent_loop=IN_PLACE)
    assert study.prepare(in_place).num_devices == 1
    batched = dataclasses.replace(config, agent_loop=VMAP)
    assert study.prepare(batched) == batched


@pytest.mark.parametrize(
    "args, message",
    [
        (("--dataset=tags,chat",), "Need --data_dir for --dataset=chat"),
        (("--dataset=tags,nothing",), "need speakers, tags, .*, got 'nothing'"),
        (("--methods=mt,gossip",), "need cts, mono, mt, mt_ef, got 'gossip'"),
        (("--graphs=ring",), "need random, clustered, got 'ring'"),
        (("--graphs=",), "need words joined by commas, got none"),
        (("--heads=3",), "width that 3 heads can share equally, got 4"),
        (("--dropout=nan",), "need a finite number, got nan"),
        (("--degree=6",), "0 < degree < 4"),
        (("--min_train=10000",), "0 of 4 users are such"),
        (("--dataset=tags,glyphs_digits",), "no encoder in common, got"),
        (("--dataset=femnist_digits",), "Need --data_dir for --dataset=femnist_digits"),
        (("--foreign_share=1.5",), "need 1 or less, got 1.5"),
        (("--local_epochs=0",), "need 1 or more, got 0"),
        (("--vocabulary=none.txt",), "none.txt must be a vocabulary"),
    ],
)
def test_refusals(parse, args, message):
    with pytest.raises(InputError, match=message):
        study.make_jobs(parse(*SMALL, *args, experiment="multi_task"))


def test_repeated_data_sets_count_once(parse):
    config = parse(*SMALL, "--dataset=tags,tags", experiment="multi_task")
    assert names(study.make_jobs(config)) == [("cts", "tags", "random")]


@pytest.fixture
def chat_args(tmp_path, monkeypatch):
    """A data set of eight users whose vocabulary has to be learned."""
    trained = pieces.whole_words(["the", "dog"])
    monkeypatch.setattr(data, "train", lambda *_: trained)
    (tmp_path / "nps_chat.json").write_text(
        json.dumps([["s", f"u{n}", "Statement", "the dog the dog"] for n in range(8)])
    )
    chosen = ("--dataset=tags,chat", f"--data_dir={tmp_path}", "--methods=cts")
    return (*SMALL, *chosen, f"--workdir={tmp_path / 'run'}")


def test_a_trained_vocabulary_is_kept_and_named(parse, chat_args, tmp_path):
    """Training it again may give other pieces, so a rerun has to find it."""
    config = study.prepare(parse(*chat_args, experiment="multi_task"))
    kept = tmp_path / "run" / "vocabulary.txt"
    assert kept.read_text().split()[-2:] == ["dog", "the"]
    assert config.vocabulary == str(kept)
    assert f"--vocabulary={kept}\n" in configs.as_flags(config)
    assert len(study.make_jobs(config)) == 2
    with pytest.raises(InputError, match="choose another --workdir, or use it by"):
        study.prepare(parse(*chat_args, experiment="multi_task"))
    again = parse(*chat_args, f"--vocabulary={kept}", experiment="multi_task")
    assert study.prepare(again).vocabulary == str(kept)
    assert len(study.make_jobs(again)) == 2


def test_a_work_folder_is_named_where_none_is_given(parse, chat_args, monkeypatch):
    monkeypatch.chdir(chat_args[-1].removeprefix("--workdir=").removesuffix("/run"))
    config = study.prepare(parse(*chat_args[:-1], experiment="multi_task"))
    assert config.workdir.startswith("runs/multi_task-")
    assert config.vocabulary == f"{config.workdir}/vocabulary.txt"
    assert len(study.make_jobs(config)) == 2


def test_nothing_is_kept_of_what_is_refused(parse, chat_args, tmp_path):
    refused = parse(*chat_args, "--heads=3", experiment="multi_task")
    with pytest.raises(InputError, match="3 heads can share equally"):
        study.prepare(refused)
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.flags").write_text("--seed=0\n")
    with pytest.raises(InputError, match="run holds a run: choose another --workdir"):
        study.prepare(parse(*chat_args, experiment="multi_task"))
    assert not (tmp_path / "run" / "vocabulary.txt").exists()
    (tmp_path / "file").touch()
    no_folder = parse(
        *chat_args, f"--workdir={tmp_path / 'file' / 'run'}", experiment="multi_task"
    )
    with pytest.raises(InputError, match="a work folder that can be written"):
        study.prepare(no_folder)


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_a_run_has_scores_and_figures_of_every_task(run, capsys):
    folder = run(
        *SMALL, "--methods=cts,mt_ef", "--graphs=clustered", experiment="multi_task"
    )
    said = capsys.readouterr().out
    assert "f1_tags" in said
    assert "ua_speakers" in said
    rows = reading.rows(folder)
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
