"""`experiments.levels`: levels of any network against personal models, equal bytes."""

import jax
import pytest

from experiments.engine import reading
from experiments.levels.config import OTHERS
from experiments.levels.study import make_jobs
from p2pjax.types import InputError

IMAGES = (
    "--variant=d",
    "--num_agents=4",
    "--samples=20",
    "--channels=2",
    "--hidden=4",
    "--batch_size=5",
)
TEXTS = (
    "--dataset=speakers",
    "--num_agents=4",
    "--num_words=20",
    "--units=4",
)


@pytest.fixture(scope="module")
def folder(run_once):
    with jax.numpy_dtype_promotion("standard"):  # optax's injected rates
        return run_once(
            *IMAGES,
            "--levels=0,50,100",
            "--num_rounds=2",
            "--eval_every=1",
            experiment="levels",
        )


def test_bytes_of_levels_and_of_other_methods(folder):
    """Those that send whole models pay for them, both ways, all alike."""
    rows = [row for row in reading.rows(folder) if row["round"] == 2]
    found = {row["setting"].get("level", row["scheme"]): row for row in rows}
    assert {*found} == {*OTHERS, 0, 50, 100}
    whole = 2 * 4 * (25 * 2 + 2 + 144 * 2 * 4 + 4 + 4 * 10 + 10)
    for name in ("fedavg", "ditto", 100):
        assert found[name]["bytes"] == found[name]["bytes_down"] == whole
    part = 2 * 4 * (25 + 1 + 144 * 2 + 2 + 2 * 10 + 10)
    assert found[50]["bytes"] == found[50]["bytes_down"] == part
    assert found["fedper"]["bytes"] == whole - 2 * 4 * (4 * 10 + 10)
    for name in ("local_only", 0):
        assert found[name]["bytes"] + found[name].get("bytes_down", 0) == 0
    for row in rows:
        assert 0 <= row["valid_accuracy"] <= 1


def test_compared_at_equal_bytes_and_at_equal_rounds(folder):
    at_bytes, at_rounds = (folder / "comparison.md").read_text().split("\nEach agent ")
    part = 2 * 2 * 4 * (25 + 1 + 144 * 2 + 2 + 2 * 10 + 10)
    assert f"has used at most {part:,} bytes, but for " in at_bytes
    over = at_bytes.partition("but for ")[2].partition(" at the first")[0]
    assert "fedavg" in over and "partial_averaging level 50" not in over
    assert "| partial_averaging level 50 | 0.1 |" in at_bytes
    assert at_rounds.startswith("has used at most 2 rounds; mean")
    for name in ("accuracy_by_bytes.svg", "accuracy_by_round.svg", "report.html"):
        assert (folder / name).exists()


@pytest.mark.parametrize("network", ["gru", "lstm"])
def test_texts(parse, network):
    """A level finds the units of either network, FedPer its last layer."""
    args = (f"--network={network}", "--levels=50", "--methods=fedper")
    one, other = make_jobs(parse(*TEXTS, *args, experiment="levels"))
    assert (one.scheme, other.setting["level"]) == ("fedper", 50)
    data = one.make_data()
    assert data.train.examples["x"].shape[::2] == (4, 10)
    for job in (one, other):
        state = jax.eval_shape(job.program.algorithm.init, job.key, data)
        models = jax.eval_shape(job.program.algorithm.models, state)
        found = jax.eval_shape(job.program.evaluate, models, data)
        assert found["valid_accuracy"].shape == (4,)


def test_rates_share_a_program(parse):
    args = ("--learning_rates=0.1,0.2", "--methods=fedavg", "--levels=50,100")
    jobs = make_jobs(parse(*IMAGES, *args, experiment="levels"))
    assert len(jobs) == 6 and len({job.program for job in jobs}) == 3


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--network=gru",), "Need --network=cnn for --dataset=glyphs, got --network="),
        (("--network=cnn", *TEXTS), "Need --network=gru or lstm for --dataset=speake"),
        (("--data_dir=.",), "add --dataset=femnist or --dataset=shakespeare"),
        (("--levels=101",), "need 100 or less, got 101"),
        (("--dataset=shakespeare",), "Need --data_dir for --dataset=shakespeare"),
        ((*TEXTS, "--min_train=100000"), "users 0 to 3 of those with 100000 or more"),
        (("--channels=2,2,2", "--variant=d"), "positions before convolution 3"),
    ],
)
def test_refusals(parse, args, said):
    with pytest.raises(InputError, match=said):
        make_jobs(parse(*args, experiment="levels"))
