"""The experiment of sums of models: runs, scores before averaging, refusals."""

import jax
import pytest

from experiments.combination.config import SERVED
from experiments.combination.data import digits_data, load_examples
from experiments.combination.study import make_jobs
from experiments.engine import reading

SMALL = ("--max_epochs=2", "--patience=1", "--num_rounds=2", "--eval_every=1")


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_runs_can_start_anywhere_and_fedavg_is_scored_before_averaging(run):
    args = (*SMALL, "--splits=skewed", "--schemes=exponential,fedavg_1,local")
    both = run(*args, "--num_runs=2", workdir="both", experiment="combination")
    second = run(*args, "--first_run=1", workdir="second", experiment="combination")
    rows = reading.rows(second)
    assert rows == [row for row in reading.rows(both) if row["run"] == 1]
    last = {row["scheme"]: row for row in rows}
    when = [
        ("accuracy_before" in row, "accuracy_after" in row) for row in last.values()
    ]
    assert when == [(False, True), (True, True), (False, False)]


def test_hosts_have_equal_parts_of_the_test(parse):
    args = ("--study=digits", "--test_size=50")
    config = parse(*args, experiment="combination")
    examples = load_examples(config)
    data = digits_data(config, examples, 8, 3)
    assert data.test.size.tolist() == [6] * 8
    assert data.valid.size.tolist() == [0] * 8
    stopping = parse(*args, "--stop_after=2", experiment="combination")
    held = digits_data(stopping, examples, 8, 3)
    assert (held.valid.size > 0).all()
    whole = held.valid.size + held.train.size
    assert whole.tolist() == data.train.size.tolist()


def test_training_images_are_a_part_of_all(parse):
    args = ("--study=digits", "--train_size=80")
    config = parse(*args, experiment="combination")
    examples = load_examples(config)
    data, other = (digits_data(config, examples, 4, run) for run in (0, 1))
    assert data.train.size.sum() == other.train.size.sum() == 80
    assert data.test.size.tolist() == [90] * 4
    known = {row.tobytes() for row in examples.x[: len(examples.y) * 4 // 5]}
    found = {row.tobytes() for n in range(4) for row in rows_of(data, n)}
    assert found <= known
    assert found != {row.tobytes() for n in range(4) for row in rows_of(other, n)}


def rows_of(data, agent):
    return data.train.examples["x"][agent, : data.train.size[agent]]


def test_another_table_of_two_classes(parse, caplog):
    config = parse("--dataset=breast_cancer", experiment="combination")
    assert load_examples(config).x.shape == (569, 30)
    with caplog.at_level("INFO", logger="absl"):
        jobs = make_jobs(config)
    assert {job.setting["split"] for job in jobs} == {
        "balanced",
        "unbalanced",
        "skewed",
    }
    data = next(job for job in jobs if job.setting["split"] == "skewed").make_data()
    assert (data.train.size + data.valid.size).tolist() == [124, 182]
    assert "scaled to the 212 positive and 357 negative" in caplog.text


def test_neighbours_of_fedavg_have_rates_of_their_own(parse):
    flags = (f"--schemes=mean,fedavg_5,{','.join(SERVED)}", "--splits=skewed")
    grid = ("--fedavg_rate=0.1,0.2", "--init=shared,own", "--optimizer=adam,sgd")
    jobs = make_jobs(parse(*flags, *grid, experiment="combination"))
    found = {}
    for job in jobs:
        own = {k: v for k, v in job.setting.items() if k != "split"}
        found.setdefault(job.scheme, []).append(own)
    assert len(found["mean"]) == 4 and "fedavg_rate" not in found["mean"][0]
    assert found["fedavg_5"] == [{"optimizer": "adam"}, {"optimizer": "sgd"}]
    for name in SERVED:
        assert found[name] == [{"fedavg_rate": 0.1}, {"fedavg_rate": 0.2}]
    for job in jobs[-2 * len(SERVED) :: 2]:
        algorithm, data = job.program.algorithm, job.make_data()
        assert "5 local epochs" in algorithm.round_is
        state = jax.eval_shape(algorithm.init, job.key, data)
        models = jax.eval_shape(algorithm.models, state)
        values = jax.eval_shape(job.program.evaluate, models, data)
        assert values["accuracy"].shape == (2,)


TEXTS = ("--study=texts", "--hosts=2,3", "--num_words=20", "--units=4", "--min_train=1")


def test_hosts_of_texts_build_with_their_schemes(parse):
    schemes = "--schemes=mean,additive,exponential,local,centralized,fedavg_1"
    jobs = make_jobs(parse(*TEXTS, schemes, experiment="combination"))
    assert len(jobs) == 6 * 2
    for job in jobs[:6]:
        algorithm, data = job.program.algorithm, job.make_data()
        size = 1 if job.scheme == "centralized" else job.setting["hosts"]
        state = jax.eval_shape(algorithm.init, job.key, data)
        models = jax.eval_shape(algorithm.models, state)
        found = jax.eval_shape(job.program.evaluate, models, data)
        assert found["accuracy"].shape == (size,)
        assert (data.valid.size > 0).all()
    # Sums of factors are those of hosts that train until they have converged.
    sums = {job.scheme: job.facts.get("sum_of_factors") for job in jobs[:6]}
    assert sums["additive"] == 3
    assert sums["exponential"] == pytest.approx(2.001, abs=1e-4)


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_hosts_learn_next_words(run):
    args = (*TEXTS, "--schemes=mean", "--hosts=2", "--learning_rate=0.05")
    folder = run(*SMALL, *args, "--num_runs=1", experiment="combination")
    *_, last = reading.rows(folder)
    # No accuracy was asked of the first round, or it would go on for ever.
    assert 1 <= last["epochs"] <= 2
    assert 0 < last["accuracy"] < 1


@pytest.mark.parametrize(
    "args, message",
    [
        (("--schemes=median",), "need mean, size_weighted, additive, exponential"),
        (("--splits=half",), "need balanced, balanced_once, unbalanced, skewed, got"),
        (("--hosts=two",), "flag --hosts=two: need a whole number, got 'two'"),
        (("--hosts=0",), "flag --hosts=0: need 1 or more, got 0"),
        (("--target=1.5",), "flag --target=1.5: need 1 or less, got 1.5"),
        (("--factor_rate=nan",), "need a finite number, got nan"),
        (("--factor_rate=-1",), "need 0 or more, got -1"),
        (("--study=digits", "--train_size=9999"), "at most the 1437 training images"),
        (("--study=texts", "--dataset=digits"), "--dataset=speakers or shakespeare"),
        (
            ("--study=texts", "--activation=sigmoid"),
            "no --activation for --study=texts",
        ),
        (("--study=digits", "--dataset=breast_cancer"), "--dataset=digits or mnist"),
        (("--study=digits", "--hosts=400"), "at least one test example of each agent"),
    ],
)
def test_bad_input_gets_a_sentence(run, tmp_path, capsys, args, message):
    with pytest.raises(SystemExit) as exit_info:
        run(*SMALL, *args, experiment="combination")
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
