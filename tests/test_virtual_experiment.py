"""The experiment of VIRTUAL: its clients, and what is printed beside the paper's."""

import json
from functools import partial

import jax
import numpy as np
import pytest

from experiments.engine import reading
from experiments.virtual import study
from experiments.virtual.data import load_examples, make_data
from p2pjax.datasets.stacking import Examples


@pytest.fixture
def config(parse):
    return partial(parse, experiment="virtual")


@pytest.fixture
def clients():
    """Eight clients with 4, 6, ... 18 examples."""
    user = np.repeat(np.arange(8), np.arange(4, 20, 2)).astype(np.int32)
    x = np.arange(len(user), dtype=np.float32)[:, None]
    return Examples(x, (user % 2).astype(np.int32), user, 2)


def test_a_run_has_the_same_data_in_any_part_of_a_study(config, clients):
    """Whichever clients the other runs draw: widths are those of the largest."""
    args = ("--num_agents=2", "--size=2", "--seed=3")
    drawn = set()
    for run in range(6):
        data = make_data(config(*args), clients, run)
        assert data.train.examples["x"].shape == (2, 14, 1)
        assert data.test.examples["x"].shape == (2, 4, 1)
        sizes = data.train.size + data.test.size
        drawn.add(tuple(sizes.tolist()))
        own = [data.train.examples["x"][n, : data.train.size[n], 0] for n in range(2)]
        tested = [data.test.examples["x"][n, : data.test.size[n], 0] for n in range(2)]
        for n in range(2):
            rows = np.concatenate([own[n], tested[n]]).astype(int)
            assert len(set(rows.tolist())) == sizes[n]
            assert len(np.unique(clients.user[rows])) == 1
    assert len(drawn) > 1


def test_pixels_are_permuted_by_client(config):
    args = ("--num_agents=3", "--size=40")
    permuted, plain = (
        config(*args, f"--study={name}") for name in ("p_mnist", "mnist")
    )
    examples = load_examples(plain, lambda shape: None)
    for run in (0, 1):
        one, other = (make_data(each, examples, run) for each in (plain, permuted))
        assert other.train.size.tolist() == [30] * 3
        np.testing.assert_array_equal(other.cluster, [0, 1, 2])
        x, moved = one.train.examples["x"], other.train.examples["x"]
        assert (x != moved).any()
        pixels = [np.sort(own.reshape(3, 30, -1)) for own in (x, moved)]
        np.testing.assert_array_equal(*pixels)


@pytest.mark.parametrize("dataset", ["embedded", "npz", "public"])
def test_the_papers_numbers_stand_beside_its_own_data_only(
    config, tmp_path, capsys, dataset
):
    rows = [
        {"scheme": name, "setting": {}, "metric": "accuracy", "mean": 0.5, "std": 0.25}
        for name in ("local", "virtual_sync")
    ]
    summary = {"experiment": "virtual", "rows": rows, "environment": {}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    settings = config("--study=har", f"--dataset={dataset}", "--data_dir=har.npz")
    study.print_table(settings, tmp_path)
    head, local, at_once = capsys.readouterr().out.splitlines()
    assert local.split()[:3] == ["local", "0.5000", "(0.2500)"]
    assert at_once.split() == ["virtual_sync", "0.5000", "(0.2500)"]
    is_papers = dataset == "public"
    assert ("paper" in head) == is_papers
    assert ("0.9400 (0.0010)" in local) == is_papers


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_runs_can_start_anywhere_and_fedavg_is_scored_before_averaging(run):
    args = (
        *("--num_agents=3", "--size=8", "--network=100=4=2", "--num_samples=2"),
        *("--epochs=1", "--batch_size=4", "--num_rounds=1", "--agent_loop=0"),
        *("--methods=global,fedavg", "--num_devices=1"),
    )
    both = run(*args, "--num_runs=2", workdir="both", experiment="virtual")
    second = run(*args, "--first_run=1", workdir="second", experiment="virtual")
    rows = reading.rows(second)
    assert rows == [row for row in reading.rows(both) if row["run"] == 1]
    assert ["accuracy_before" in row for row in rows] == [False, True]
