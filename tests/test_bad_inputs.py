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

from experiments.engine import command, config

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
