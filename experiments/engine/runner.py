"""Runs jobs: rows, checkpoints, resume, Ctrl-C, SIGTERM.

Every checkpoint says how long the files of rows were, so a resumed run ends with the
bytes of one that never stopped. Rows are written as they come: of runs side by side,
evaluation by evaluation.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from experiments.engine import config as configs
from experiments.engine import (
    fitting,
    mapped_memory,
    notices,
    own_files,
    processes,
    reading,
    resuming,
    row_files,
    row_kinds,
    rows,
    run_folder,
    stops,
    writers,
)
from experiments.engine.ahead import Ahead, compile_batch
from experiments.engine.config import Common
from experiments.engine.jobs import Batch, Job, Measurement, batches, devices_of
from experiments.engine.positions import Position
from experiments.engine.progress import Progress
from experiments.engine.resuming import OpenRun
from experiments.engine.row_files import RowFiles
from experiments.engine.rows import Tally
from experiments.engine.run_folder import Row
from experiments.engine.summary import summarize
from experiments.engine.writers import Writer
from p2pjax.simulation._simulate import (
    Snapshot,
    initial_state,
    snapshots,
)
from p2pjax.simulation._sweep import with_hyperparameters
from p2pjax.types import InputError

ROW_FILES = row_files.NAMES


def run_jobs(
    config: Common,
    experiment: str,
    jobs: Sequence[Job] | Sequence[Measurement],
    summary: tuple[str, ...],
) -> Path:
    """Runs all jobs, or those that are left, and sums up the metrics named.

    Args:
      config: of the experiment.
      experiment: its name.
      jobs: trainings, or measurements.
      summary: metrics of summary.json.

    Returns:
      The run folder.
    """
    if not jobs:
        raise InputError("Need at least one scheme to run, got none.")
    _check_names(jobs)
    measurements = [job for job in jobs if isinstance(job, Measurement)]
    if measurements:
        return _measure(config, experiment, measurements, summary)
    return _train(config, experiment, [j for j in jobs if isinstance(j, Job)], summary)


def _check_names(jobs: Sequence[Job] | Sequence[Measurement]) -> None:
    """Refuses, before anything runs, rows that no program could read."""
    seen = set()
    for job in jobs:
        try:
            name = row_kinds.named(run_folder.plain(job.name))
        except ValueError as error:
            raise InputError(
                f"Need jobs with a name, a setting and a run that can be read again, "
                f"but one of {job.scheme} {error}."
            ) from error
        where = reading.key_of(name), job.run
        if where in seen:
            raise InputError(
                f"Need every run of a scheme once, got run {job.run} of {job.scheme} "
                f"twice with the setting {job.setting}."
            )
        seen.add(where)


def _measure(
    config: Common,
    experiment: str,
    jobs: Sequence[Measurement],
    summary: tuple[str, ...],
) -> Path:
    """Measures everything before anything is written: it takes seconds.

    What was stopped while it was written is measured and written again.
    """
    flags_text = configs.as_flags(config)
    if config.resume:
        folder = run_folder.reopen(config.workdir, flags_text)
    found = [job.name | {"round": 0, **job.measure()} for job in jobs]
    if config.resume:
        own_files.cut(folder / "metrics.jsonl", 0)
    else:
        folder = run_folder.create(config.workdir, experiment, flags_text)
    run_id = configs.run_id(config, experiment)
    with run_folder.starting(folder, "metrics.jsonl", "run.flags"):
        for row in found:
            run_folder.append(folder, "metrics.jsonl", row)
        summarize(folder, experiment, summary, config.target_accuracy, run_id)
    return folder


def _train(
    config: Common, experiment: str, jobs: Sequence[Job], summary: tuple[str, ...]
) -> Path:
    with Ahead() as ahead:
        return _train_ahead(config, experiment, jobs, summary, ahead)


def _train_ahead(
    config: Common,
    experiment: str,
    jobs: Sequence[Job],
    summary: tuple[str, ...],
    ahead: Ahead,
) -> Path:
    run_id = configs.run_id(config, experiment)
    if not processes.is_first():
        config = fitting.settle(config, jobs, ahead)
        _run_left(config, OpenRun(Path(config.workdir or ""), run_id), jobs, [], ahead)
        sys.exit()  # process 0 does the rest
    asked_for, workdir = writers.asked_for(config), config.workdir
    if config.resume:
        folder = run_folder.reopen(workdir, configs.as_flags(config))
        config = fitting.settle(config, jobs, ahead)
    else:
        run_folder.check_unused(workdir)
        ahead.start(config, jobs)
        config = fitting.settle(config, jobs, ahead)
        folder = run_folder.create(workdir, experiment, configs.as_flags(config))
    how_to_resume = (
        f"go on with: python -m experiments.{experiment} "
        f"--flagfile={folder}/run.flags --workdir={folder} --resume"
    )
    try:
        with run_folder.locked(folder):
            with contextlib.ExitStack() as stack:
                also = [stack.enter_context(opened(folder)) for opened in asked_for]
                _run_left(config, OpenRun(folder, run_id), jobs, also, ahead)
            summarize(folder, experiment, summary, config.target_accuracy, run_id)
    except (KeyboardInterrupt, stops.TerminatedError) as stop:
        print(f"Stopped; {how_to_resume}", file=sys.stderr)
        sys.exit(stops.status_of(stop))
    except OSError as error:
        raise run_folder.failed(folder, error, how_to_resume) from error
    return folder


def _run_left(
    config: Common,
    opened: OpenRun,
    jobs: Sequence[Job],
    also: Sequence[Writer],
    ahead: Ahead,
) -> None:
    num_rounds = config.num_rounds
    position, kind = resuming.last_position(config, opened, jobs), None
    if processes.is_first():
        opened = opened._replace(rows=RowFiles(opened.folder))
    before = position.job * num_rounds + len(position.tallies) * position.num_rounds
    # One of several processes cannot save alone: it waits for the next evaluation.
    is_alone = jax.process_count() == 1
    with (
        Progress(len(jobs) * num_rounds, before) as progress,
        contextlib.nullcontext() if is_alone else stops.postponed() as notice,
    ):
        for batch in batches(config, jobs, position.job):
            begin = time.monotonic()
            if batch.kind != kind:
                mapped_memory.make_room()
                notices.tell_of_graphs(batch)
                progress.say(f"{batch.label}: compiling")
            with devices_of(config, batch.start.data):
                notices.tell_of_idle_devices(config, batch)
                with ahead.turn(batch.jobs[0].program):
                    compile_batch(config, batch, position.num_rounds)
                _run_batch(config, opened, batch, position, progress, also, notice)
            seconds = round((time.monotonic() - begin) / len(batch.jobs), 3)
            for job in batch.jobs:
                timing = job.name | {"seconds": seconds}
                if processes.is_first():
                    run_folder.append(opened.folder, "timing.jsonl", timing)
            position, kind = Position(batch.after), batch.kind


def _run_batch(
    config: Common,
    opened: OpenRun,
    batch: Batch,
    position: Position,
    progress: Progress,
    also: Sequence[Writer],
    notice: stops.Notice | None,
) -> None:
    num_rounds, period = config.num_rounds, config.checkpoint_every
    clusters = batch.apart(batch.start.data.cluster)
    facts = [
        rows.data_facts(data) | dict(job.facts)
        for job, data in zip(batch.jobs, batch.apart(batch.start.data), strict=True)
    ]
    tallies = position.tallies or [rows.nothing(len(own)) for own in clusters]
    told: frozenset[int] = frozenset()
    absurd: frozenset[int] = frozenset()
    found_snapshots = _started(config, batch, position, progress)
    with contextlib.nullcontext(notice) if notice else stops.postponed() as asked:
        for snapshot in found_snapshots:
            before, now = tallies[0].num_rounds, snapshot.num_rounds
            found = batch.apart((snapshot.metrics, snapshot.info, snapshot.used))
            tallies = [
                rows.counted(tally, now, info)
                for tally, (_, info, _) in zip(tallies, found, strict=True)
            ]
            written = [
                rows.metrics_row(job.name, tally, used, values, info, cluster, known)
                for job, tally, (values, info, used), cluster, known in zip(
                    batch.jobs, tallies, found, clusters, facts, strict=True
                )
            ]
            for row in map(run_folder.plain, written):
                _append(opened, "metrics.jsonl", row)
                for write in also:
                    write(row)
            told = notices.tell_of_divergence(config, batch, found, now, told)
            absurd = notices.tell_of_saturation(batch, found, now, absurd | told)
            examples = snapshot.info.examples
            progress.advance(
                (now - before) * len(batch.jobs),
                batch.label,
                accuracy=float(np.mean([row["accuracy"] for row in written])),
                messages=float(np.mean([row["messages"] for row in written])),
                examples=None if examples is None else float(examples.sum()),
            )
            is_last = now == num_rounds
            if is_last:
                _append_links(opened, batch, tallies, clusters)
            is_stopped = processes.any_of(asked.has_come)
            if is_last or is_stopped or now // period > before // period:
                now_at = Position(batch.first, tallies, snapshot.state, snapshot.used)
                resuming.save(config, opened, now_at)
                progress.begin()
            if is_stopped:
                raise stops.TerminatedError


def _started(
    config: Common, batch: Batch, position: Position, progress: Progress
) -> Iterator[Snapshot]:
    """The snapshots of a batch that is compiled: the clock counts rounds only."""
    algorithm, evaluate = batch.jobs[0].program
    processes.meet(f"{batch.label}: compiled")
    state = position.state
    if state is None and batch.jobs[0].hyperparameters:
        state = initial_state(batch.start.key, algorithm, batch.start.data)
        state = with_hyperparameters(state, batch.jobs[0].hyperparameters)
    found = snapshots(
        batch.start,
        algorithm,
        config.num_rounds,
        eval_every=config.eval_every,
        evaluate=evaluate,
        first_round=position.num_rounds,
        state=state,
        used=position.used,
    )
    progress.begin()
    return found


def _append_links(
    opened: OpenRun,
    batch: Batch,
    tallies: Sequence[Tally],
    clusters: Sequence[np.ndarray],
) -> None:
    for job, tally, cluster in zip(batch.jobs, tallies, clusters, strict=True):
        row = rows.links_row(job.name, tally, cluster)
        if row is not None:
            _append(opened, "links.jsonl", row)


def _append(opened: OpenRun, name: str, row: Row) -> None:
    if opened.rows is not None:
        opened.rows.append(name, row)
