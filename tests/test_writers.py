"""Rows in TensorBoard and in Weights & Biases."""

import sys
from types import ModuleType

import pytest
from toy_jobs import toy_jobs

from experiments.engine import reading, runner, writers

ARGS = ("--num_rounds=3", "--eval_every=2", "--num_devices=1")


@pytest.fixture
def run_toys(parse, tmp_path):
    """Runs jobs that are made of nothing; returns the run folder."""

    def run(*args, num_runs=2):
        folder = f"--workdir={tmp_path / 'run'}"
        config = parse(*ARGS, folder, f"--num_runs={num_runs}", *args)
        jobs = toy_jobs(config, ("near",))
        return runner.run_jobs(config, "toys", jobs, ("accuracy",))

    return run


def test_scalars_of_a_row():
    row = {"scheme": "near", "setting": {"k": 1}, "run": 0, "round": 2}
    row |= {"loss": 0.5, "messages": 3, "in_cluster": None, "agent_accuracy": [1.0]}
    assert writers.scalars(row) == {"loss": 0.5, "messages": 3}
    odd = {"scheme": "a/b: c", "setting": {"x": "y z", "n": [1]}, "run": 0}
    assert writers.run_name(odd) == "a_b__c-x=y_z-n=_1_-run=0"


@pytest.mark.parametrize("at_once", [1, 2])
def test_tensorboard_has_every_scalar_of_every_row(run_toys, at_once):
    pytest.importorskip("tensorboardX", reason="the tensorboard extra is missing")
    folder = run_toys("--tensorboard", f"--runs_at_once={at_once}")
    for row in reading.rows(folder):
        (path,) = (folder / "tensorboard" / writers.run_name(row)).iterdir()
        found = dict(scalars_of(path))
        for name, value in writers.scalars(row).items():
            assert found[name, row["round"]] == pytest.approx(value, rel=1e-6)
    assert len([*(folder / "tensorboard").iterdir()]) == 2


def scalars_of(path):
    """((tag, step), value) of every scalar in an event file."""
    import struct

    from tensorboardX.proto.event_pb2 import Event

    data = path.read_bytes()
    while data:
        (size,) = struct.unpack("<Q", data[:8])  # then a checksum of four bytes
        event = Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]
        for value in event.summary.value:
            yield (value.tag, event.step), value.simple_value


class FakeRun:
    def __init__(self, options):
        self.options, self.rows, self.is_finished = options, [], False

    def log(self, values, step):
        assert not self.is_finished
        self.rows.append((step, values))

    def finish(self):
        self.is_finished = True


@pytest.fixture
def fake_wandb(monkeypatch):
    runs = []
    module = ModuleType("wandb")
    module.init = lambda **options: runs.append(FakeRun(options)) or runs[-1]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return runs


@pytest.mark.parametrize("at_once", [1, 2])
def test_wandb_gets_every_row_and_stays_offline(run_toys, fake_wandb, at_once):
    folder = run_toys("--wandb", f"--runs_at_once={at_once}")
    rows = reading.rows(folder)
    for number, run in enumerate(fake_wandb):
        own = [row for row in rows if row["run"] == number]
        assert run.rows == [(row["round"], writers.scalars(row)) for row in own]
        assert run.is_finished
        assert run.options["mode"] == "offline"
        assert run.options["resume"] is None
        assert run.options["dir"] == str(folder)
        assert run.options["config"] == {"scheme": "near", "of": "near", "run": number}
    assert len(fake_wandb) == 2
    assert len({run.options["id"] for run in fake_wandb}) == 2


def test_wandb_goes_where_the_environment_says(run_toys, fake_wandb, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    run_toys("--wandb", num_runs=1)
    (run,) = fake_wandb
    assert run.options["mode"] == "online"
    assert run.options["resume"] == "allow"
    assert run.options["project"] == "mine"


def test_runs_are_closed_when_something_fails(run_toys, fake_wandb, monkeypatch):
    def fail(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Progress, "advance", fail)
    with pytest.raises(SystemExit):
        run_toys("--wandb")
    assert [run.is_finished for run in fake_wandb] == [True]


@pytest.mark.parametrize(
    "flag, module", [("tensorboard", "tensorboardX"), ("wandb", "wandb")]
)
def test_missing_writers_are_named(run_toys, monkeypatch, tmp_path, flag, module):
    monkeypatch.setitem(sys.modules, module, None)
    message = rf"Need {module} for --{flag}, got none: pip install 'p2pjax\[{flag}\]'"
    with pytest.raises(writers.InputError, match=message):
        run_toys(f"--{flag}")
    assert not (tmp_path / "run").exists()
