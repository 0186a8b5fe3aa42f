"""The experiment of sums of models: runs, scores before averaging, refusals."""

import jax
import pytest

from experiments.combination.data import digits_data, load_examples
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
        (("--study=digits", "--hosts=400"), "at least one test example of each agent"),
    ],
)
def test_bad_input_gets_a_sentence(run, tmp_path, capsys, args, message):
    with pytest.raises(SystemExit) as exit_info:
        run(*SMALL, *args, experiment="combination")
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
