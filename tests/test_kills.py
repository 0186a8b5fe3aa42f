"""A campaign of kills: at whatever moment, the run goes on to the same bytes.

Every phase of a run is aimed at in turn, at a moment drawn within it, and the table at
the end says what was met: `pytest -m slow -n 0 -rP tests/test_kills.py`.
"""

import collections
import signal
import time
from typing import NamedTuple

import numpy as np
import pytest
from settings import TINY
from test_processes import LONG, ended, start

from experiments.engine import own_files

PHASES = (
    "no folder yet",
    "no row yet",
    "between rows",
    "within a checkpoint",
    "after the summary",
)


class Subject(NamedTuple):
    """A run to be killed."""

    module: str
    args: tuple[str, ...]
    num_processes: int
    num_kills: int


SUBJECTS = {
    "synchronous": Subject(
        "experiments.femnist", (*LONG, "--checkpoint_every=2"), 1, 40
    ),
    "asynchronous": Subject(
        "experiments.next_word",
        (
            "--methods=p2p_bn",
            "--num_agents=4",
            "--num_words=20",
            "--units=4",
            "--degree=2",
            "--mean_delay=0.5",
            "--loss_probability=0.2",
            "--poisson",
            "--num_rounds=12",
            "--eval_every=1",
            "--checkpoint_every=1",
            "--num_devices=2",
        ),
        1,
        40,
    ),
    "two_processes": Subject(
        "experiments.femnist",
        (*TINY, "--levels=80", "--num_rounds=60", "--checkpoint_every=2"),
        2,
        20,
    ),
}
MOST_KILLS = 3  # of one run


def started(subject, folder):
    """The run in this folder, from its start or from where it stands."""
    args = subject.args
    if (folder / "run.flags").exists():
        args = (f"--flagfile={folder / 'run.flags'}", "--resume")
    return start(
        folder, *args, num_processes=subject.num_processes, module=subject.module
    )


def finish(subject, folder):
    """Lets the run come to its end."""
    _, said, statuses = ended(started(subject, folder))
    assert not any(statuses), said


def outcome(folder):
    """All names in a finished folder, and the bytes of what does not tell the time."""
    names = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if "state" not in path.relative_to(folder).parts
    }
    told = ("run.flags", "metrics.jsonl", "links.jsonl", "summary.json")
    return names, {name: (folder / name).read_bytes() for name in told if name in names}


def phase(folder):
    """What the run is doing, as far as its folder tells."""
    if not (folder / "run.flags").exists():
        return "no folder yet"
    if (folder / "summary.json").exists():
        return "after the summary"
    checkpoints = folder / "checkpoints"
    if checkpoints.exists() and any(
        not path.name.isdigit() for path in checkpoints.iterdir()
    ):
        return "within a checkpoint"
    rows = folder / "metrics.jsonl"
    return "between rows" if rows.exists() and rows.stat().st_size else "no row yet"


def wait_for(aim, folder, running, rng):
    """Until a moment of that phase, or until the run is over."""
    if aim == PHASES[0]:
        time.sleep(rng.uniform(0, 5))  # imports, data, compilation
        return
    while phase(folder) != aim and running[0].poll() is None:
        time.sleep(0.001)
    time.sleep(rng.choice([0, 0.01, 0.1]) * rng.uniform())


def kill(subject, folder, aim, victims, rng):
    """Kills processes of a run in that phase; None if the run was over by then."""
    running = started(subject, folder)
    wait_for(aim, folder, running, rng)
    met = phase(folder) if running[0].poll() is None else None
    for number in victims:
        running[number].send_signal(signal.SIGKILL)
    _, said, statuses = ended(running)
    if met is None:
        assert not any(statuses), said
    elif met != PHASES[-1]:  # then the others have ended already
        # What was not killed ends by itself, in one sentence.
        for number in set(range(subject.num_processes)) - set(victims):
            lines = [line for line in said[number].splitlines() if line[:1] != "I"]
            assert statuses[number] != 0 and len(lines) == 1, said
    return met


def check_half_written(folder, flags):
    """What has its name is whole, but for the last row."""
    if (folder / "run.flags").exists():
        assert (folder / "run.flags").read_bytes() == flags
    elif folder.exists():
        assert all(own_files.is_temporary(path.name) for path in folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_killed_runs_go_on_to_the_same_bytes(tmp_path, name):
    subject, whole = SUBJECTS[name], tmp_path / "whole"
    finish(subject, whole)
    expected = outcome(whole)
    rng = np.random.default_rng(0)
    met: collections.Counter[str] = collections.Counter()
    num_started, folder, num_kills = 0, None, 0
    while met.total() < subject.num_kills:
        if folder is None:
            num_started += 1
            assert num_started <= subject.num_kills, met  # a phase that is not met
            folder, num_kills = tmp_path / f"killed_{num_started}", 0
        victims = [range(subject.num_processes), [0], [subject.num_processes - 1]]
        aim = PHASES[met.total() % len(PHASES)]
        found = kill(subject, folder, aim, victims[rng.integers(3)], rng)
        if found is not None:
            met[found] += 1
            num_kills += 1
            check_half_written(folder, expected[1]["run.flags"])
        if found is None or num_kills == MOST_KILLS:
            finish(subject, folder)
            assert outcome(folder) == expected
            folder = None
    if folder is not None:
        finish(subject, folder)
        assert outcome(folder) == expected
    print(f"{name}: {met.total()} kills of {num_started} runs")
    for each in PHASES:
        print(f"  {each}: {met[each]}")
    assert set(met) == set(PHASES)
