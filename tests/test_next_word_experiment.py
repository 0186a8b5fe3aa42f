"""The experiment on users' texts: rows, studies, parts of runs, every refusal."""

import itertools
import json

import jax
import numpy as np
import pytest

from experiments.engine import reading
from experiments.next_word import config, graphs, methods, study, tables
from p2pjax.graphs import analysis

SMALL = (
    "--num_agents=4",
    "--num_words=20",
    "--units=4",
    "--degree=2",
    "--num_rounds=2",
    "--eval_every=1",
)


@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_rows_links_and_tables(run, capsys):
    folder = run(*SMALL, "--methods=p2p_bn", "--num_runs=2", experiment="next_word")
    rows = reading.rows(folder)
    assert [(row["scheme"], row["run"], row["round"]) for row in rows] == [
        ("p2p_bn", run, number) for run in (0, 1) for number in (1, 2)
    ]
    assert [row["messages"] for row in rows] == [0, 2, 0, 2]
    assert all("time" in row for row in rows)
    assert sum(rows[-1]["agent_messages"]) == 4 * rows[-1]["messages"]
    assert ["gini" in row for row in rows] == [False, True] * 2
    links = reading.links(folder)
    assert [row["run"] for row in links] == [0, 1]
    assert all(len(row["cluster"]) == 4 for row in links)
    assert {"worst_decile", "consensus_distance"} <= set(rows[0])
    said = capsys.readouterr().out
    assert "mean of max" in said
    assert said.count("directed graph, mean degree 2.00") == 1  # of the first run


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_runs_in_parts_are_those_of_the_whole(run, capsys):
    """Also their tables: run numbers need not start at 0."""
    args = (*SMALL, "--methods=dpsgd,central")
    options = {"experiment": "next_word"}
    whole = reading.rows(run(*args, "--num_runs=2", workdir="whole", **options))
    capsys.readouterr()
    part = reading.rows(run(*args, "--first_run=1", workdir="part", **options))
    last = [row for row in whole if row["run"] == 1]
    assert len(part) == len(last) == 4
    for one, other in zip(part, last, strict=True):
        if one["scheme"] == "dpsgd":
            assert one == other
    said = capsys.readouterr().out
    assert "mean of max" in said
    assert said.count("dpsgd                directed graph") == 1


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_scores_before_and_after_averaging(run):
    args = (*SMALL, "--methods=dpsgd,fedavg", "--clients=4")
    options = {"experiment": "next_word"}
    plain = reading.rows(run(*args, "--noscore_before", workdir="plain", **options))
    both = reading.rows(run(*args, workdir="both", **options))
    for one, other in zip(plain, both, strict=True):
        assert "accuracy_before" not in one
        assert other["accuracy_after"] == other["accuracy"]
        assert other["accuracy"] == pytest.approx(one["accuracy"], abs=0.01)
    assert any(row["accuracy_before"] != row["accuracy_after"] for row in both)


def test_tops_of_any_runs(tmp_path, capsys):
    """Rows of runs 3 and 5, evaluation by evaluation, as of runs side by side."""
    values = {("a", 3): (0.1, 0.5), ("a", 5): (0.3, 0.2), ("b", 3): (0.1, 0.1)}
    values["b", 5] = (0.2, 0.1)
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for number, (scheme, run) in itertools.product((0, 1), values):
            row = {"scheme": scheme, "setting": {"n": 4}, "run": run, "round": number}
            row |= {"accuracy": values[scheme, run][number], "messages": number + run}
            file.write(json.dumps(row) + "\n")
    tables.print_tops(tmp_path)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.endswith("p against a 4")
    # Means of .5 and .3, best of .2 and .35, messages of run 3's second evaluation
    # and run 5's first.
    assert first.split() == ["a", "4", "0.4000", "0.3500", "none", "4.5"]
    assert second.split()[:3] == ["b", "4", "0.1500"]
    assert 0 < float(second.split()[-1]) < 1


def test_every_method_can_be_named():
    assert [*methods.MAKE] == [*config.METHODS]


@pytest.mark.parametrize(
    "name, num_contenders, varied",
    [
        ("methods", 9, set()),
        ("ablation", 4, {"directed"}),
        ("ring", 16, {"directed", "batch_norm"}),
        ("sparse", 16, {"directed", "varying"}),
        ("scaling", 8, {"num_agents"}),
        ("epochs", 4, set()),
        ("loss", 5, set()),
        ("references", 2, set()),
    ],
)
def test_what_studies_compare(parse, name, num_contenders, varied):
    settings = parse(f"--study={name}", "--sizes=8,12", experiment="next_word")
    compared = study.STUDIES[name](settings)
    assert len({(one, *setting.items()) for one, setting in compared}) == num_contenders
    for contender, setting in compared:
        assert set(setting) == varied
        assert contender.method in config.METHODS
        if "directed" in setting:
            assert contender.directed == setting["directed"]
        if "varying" in setting:
            assert (contender.rewire_every == 5) == setting["varying"]
        if not contender.batch_norm:
            assert contender.method != "p2p_bn"  # which fine-tunes batch norm
        assert contender.num_agents == setting.get("num_agents", 100)


def test_each_method_has_the_factors_that_mean_something_to_it(parse):
    settings = parse(
        "--methods=local_only,dpsgd,p2p_bn,fedavg",
        "--local_epochs=1,3",
        "--local_steps=1,4",
        "--loss_probability=0,0.5",
        experiment="next_word",
    )
    compared = study.contenders(settings)
    found = {}
    for contender, setting in compared:
        found.setdefault(contender.method, []).append(setting)
        for name, value in setting.items():
            assert getattr(contender, name) == value
    losses = [{"loss_probability": p} for p in (0, 0.5)]
    assert found["local_only"] == [{}]
    assert found["dpsgd"] == [{"local_steps": k} | p for k in (1, 4) for p in losses]
    for name in ("p2p_bn", "fedavg"):
        assert found[name] == [{"local_epochs": e} | p for e in (1, 3) for p in losses]
    settings = parse("--study=ring", "--norm=plain,affine", experiment="next_word")
    compared = study.contenders(settings)
    assert len(compared) == 2 * 8 + 8  # two kinds of batch norm, and networks without
    assert all("norm" not in s for _, s in compared if not s["batch_norm"])


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_longer_local_training_sends_less(run):
    args = ("--methods=dpsgd,p2p_bn", "--local_epochs=1,2", "--local_steps=1,16")
    options = ("--num_rounds=6", "--eval_every=6", "--noscore_before")
    rows = reading.rows(run(*SMALL, *args, *options, experiment="next_word"))
    ends = {(row["scheme"], *row["setting"].values()): row for row in rows}
    assert len(ends) == 4
    for scheme, longer in (("dpsgd", 16), ("p2p_bn", 2)):
        one, many = ends[scheme, 1], ends[scheme, longer]
        assert 0 < many["messages"] <= one["messages"] / 1.5
        assert many["examples"] == pytest.approx(one["examples"], rel=0.4)


def test_irregular_graphs_are_connected_and_differ_for_senders():
    graph = graphs.irregular(30, 3, np.random.default_rng(0))
    facts = analysis.report(graph)
    assert facts["strongly_connected"]
    assert facts["directed"]
    hears = graph.mask.sum(1)
    reaches = np.bincount(graph.neighbor[graph.mask], minlength=30)
    assert hears.min() >= 1
    assert reaches.min() >= 1
    assert len(set(hears.tolist())) > 2
    assert (hears != reaches).any()
    assert 2 < hears.mean() < 4
    again = graphs.irregular(30, 3, np.random.default_rng(0))
    np.testing.assert_array_equal(graph.neighbor, again.neighbor)


def test_runs_have_other_users_and_the_same_shapes(parse):
    settings = parse(
        *SMALL,
        "--study=scaling",
        "--sizes=6",
        "--first_run=1",
        "--num_runs=2",
        experiment="next_word",
    )
    jobs = study.make_jobs(settings)
    assert [job.run for job in jobs] == [1, 2] * 4
    one, other = (job.make_data() for job in jobs[:2])
    shapes = [jax.tree.map(np.shape, data) for data in (one, other)]
    assert shapes[0] == shapes[1]
    assert one.train.size.tolist() != other.train.size.tolist()
    assert [len(job.make_data().cluster) for job in jobs[::2]] == [6] * 4
    assert jobs[0].program is jobs[1].program


@pytest.mark.parametrize(
    "args, message",
    [
        (("--methods=push",), "need local_only, dpsgd"),
        (("--degree=4",), "0 < degree < 4"),
        (("--dataset=chat",), "Need --data_dir for --dataset=chat"),
        (("--data_dir=x",), "Got --data_dir without --dataset"),
        (("--learning_rate=0",), "need more than 0, got 0"),
        (("--mean_delay=-1",), "need 0 or more, got -1"),
        (("--mean_delay=nan",), "need a finite number, got nan"),
        (("--loss_probability=1",), "need less than 1, got 1"),
        (("--methods=d2", "--loss_probability=0.1"), "d2 corrects with what was sent"),
        (("--methods=dpsgd", "--graph=irregular"), "Need --noscore_before with"),
        (("--graph=irregular", "--nodirected"), "Need directed links for"),
        (("--graph=irregular", "--degree=1"), "Need 1 < degree < 3"),
        (("--norm=batch",), "need plain, affine, got 'batch'"),
        (("--local_epochs=0",), "need 1 or more, got 0"),
        (("--sizes=a",), "need a whole number, got 'a'"),
        (("--max_train=0",), "need 1 or more, got 0"),
        (("--min_train=10000",), "lower the number of agents or runs"),
    ],
)
def test_refusals(run, capsys, tmp_path, args, message):
    with pytest.raises(SystemExit) as exit_info:
        run(*SMALL, *args, workdir="refused", experiment="next_word")
    assert exit_info.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert message in said[-1]
    assert not (tmp_path / "refused").exists()
