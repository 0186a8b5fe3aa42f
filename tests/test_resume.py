"""A run that was stopped and resumed equals one that never stopped, byte for byte."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
from settings import TINY

from experiments.engine import run_folder, runner
from p2pjax import checkpoint
from p2pjax.training import agent_loop

ROOT = Path(__file__).parents[1]
# Two schemes, two runs of six rounds each: twelve evaluations in all.
ARGS = (
    *TINY,
    "--levels=0,80",
    "--num_runs=2",
    "--num_rounds=6",
    "--eval_every=2",
    "--checkpoint_every=4",
    "--averaging=pairs",
)


@pytest.fixture
def whole(run):
    return (run(*ARGS, workdir="whole") / "metrics.jsonl").read_bytes()


def stop_at(monkeypatch, number, error):
    """Makes the row `number` fail half-written."""
    append, rows = run_folder.append, []

    def failing(folder, name, row):
        if name == "metrics.jsonl":
            rows.append(row)
            if len(rows) == number:
                with (folder / name).open("a") as file:
                    file.write('{"scheme": "lev')
                raise error
        append(folder, name, row)

    monkeypatch.setattr(run_folder, "append", failing)


def resume(run, folder, **options):
    flagfile = f"--flagfile={folder / 'run.flags'}"
    return run(flagfile, "--resume", workdir=folder.name, **options)


@pytest.mark.slow
def test_ctrl_c_leaves_a_resumable_folder(run, whole, monkeypatch, capsys, tmp_path):
    for number in (1, 3, 9):  # before any checkpoint, within a run, in a later scheme
        folder = tmp_path / f"stopped_{number}"
        with monkeypatch.context() as patched:
            stop_at(patched, number, KeyboardInterrupt)
            with pytest.raises(SystemExit) as exit_info:
                run(*ARGS, workdir=folder.name)
        assert exit_info.value.code == 130
        said = capsys.readouterr().err
        assert f"--flagfile={folder}/run.flags --workdir={folder} --resume" in said
        assert not (folder / "summary.json").exists()
        resume(run, folder)
        assert (folder / "metrics.jsonl").read_bytes() == whole
        assert (folder / "summary.json").exists()


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # optax.adam mixes dtypes
def test_an_asynchronous_run_resumes(run, monkeypatch, tmp_path):
    """With messages on their way, frozen agents and clocks of their own."""
    args = (
        "--methods=p2p_bn",
        "--num_agents=4",
        "--num_words=20",
        "--units=4",
        "--degree=2",
        "--mean_delay=0.5",
        "--loss_probability=0.2",
        "--poisson",
        "--num_rounds=6",
        "--eval_every=1",
        "--checkpoint_every=1",
    )
    options = {"experiment": "next_word"}
    whole = run(*args, workdir="whole", **options) / "metrics.jsonl"
    for number in (1, 3, 6):
        folder = tmp_path / f"stopped_{number}"
        with monkeypatch.context() as patched:
            stop_at(patched, number, KeyboardInterrupt)
            with pytest.raises(SystemExit):
                run(*args, workdir=folder.name, **options)
        resume(run, folder, **options)
        assert (folder / "metrics.jsonl").read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_full_disk_says_how_to_go_on(run, whole, monkeypatch, capsys, tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patched:
        save, calls = checkpoint.save, []

        def failing(*args, **kwargs):
            calls.append(None)
            if len(calls) == 3:
                raise full
            save(*args, **kwargs)

        patched.setattr(checkpoint, "save", failing)
        with pytest.raises(SystemExit) as exit_info:
            run(*ARGS)
    assert exit_info.value.code == 2
    assert "No space left on device): make room, then go on" in capsys.readouterr().err
    folder = resume(run, tmp_path / "run")
    assert (folder / "metrics.jsonl").read_bytes() == whole


@pytest.mark.slow
def test_damaged_checkpoint_falls_back_to_the_one_before(
    run, whole, monkeypatch, tmp_path
):
    with monkeypatch.context() as patched:
        stop_at(patched, 9, KeyboardInterrupt)
        with pytest.raises(SystemExit):
            run(*ARGS)
    folder = tmp_path / "run"
    before, last = checkpoint.numbers(folder / "checkpoints")
    (folder / "checkpoints" / str(last) / "position.json").write_text("{")
    jobs_done = []
    last_position = runner._last_position

    def spied(*args):
        jobs_done.append(last_position(*args))
        return jobs_done[-1]

    monkeypatch.setattr(runner, "_last_position", spied)
    resume(run, folder)
    assert jobs_done[0].job * 6 + jobs_done[0].num_rounds == before
    assert (folder / "metrics.jsonl").read_bytes() == whole


@pytest.mark.slow
def test_resuming_a_finished_run_changes_nothing(run, whole):
    folder = resume(run, run(*ARGS))
    assert (folder / "metrics.jsonl").read_bytes() == whole


@pytest.mark.slow
def test_another_number_of_devices_may_go_on(run, whole, caplog):
    folder = run(*ARGS)
    text = (folder / "run.flags").read_text()
    changed = text.replace("--num_devices=4", "--num_devices=2")
    assert changed != text
    (folder / "run.flags").write_text(changed)
    run(f"--flagfile={folder / 'run.flags'}", "--resume", "--num_devices=4")
    assert "another number of devices (--num_devices=2 --num_devices=4)" in caplog.text
    assert (folder / "metrics.jsonl").read_bytes() == whole


def test_resume_refuses_other_flags_and_other_folders(run, capsys, tmp_path):
    folder = run(*TINY, "--levels=0")
    flagfile = f"--flagfile={folder / 'run.flags'}"
    with pytest.raises(SystemExit):
        run(flagfile, "--resume", "--learning_rate=0.2")
    said = capsys.readouterr().err
    assert "these differ: --learning_rate=0.2; pass" in said
    with pytest.raises(SystemExit):
        run(flagfile, "--resume", workdir="nothing")
    assert "Need the work folder of a run for --resume" in capsys.readouterr().err
    with run_folder.locked(folder), pytest.raises(SystemExit):
        resume(run, folder)
    assert "another process runs in" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [1, 4, 8])
def test_killed_process_resumes(run, whole, tmp_path, num_rows):
    """SIGKILL at three different rounds, each in a process of its own."""
    folder = tmp_path / "killed"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "experiments.femnist", f"--workdir={folder}"]
    # What the test process settled on, so that the bytes can be compared.
    settled = [*ARGS, "--num_devices=4", f"--agent_loop={agent_loop.CHUNK}"]
    process = subprocess.Popen(
        [*command, *settled],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    metrics = folder / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count("\n") < num_rows:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(
        [*command, f"--flagfile={folder / 'run.flags'}", "--resume"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert metrics.read_bytes() == whole


def test_a_checkpoint_of_another_state_is_refused(run):
    """As one of an earlier version: nothing is cut, nothing starts anew in silence."""
    args = (*TINY, "--levels=80", "--num_rounds=2", "--checkpoint_every=2")
    folder = run(*args)
    rows = (folder / "metrics.jsonl").read_bytes()
    newest = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    description = newest / "description.json"
    description.write_text(description.read_text().replace("variables", "models"))
    sums = json.loads((newest / "checksums.json").read_text())
    sums["description.json"] = hashlib.sha256(description.read_bytes()).hexdigest()
    (newest / "checksums.json").write_text(json.dumps(sums))
    with pytest.raises(SystemExit) as ended:
        run(*args, "--resume")
    assert ended.value.code == 2
    assert (folder / "metrics.jsonl").read_bytes() == rows
