"""Data from everywhere: own arrays, TensorFlow Datasets, sqlite files of TFF."""

import experiment_modules
import jax
import numpy as np
import pytest
from slow_cases import marked
from sqlite_files import example, write_sqlite

from experiments.engine import reading
from experiments.engine.config import describe

ONE_ROUND = ("--num_rounds=1", "--eval_every=1", "--batch_size=5")
AVERAGING = (*ONE_ROUND, "--num_agents=2", "--levels=50", "--train_size=10")
# A few agents, small networks, and the flags that say how much data each has.
SMALL = {
    "femnist": (*AVERAGING, "--test_size=5"),
    "mnist": (*AVERAGING, "--test_size=5", "--num_permuted=1", "--values=5"),
    "vsn": (*AVERAGING, "--test_size=5"),
    "connections": (
        *ONE_ROUND,
        "--num_agents=4",
        "--methods=sparse",
        "--study=rotation",
        "--num_clusters=2",
        "--hidden=4",
        "--degree=1",
    ),
    "combination": (
        *ONE_ROUND,
        "--study=digits",
        "--hosts=2",
        "--schemes=mean",
        "--network=mlp",
    ),
    "virtual": (
        *ONE_ROUND,
        "--num_agents=2",
        "--size=12",
        "--epochs=1",
        "--num_samples=1",
        "--methods=fedavg",
    ),
    "compare": (*ONE_ROUND, "--num_agents=2", "--hidden=4", "--methods=local_only"),
    "robustness": (
        *ONE_ROUND,
        "--study=dumbbell",
        "--num_agents=4",
        "--hidden=4",
        "--test_size=20",
        "--rules=mean",
        "--splits=iid",
    ),
    "protocols": (
        *ONE_ROUND,
        "--study=heterogeneity",
        "--num_agents=4",
        "--hidden=4",
        "--split=dirichlet",
        "--alphas=10",
        "--methods=dpsgd",
        "--graphs=ring",
    ),
    "heterogeneity": ("--num_agents=3",),
    "fedcurv": (*ONE_ROUND, "--study=examples", "--methods=fedavg,majority"),
    "levels": (
        *ONE_ROUND,
        "--num_agents=2",
        "--channels=2",
        "--hidden=4",
        "--levels=50",
        "--methods=local_only",
    ),
}
OF_IMAGES = (
    "mnist",
    "connections",
    "compare",
    "combination",
    "virtual",
    "robustness",
    "protocols",
    "heterogeneity",
)


def check_rows(folder):
    """There are some, with numbers: losses, or divergences where nothing is trained."""
    found = [row.get("loss", row.get("jsd")) for row in reading.rows(folder)]
    assert found and np.isfinite(np.asarray(found, float)).all()


def test_all_who_can_take_own_examples_are_tried():
    """Texts, tasks of several data sets and generated vectors are no such examples."""
    others = {"associative", "multi_task", "next_word"}
    assert {*SMALL} == {*experiment_modules.NAMES} - others
    for name in SMALL:
        assert "npz" in describe(experiment_modules.EXPERIMENTS[name].config), name


def layout(experiment, num_inputs, num_classes):
    """Of experiments that are told their network."""
    if experiment in ("femnist", "mnist", "vsn"):
        return (f"--network={num_inputs}=4={num_classes}",)
    if experiment == "virtual":
        return ("--study=mnist", f"--network={num_inputs}=4={num_classes}")
    return ()


@pytest.mark.parametrize(
    "experiment",
    marked(
        SMALL,
        "connections",
        "combination",
        "levels",
        "robustness",
        "virtual",
        "protocols",
        "fedcurv",
    ),
)
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_own_npz(run, tmp_path, experiment):
    """Images with names of users and of classes."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 4
    np.savez(
        tmp_path / "mine.npz",
        x=rng.integers(0, 255, (120, 8, 8)).astype(np.uint8),
        y=np.array(["ash", "birch", "cedar", "elm"])[y],
        user=np.array(["ann", "bob", "cleo", "dora"])[np.arange(120) // 30],
    )
    folder = run(
        *SMALL[experiment],
        *layout(experiment, 64, 4),
        "--dataset=npz",
        f"--data_dir={tmp_path / 'mine.npz'}",
        experiment=experiment,
    )
    check_rows(folder)


@pytest.mark.parametrize("experiment", marked(OF_IMAGES, *OF_IMAGES[1:]))
def test_tensorflow_datasets(run, tmp_path, experiment):
    """Mocked images; the flag alone says which data set it is."""
    tfds = pytest.importorskip("tensorflow_datasets")
    with tfds.testing.mock_data(num_examples=300):
        folder = run(
            *SMALL[experiment],
            *layout(experiment, 784, 10),
            "--dataset=tfds:mnist",
            f"--data_dir={tmp_path}",
            "--download",
            experiment=experiment,
        )
    check_rows(folder)


def test_data_without_users_is_refused_where_users_are_agents(run, tmp_path, capsys):
    tfds = pytest.importorskip("tensorflow_datasets")
    with (
        tfds.testing.mock_data(num_examples=60),
        pytest.raises(SystemExit) as exit_info,
    ):
        folder = f"--data_dir={tmp_path}"
        run(*SMALL["femnist"], "--dataset=tfds:mnist", folder, "--download")
    assert exit_info.value.code == 2
    assert "at least 2 users are needed" in capsys.readouterr().err


@pytest.mark.parametrize("experiment", ["femnist", "vsn", "fedcurv", "levels"])
def test_own_examples_without_users_are_refused_there(
    run, tmp_path, capsys, experiment
):
    x = np.zeros((40, 8, 8), np.uint8)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(40) % 4)
    args = (*SMALL[experiment], *layout(experiment, 64, 4), "--dataset=npz")
    with pytest.raises(SystemExit):
        run(*args, f"--data_dir={tmp_path / 'mine.npz'}", experiment=experiment)
    assert "at least 2 users are needed, the people" in capsys.readouterr().err


@pytest.mark.parametrize("experiment", marked(["femnist", "compare"], "compare"))
def test_sqlite_files_of_tensorflow_federated(run, tmp_path, experiment):
    rng = np.random.default_rng(0)
    rows = [
        (
            "train" if number % 4 else "test",
            f"writer_{number % 3}",
            example(
                pixels=rng.uniform(size=784).astype(float).tolist(), label=number % 10
            ),
        )
        for number in range(90)
    ]
    path = write_sqlite(tmp_path / "emnist.sqlite", rows)
    folder = run(
        *SMALL[experiment],
        *layout(experiment, 784, 10),
        "--dataset=tff",
        f"--data_dir={path}",
        experiment=experiment,
    )
    check_rows(folder)


@pytest.mark.parametrize("experiment", list(SMALL))
def test_unknown_data_sets_are_refused(run, tmp_path, capsys, experiment):
    with pytest.raises(SystemExit) as exit_info:
        run(*SMALL[experiment], "--dataset=imagenet", experiment=experiment)
    assert exit_info.value.code == 2
    said = capsys.readouterr().err
    assert "imagenet" in said and said.count("\n") == 1
    assert not (tmp_path / "run").exists()
