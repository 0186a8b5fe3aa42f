"""The experiment of VIRTUAL: its clients, and what is printed beside the paper's."""

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.analysis.chosen import print_chosen
from experiments.engine import reading
from experiments.virtual import data as virtual_data
from experiments.virtual import results, study
from experiments.virtual.config import CONTROLS, METHODS, RELATIVES
from experiments.virtual.data import load_examples, make_data
from experiments.virtual.design import FACTORS, FLAGS, choices_of
from experiments.virtual.methods import _with_early
from p2pjax.datasets.loaders.digits import load as digits
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError


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
    assert [len(row["class_accuracy"]) for row in rows] == [2, 2]


TINY = (
    *("--num_agents=3", "--size=8", "--network=100=4=2", "--num_samples=2"),
    *("--epochs=1", "--batch_size=4", "--num_rounds=1", "--agent_loop=0"),
    "--num_devices=1",
)


TINY_DIGITS = (
    *(flag for flag in TINY if not flag.startswith("--network")),
    "--network=64=4=10",
)


def test_a_design_is_of_what_means_something_to_a_method(config):
    flags = (
        "--initial_stddev=0.05,0.2",
        "--gate=0.1,1",
        "--order=fixed,random",
        "--prior_mode=once,paper,release",
        "--largest_start=0.99",
        "--epochs=1,2",
    )
    found = {
        name: [setting for setting, _ in choices_of(config(*flags), name)]
        for name in FACTORS
    }
    assert found["fedavg"] == found["ditto"] == [{"epochs": 1}, {"epochs": 2}]
    assert found["local"][::2] == [
        {"initial_stddev": stddev, "epochs": 1} for stddev in (0.05, 0.2)
    ]
    assert len(found["frozen_server"]) == 2 * 2 * 2
    assert len(found["virtual_sync"]) == 2 * 2 * 3 * 2
    assert len(found["virtual"]) == 2 * 2 * 3 * 2 * 2
    assert all("largest_start" not in setting for setting in found["virtual"])
    # Without several values rows say what they always said.
    assert choices_of(config(), "virtual")[0][0] == {}


def test_rates_and_steps_are_factors(config):
    flags = config("--rates=1e-3,1e-2", "--epochs=1,2")
    found = choices_of(flags, "virtual")
    assert [setting for setting, _ in found] == [
        {"rate": rate, "epochs": epochs} for rate in (1e-3, 1e-2) for epochs in (1, 2)
    ]
    assert [(c.rate, c.epochs) for _, c in found][:2] == [(1e-3, 1), (1e-3, 2)]
    (_, usual), (_, given) = (
        choices_of(config(*args), "local")[0] for args in ((), ("--learning_rate=0.5",))
    )
    assert (usual.rate, given.rate) == (1e-3, 0.5)
    # As many steps as epochs say, of a method of either kind.
    jobs = study.make_jobs(config(*TINY, "--methods=fedavg,virtual", "--epochs=2,4"))
    two, four = (job.program.algorithm for job in jobs[2:])
    assert "2 local epochs" in two.round_is and "4 local epochs" in four.round_is
    assert jobs[0].program.algorithm.round_is != jobs[1].program.algorithm.round_is


def test_all_relatives_take_as_many_passes_and_their_own_rate(config):
    served = ("fedavg", *RELATIVES)
    flags = (*TINY, f"--methods={','.join(served)}", "--epochs=5")
    for name in served:
        found = choices_of(config(*flags, "--fedavg_rate=0.1,0.2"), name)
        assert [setting for setting, _ in found] == [
            {"fedavg_rate": 0.1},
            {"fedavg_rate": 0.2},
        ]
    rounds = {
        job.scheme: job.program.algorithm.round_is
        for job in study.make_jobs(config(*flags))
    }
    # One of three clients in a round, or all.
    assert rounds.pop("mean_regularized").startswith("5 times")
    assert all(said.startswith("15 times") for said in rounds.values())


def test_runs_that_choose_do_not_judge(parse):
    """Of the settings that are judged and of those that are chosen from."""
    folder = Path(study.__file__).parent / "flags"
    runs = {
        path.stem: set(parse(f"--flagfile={path}", experiment="virtual").runs)
        for kind in ("design", "rates", "informed")
        for path in folder.glob(f"{kind}*.flags")
    }
    chosen = [own for name, own in runs.items() if not name.startswith("informed")]
    judged = [own for name, own in runs.items() if name.startswith("informed")]
    assert len(chosen) >= 3 + 5 and len(judged) == 5
    assert min(map(len, (*chosen, *judged))) >= 3
    assert not set().union(*chosen) & set().union(*judged)


def test_what_a_design_has_chosen_is_printed_as_flags(tmp_path, capsys):
    rows = [
        {"scheme": name, "setting": setting, "metric": "accuracy", "mean": mean}
        for name, setting, mean in (
            ("virtual", {"study": "mnist", "rate": 0.01, "gate": 1.0}, 0.5),
            ("virtual", {"study": "mnist", "rate": 0.1, "gate": 0.1}, 0.75),
            ("local", {"study": "mnist"}, 0.9),
        )
    ]
    summary = {"experiment": "virtual", "rows": rows, "environment": {}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    print_chosen(tmp_path, FLAGS)
    assert capsys.readouterr().out == (
        "virtual: chosen by accuracy, --rates=0.1 --gate=0.1\n"
    )


def test_every_method_builds(config):
    every = (*METHODS, *CONTROLS, *RELATIVES)
    jobs = study.make_jobs(config(*TINY, f"--methods={','.join(every)}"))
    assert [job.scheme for job in jobs] == list(every)
    assert {*FACTORS} == {*every}
    for job in jobs:
        data, algorithm = job.make_data(), job.program.algorithm
        state = jax.eval_shape(algorithm.init, job.key, data)
        models = jax.eval_shape(algorithm.models, state)
        found = jax.eval_shape(job.program.evaluate, models, data)
        assert found["accuracy"].shape == (3,)
        in_turn = job.scheme in ("virtual", "virtual_sync")
        assert ("factor_precision" in found) == in_turn
        has_columns = in_turn or job.scheme in CONTROLS
        assert ("server_stddev" in found) == ("gate" in found) == has_columns
        is_bayesian = has_columns or job.scheme in ("global", "local")
        assert ("client_divergence" in found) == is_bayesian
        # Of clients in a fixed order, how much is forgotten of the first of them.
        assert ("early_accuracy" in found) == (job.scheme == "virtual")
        assert ("early_accuracy_before" in found) == (job.scheme == "virtual")
        scored = in_turn or job.scheme in (
            *("fedavg", "fedprox", "fedper"),
            *("scaffold", "ewc"),
        )
        assert ("accuracy_before" in found) == scored


def test_early_clients_are_the_first_half_of_a_pass(config):
    own = {"accuracy": jnp.array([0.5, 0.25, 1.0, 0.0, 0.75]), "accuracy_before": None}
    own["accuracy_before"] = own["accuracy"] + 0.125
    found = _with_early(lambda models, data: own)(None, None)
    assert found["early_accuracy"].tolist() == [0.375] * 5
    assert found["early_accuracy_before"].tolist() == [0.5] * 5
    assert own.keys() < found.keys()


def test_steps_of_the_source_are_in_rows_of_its_data_only(config, monkeypatch):
    monkeypatch.setattr(virtual_data, "load_examples", lambda *_: digits())
    facts = [
        study.make_jobs(config(*flags, "--study=mnist", "--methods=fedavg,virtual"))
        for flags in (TINY_DIGITS, (*TINY_DIGITS, "--dataset=public"))
    ]
    assert [[dict(job.facts) for job in jobs] for jobs in facts] == [
        [{}, {}],
        [{}, {"source_steps": 5400}],
    ]


CONVOLUTIONS = ("--kind=cnn", "--channels=2,3", "--units=4", "--study=femnist")
GRU = ("--kind=gru", "--units=3", "--num_words=20", "--study=shakespeare")
UNSIZED = tuple(flag for flag in TINY if not flag.startswith("--network"))


@pytest.mark.parametrize("kind", [CONVOLUTIONS, GRU], ids=["cnn", "gru"])
def test_other_kinds_of_networks_build(config, kind):
    every = ("global", "frozen_server", "fedper", "virtual")
    jobs = study.make_jobs(config(*UNSIZED, *kind, f"--methods={','.join(every)}"))
    assert [job.scheme for job in jobs] == list(every)
    for job in jobs:
        data, algorithm = job.make_data(), job.program.algorithm
        assert data.train.size.shape == (3,)
        state = jax.eval_shape(algorithm.init, job.key, data)
        models = jax.eval_shape(algorithm.models, state)
        found = jax.eval_shape(job.program.evaluate, models, data)
        assert found["accuracy"].shape == (3,)
        has_columns = job.scheme in ("frozen_server", "virtual")
        assert ("server_stddev" in found) == ("gate" in found) == has_columns


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--kind=gru",), "--kind=gru for --study=shakespeare and for no other"),
        (("--study=shakespeare",), "and for no other, got --kind=mlp"),
        ((*CONVOLUTIONS, "--network=784=9=62"), "no --network and no --same_depth"),
        ((*GRU, "--dataset=npz"), "--dataset=embedded or public for --study=shak"),
        (("--largest_start=1",), "largest_start between 0 and 1, got 1.0"),
        (("--initial_stddev=0",), "need more than 0, got 0"),
        (
            ("--rates=0.1", "--learning_rate=0.1"),
            "--rates or --learning_rate, got both",
        ),
        (("--order=backwards",), "need fixed, random, got 'backwards'"),
        (("--methods=local_columns", "--network=100=2"), "a hidden layer for clients"),
    ],
)
def test_refusals(config, flags, message):
    with pytest.raises(InputError, match=message):
        study.make_jobs(config(*TINY, *flags))


def test_steps_of_the_authors_code_stand_beside_ours(config, tmp_path, capsys):
    names = (("accuracy", 0.5), ("steps", 720), ("server_stddev", 0.04))
    names += (("server_stddev_low", 0.03), ("server_stddev_high", 0.05))
    rows = [
        {"scheme": "virtual", "setting": {}, "metric": name, "mean": mean, "std": 0.25}
        for name, mean in names
    ]
    summary = {"experiment": "virtual", "rows": rows, "environment": {}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    settings = config("--study=mnist", "--dataset=public", "--data_dir=mnist.npz")
    results.print_table(settings, tmp_path)
    _, line = capsys.readouterr().out.splitlines()
    assert line.split() == [
        *("virtual", "0.5000", "(0.2500)", "720", "0.9666", "(0.0017)", "5400")
    ]
    results.print_observed(tmp_path)
    head, line = capsys.readouterr().out.splitlines()
    assert "server deviation" in head
    assert line == "virtual        0.0400 (0.0300 to 0.0500)"


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_rows_say_what_posteriors_have_learned(run):
    folder = run(
        *TINY,
        "--methods=frozen_server,virtual",
        "--initial_stddev=0.3",
        "--order=fixed,random",
        experiment="virtual",
    )
    frozen, *refined = reading.rows(folder)
    # A server that stays as it was drawn is as wide as it began, everywhere.
    assert frozen["server_stddev_low"] == pytest.approx(0.3, abs=1e-5)
    assert frozen["server_stddev_high"] == pytest.approx(0.3, abs=1e-5)
    assert frozen["client_stddev"] != pytest.approx(0.3, abs=1e-5)
    assert [row["setting"]["order"] for row in refined] == ["fixed", "random"]
    # No client comes first in each pass where their order is drawn.
    assert ["early_accuracy_before" in row for row in refined] == [True, False]
    for row in refined:
        assert 0 < row["server_stddev_low"] <= row["server_stddev_high"] < 1
        assert row["factor_precision"] > 0
        assert row["cavity_divergence"] > 0
        assert row.keys() >= {"accuracy_before", "accuracy_after", "gate"}
