"""FedCurv and its relatives: rows, figures, what is refused."""

import re

import jax
import numpy as np
import pytest
from figure_contents import assert_drawn

from experiments.engine import reading
from experiments.fedcurv import study
from experiments.fedcurv.config import PENALISED, WITHOUT_PENALTY

SMALL = ("--train_size=8", "--test_size=8", "--num_rounds=2", "--eval_every=1")


def test_points(run, capsys):
    folder = run(*SMALL, "--strengths=0.5", "--before_averaging", experiment="fedcurv")
    rows = reading.rows(folder)
    assert [(r["scheme"], r["setting"], r["round"]) for r in rows] == [
        (scheme, {"strength": strength}, number)
        for scheme, strength in (("fedavg", 0), ("fedcurv", 0.5))
        for number in (1, 2)
    ]
    size = 2 * 16 + 16 + 16 * 4 + 4
    assert [row["bytes"] for row in rows] == [
        4 * size * parts * number for parts in (1, 2) for number in (1, 2)
    ]
    assert rows[-1]["bytes_down"] == 4 * size * 3 * 2
    # Before the averaging machines differ, and none was penalised at first.
    assert rows[0]["agent_accuracy"] == rows[2]["agent_accuracy"]
    assert rows[0]["loss"] == pytest.approx(rows[2]["loss"], abs=1e-6)
    assert rows[1]["loss"] != rows[3]["loss"]
    assert all(row["accuracy"] == row["accuracy_before"] for row in rows)
    shown = ("rounds", "fedavg 0", "fedcurv 0.5")
    assert_drawn(folder, "curves_by_round", *shown, num_lines=2)
    assert "fedcurv 0.5" in capsys.readouterr().out


def test_texts(run):
    folder = run(
        *SMALL[2:],
        "--study=texts",
        "--num_dims=8",
        "--num_epochs=1",
        "--methods=fedper",
        "--first_run=4",
        experiment="fedcurv",
    )
    (_, last) = reading.rows(folder)
    assert last["scheme"] == "fedper"
    assert last["run"] == 4
    assert last["bytes"] == 2 * 4 * (8 * 64 + 64)
    assert len(last["agent_accuracy"]) == 4
    assert last["accuracy"] == last["accuracy_after"]
    assert last.keys() >= {"accuracy_before"}


@pytest.mark.parametrize(
    "flags", [(), ("--noscore_before",), ("--noscore_before", "--before_averaging")]
)
def test_every_method_builds(parse, flags):
    every = (*WITHOUT_PENALTY, *PENALISED)
    config = parse(
        *SMALL,
        f"--methods={','.join(every)}",
        "--strengths=0.5,2",
        *flags,
        experiment="fedcurv",
    )
    jobs = study.make_jobs(config)
    expected = [(name, 0) for name in WITHOUT_PENALTY]
    expected += [(name, strength) for name in PENALISED for strength in (0.5, 2)]
    assert [(job.scheme, job.setting["strength"]) for job in jobs] == expected
    for job in jobs:
        data, algorithm = job.make_data(), job.program.algorithm
        state = jax.eval_shape(algorithm.init, job.key, data)
        models = jax.eval_shape(algorithm.models, state)
        found = jax.eval_shape(job.program.evaluate, models, data)
        assert found["accuracy"].shape == (3,)
        # Before an averaging: unless one does without, but where models are at hand
        # anyway, or where the reported models are never averaged.
        has_before = "accuracy_before" in found
        if job.scheme in ("fedcurv", "fedcurv_hessian", "fedcurv_ring", "ewc"):
            assert has_before
        elif job.scheme in ("local_only", "ditto", "majority", "mean_regularized"):
            assert not has_before
        else:
            asked = "--noscore_before" not in flags
            asked |= job.scheme == "fedavg" and "--before_averaging" in flags
            assert has_before == asked


def test_geometries_are_settings_where_there_are_several(parse):
    flags = (*SMALL, "--methods=fedavg", "--geometry=square,star")
    jobs = study.make_jobs(parse(*flags, experiment="fedcurv"))
    assert [job.setting["geometry"] for job in jobs] == ["square", "star"]
    square, star = (job.make_data().train.examples["y"] for job in jobs)
    assert [sorted(set(own)) for own in square.tolist()] == [[0, 1], [1, 2], [2, 3]]
    assert [sorted(set(own)) for own in star.tolist()] == [[0, 1], [0, 2], [0, 3]]
    assert jobs[0].program is jobs[1].program  # compiled once


def test_the_commonest_label_has_a_row(run):
    methods = "--methods=majority,local_only"
    folder = run(*SMALL, methods, "--geometry=square,line", experiment="fedcurv")
    rows = reading.rows(folder)
    said = [row for row in rows if row["scheme"] == "majority"]
    assert len(said) == 4
    for (
        row
    ) in said:  # two labels of its own are as common: one is in a quarter of tests
        assert row["agent_accuracy"] == [0.25] * 3
        assert row["balanced_accuracy"] == 0.25
        assert row["worst_class_accuracy"] == 0
        assert row["bytes"] == row["steps"] == 0
    assert {row["setting"]["geometry"] for row in rows} == {"square", "line"}


def test_runs_have_data_of_their_own_number(parse):
    config = parse(*SMALL, "--first_run=1", experiment="fedcurv")
    later = study.make_jobs(config)[0]
    first, second = study.make_jobs(
        parse(*SMALL, "--num_runs=2", experiment="fedcurv")
    )[:2]
    assert (later.run, first.run, second.run) == (1, 0, 1)
    x, before, same = (
        job.make_data().train.examples["x"] for job in (later, first, second)
    )
    np.testing.assert_array_equal(x, same)
    assert (x != before).any()


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--methods=fedsgd",), "need local_only, .* fedper, .* got 'fedsgd'"),
        (("--strengths=much",), "--strengths=much: need a number, got 'much'"),
        (("--strengths=-1",), "need 0 or more, got -1"),
        (("--strengths=nan",), "need a finite number"),
        (("--tasks=SST",), "need MR, CR, SUBJ, MPQA, got 'SST'"),
        (("--dataset=senteval",), "--study=texts for --dataset=senteval, got points"),
        (("--study=texts", "--dataset=points"), "Need --study=points for"),
        (("--study=texts", "--dataset=senteval"), "Need --data_dir for --dataset="),
        (("--train_size=7",), "multiple of 2 training points"),
        (("--geometry=cube",), "need square, diagonals, star, line, got 'cube'"),
    ],
)
def test_refusals(run, capsys, flags, message):
    with pytest.raises(SystemExit) as exit_info:
        run(*SMALL, *flags, experiment="fedcurv")
    assert exit_info.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert re.search(message, said)
