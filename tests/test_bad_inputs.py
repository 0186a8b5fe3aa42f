"""A campaign of bad inputs: status 2, one sentence, nothing written.

`pytest -m slow -n 0 -rP tests/test_bad_inputs.py` prints how many were drawn.
"""

import collections
import itertools
import logging
import runpy
import shutil
import sys
import time

import bad_inputs
import jax
import numpy as np
import pytest
from experiment_modules import EXPERIMENTS
from toy_jobs import toy_jobs

from experiments.engine import command, config, runner

KINDS = {
    "flags": (bad_inputs.flags, 300),
    "data files": (bad_inputs.data_files, 150),
    "work folders": (bad_inputs.work_folders, 80),
    "run folders": (bad_inputs.run_folders, 80),
}


def listing(folder):
    """Everything in a folder, without following links or opening pipes."""
    return {
        str(path.relative_to(folder)): (
            path.read_bytes() if path.is_file() and not path.is_symlink() else None
        )
        for path in folder.rglob("*")
    }


def call(program, args):
    """Starts a program inside this process, as its `__main__` does."""
    if program in EXPERIMENTS:
        experiment = EXPERIMENTS[program]

        def start():
            settled = command.settle(config.parse(experiment.config, args))
            command.run(experiment, settled)

        command.guarded(start)
    else:
        before, sys.argv = sys.argv, [program, *args]
        try:
            runpy.run_module(f"experiments.{program}", run_name="__main__")
        finally:
            sys.argv = before


def refusal(case, capsys):
    """What is wrong with how a case was refused; None if nothing is."""
    logging.getLogger("absl").handlers.clear()  # of programs before
    capsys.readouterr()
    try:
        call(case.program, case.args)
    except SystemExit as ended:
        status = ended.code
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    else:
        return "was accepted"
    said = capsys.readouterr().err.strip()
    if status != 2:
        return f"status {status}: {said}"
    if "\n" in said or len(said) < 20:
        return f"not one sentence: {said}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@jax.numpy_dtype_promotion("standard")
def test_bad_inputs_are_refused_in_a_sentence(tmp_path, capsys, monkeypatch, kind):
    draw, number = KINDS[kind]
    monkeypatch.chdir(tmp_path)  # what is written by default would be seen
    wrong, programs, slowest = {}, collections.Counter(), (0.0, "")
    for count, drawn in enumerate(
        itertools.islice(draw(np.random.default_rng(0)), number)
    ):
        folder = tmp_path / f"case_{count}"
        folder.mkdir()
        case = drawn(folder)
        before, begin = listing(tmp_path), time.monotonic()
        found = refusal(case, capsys)
        slowest = max(slowest, (time.monotonic() - begin, case.what))
        if found is None and listing(tmp_path) != before:
            found = f"wrote {sorted(set(listing(tmp_path)) ^ set(before))}"
        if found is not None:
            wrong[case.what] = found[:300]
        programs[case.program] += 1
        shutil.rmtree(folder)
    with capsys.disabled():
        print(f"\n{kind}: {number} drawn over {len(programs)} programs, ", end="")
        print(f"{len(wrong)} not refused as they should be; slowest {slowest}")
    assert slowest[0] < 5, slowest
    assert not wrong, "\n".join(f"{what}: {found}" for what, found in wrong.items())


DAMAGED_CHECKPOINTS = 80
TOYS = ("--num_rounds=5", "--eval_every=1", "--checkpoint_every=2", "--num_devices=2")


def damage(path, rng):
    """Cuts a file, changes or adds bytes, empties it, or takes it away."""
    whole = path.read_bytes()
    place = int(rng.integers(len(whole) + 1))
    how = rng.choice(["cut", "change", "add", "empty", "remove"])
    if how == "remove":
        path.unlink()
    elif how == "cut":
        path.write_bytes(whole[:place])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        rest = whole[place + (how == "change") :]
        path.write_bytes(whole[:place] + rng.bytes(1) + rest)


@pytest.mark.slow
def test_damaged_checkpoints_are_refused_or_go_back(tmp_path, capsys, parse):
    """Either the run ends with the same bytes, or it is refused in one sentence."""

    def run(folder, *args):
        settled = parse(*TOYS, f"--workdir={folder}", *args)
        jobs = toy_jobs(settled)
        runner.run_jobs(settled, "toys", jobs, ("accuracy",))

    def refused(folder):
        try:
            command.guarded(lambda: run(folder, "--resume"))
        except SystemExit as ended:
            said = capsys.readouterr().err.strip()
            assert ended.code == 2 and said and "\n" not in said, said
            return True
        return False

    whole = tmp_path / "whole"
    run(whole)
    rows = (whole / "metrics.jsonl").read_bytes()
    stopped = tmp_path / "stopped"  # as if killed before its summary
    shutil.copytree(whole, stopped)
    (stopped / "summary.json").unlink()
    rng = np.random.default_rng(0)
    num_refused = 0
    for count in range(DAMAGED_CHECKPOINTS):
        folder = tmp_path / f"case_{count}"
        shutil.copytree(stopped, folder)
        files = sorted(p for p in folder.rglob("*") if p.is_file())
        kept = [p for p in files if "checkpoints" in p.parts or p.suffix == ".jsonl"]
        for number in rng.choice(len(kept), rng.integers(1, 5), replace=False):
            damage(kept[number], rng)
        capsys.readouterr()
        if refused(folder):
            num_refused += 1
        else:
            assert (folder / "metrics.jsonl").read_bytes() == rows
        shutil.rmtree(folder)
    with capsys.disabled():
        print(f"\ncheckpoints: {DAMAGED_CHECKPOINTS} damaged, {num_refused} refused, ")
        print("the others went back to the checkpoint before and to the same bytes")
    assert 0 < num_refused < DAMAGED_CHECKPOINTS
