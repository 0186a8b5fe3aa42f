"""Runs jobs one after the other: rows, checkpoints, resume, Ctrl-C.

A job is one run of one scheme. Every checkpoint says how long `metrics.jsonl` was, so a
resumed run ends with the bytes of one that never stopped.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from absl import logging

from experiments import common, run_folder
from experiments.run_folder import Row
from p2pjax import InputError, checkpoint, data, metrics, sharding
from p2pjax.algorithms.base import Algorithm
from p2pjax.checkpoint import Checkpoint
from p2pjax.data import World
from p2pjax.simulate import Evaluate, Snapshot, initial_state, simulate


class Program(NamedTuple):
    """A method, ready to run, and how its models are judged."""

    algorithm: Algorithm
    evaluate: Evaluate


class Job(NamedTuple):
    """One run of one scheme."""

    scheme: str
    setting: dict[str, Any]
    run: int
    algorithm: Algorithm
    evaluate: Evaluate  # names an `accuracy` among its values
    make_world: Callable[[], World]
    facts: Mapping[str, float] = MappingProxyType({})  # reported with every evaluation

    @property
    def key(self) -> jax.Array:
        """Runs differ in their key, schemes do not."""
        return run_key(self.run)


def run_key(run: int) -> jax.Array:
    """Of everything random in a run, but for its data."""
    return jax.random.fold_in(jax.random.key(common.SEED.value), run)


class Done(NamedTuple):
    """How far a job has come."""

    num_rounds: int = 0
    messages: float = 0.0  # sent so far, mean over agents
    payload: float = 0.0  # parameters sent so far, mean over agents
    delivered: float = 0.0  # parameters that a server sent so far, mean over agents


def run_jobs(experiment: str, jobs: Sequence[Job], summary: tuple[str, ...]) -> Path:
    """Runs all jobs, or those that are left, and sums up the metrics named.

    Returns:
      The run folder.
    """
    if not jobs:
        raise InputError("Need at least one scheme to run, got none.")
    flags_text, workdir = common.own_flags(), common.WORKDIR.value
    if common.RESUME.value:
        folder = run_folder.reopen(workdir, flags_text)
    else:
        folder = run_folder.create(workdir, experiment, flags_text)
    how_to_resume = (
        f"go on with: python -m experiments.{experiment} "
        f"--flagfile={folder}/run.flags --workdir={folder} --resume"
    )
    with run_folder.locked(folder):
        try:
            _run_left(folder, jobs)
        except KeyboardInterrupt:
            print(f"Stopped; {how_to_resume}", file=sys.stderr)
            sys.exit(130)
        except OSError as error:
            raise InputError(
                f"Could not write to {folder} ({error.strerror}): make room, then "
                f"{how_to_resume}"
            ) from error
        run_folder.summarize(folder, experiment, summary)
    return folder


def _run_left(folder: Path, jobs: Sequence[Job]) -> None:
    num_rounds = common.NUM_ROUNDS.value
    first, done, state = _last_position(folder, jobs)
    progress = common.Progress(
        len(jobs) * num_rounds, first * num_rounds + done.num_rounds
    )
    for number in range(first, len(jobs)):
        job, start = jobs[number], time.monotonic()
        if number == first or job.algorithm is not jobs[number - 1].algorithm:
            progress.say(f"{job.scheme}: compiling")
        world = job.make_world()
        with _devices_of(world):
            for snapshot in simulate(
                job.key,
                job.algorithm,
                world,
                num_rounds,
                eval_every=common.EVAL_EVERY.value,
                evaluate=job.evaluate,
                first_round=done.num_rounds,
                state=state,
            ):
                before, done = done, _advanced(done, snapshot)
                row = _row(job, done, snapshot)
                run_folder.append(folder, "metrics.jsonl", row)
                period = common.CHECKPOINT_EVERY.value
                is_last = done.num_rounds == num_rounds
                if is_last or done.num_rounds // period > before.num_rounds // period:
                    _save(folder, number, done, snapshot.state)
                progress.advance(
                    done.num_rounds - before.num_rounds,
                    f"{job.scheme}, run {job.run}",
                    accuracy=f"{row['accuracy']:.3f}",
                    messages=f"{done.messages:.0f}",
                )
        done, state = Done(), None
        timing = {"scheme": job.scheme, "setting": job.setting, "run": job.run}
        seconds = round(time.monotonic() - start, 3)
        run_folder.append(folder, "timing.jsonl", timing | {"seconds": seconds})
    progress.close()


def _devices_of(world: World) -> AbstractContextManager:
    """Spreads the agents of a world over the devices."""
    num_agents, most = data.num_agents(world), common.NUM_DEVICES.value
    return jax.set_mesh(sharding.agents_mesh(num_agents, most))


def _advanced(done: Done, snapshot: Snapshot) -> Done:
    return Done(
        snapshot.num_rounds,
        done.messages + float(snapshot.info.sent.mean(1).sum()),
        done.payload + float(snapshot.info.payload.mean(1).sum()),
        done.delivered + _delivered(snapshot),
    )


def _delivered(snapshot: Snapshot) -> float:
    delivered = snapshot.info.delivered
    return 0.0 if delivered is None else float(delivered.mean(1).sum())


def _row(job: Job, done: Done, snapshot: Snapshot) -> Row:
    """Values per agent become their mean; accuracy is also kept per agent."""
    size = snapshot.info.sent.shape[1:]  # (N,)
    values = {
        name: value.mean() if value.shape == size else value
        for name, value in snapshot.metrics.items()
    }
    return {
        "scheme": job.scheme,
        "setting": job.setting,
        "run": job.run,
        "round": done.num_rounds,
        **values,
        "train_loss": snapshot.info.train_loss[-1].mean(),
        "messages": done.messages,
        "bytes": done.payload * metrics.BYTES_PER_PARAMETER,
        **_where_any(snapshot, done),
        **job.facts,
        "agent_accuracy": snapshot.metrics["accuracy"],
    }


def _where_any(snapshot: Snapshot, done: Done) -> dict[str, Any]:
    """Simulated time, a server's traffic and passes, where the method has them."""
    info, found = snapshot.info, {}
    if info.time is not None:
        found["time"] = info.time[-1]
    if info.delivered is not None:
        found["bytes_down"] = done.delivered * metrics.BYTES_PER_PARAMETER
    if info.epochs is not None:
        found["epochs"] = info.epochs[-1].mean()
    return found


def _save(folder: Path, job: int, done: Done, state: Any) -> None:
    number = job * common.NUM_ROUNDS.value + done.num_rounds
    size = (folder / "metrics.jsonl").stat().st_size
    position = {"job": job, "done": list(done), "metrics_bytes": size}
    checkpoint.save(folder / "checkpoints", number, Checkpoint(state, position))


def _last_position(folder: Path, jobs: Sequence[Job]) -> tuple[int, Done, Any]:
    """Where to go on: job, how far it is, its state (None at its beginning)."""
    for number in reversed(checkpoint.numbers(folder / "checkpoints")):
        job = (number - 1) // common.NUM_ROUNDS.value
        try:
            if job >= len(jobs):
                raise InputError(f"Checkpoint {number} is of another run.")
            one = jobs[job]
            world = one.make_world()
            with _devices_of(world):
                fresh = initial_state(one.key, one.algorithm, world)
                saved = checkpoint.load(folder / "checkpoints", number, fresh)
            run_folder.cut(folder, "metrics.jsonl", saved.position["metrics_bytes"])
        except InputError as error:
            logging.warning("%s The one before is used.", error)
            continue
        done = Done(*saved.position["done"])
        logging.info(
            "Resuming %s, run %d after round %d.", one.scheme, one.run, done.num_rounds
        )
        if done.num_rounds == common.NUM_ROUNDS.value:
            return job + 1, Done(), None
        return job, done, saved.state
    run_folder.cut(folder, "metrics.jsonl", 0)
    return 0, Done(), None
