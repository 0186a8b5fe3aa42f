"""What a run saves of where it stands, and where it goes on when it is resumed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from experiments.engine import own_files, positions, processes, row_files
from experiments.engine.config import Common
from experiments.engine.jobs import Batch, Job, batches, devices_of
from experiments.engine.positions import Position, Saved
from experiments.engine.row_files import ChangedRowsError, RowFiles
from p2pjax import checkpoint
from p2pjax.checkpoint import Checkpoint, DifferentRunError
from p2pjax.simulation._simulate import initial_shapes, initial_state
from p2pjax.types import InputError


class OpenRun(NamedTuple):
    """Where a run is written."""

    folder: Path
    run_id: str  # of what determines the rows
    rows: RowFiles | None = None  # of process 0, once it is known where the run goes on


def save(config: Common, opened: OpenRun, position: Position) -> None:
    """Writes a checkpoint.

    Args:
      config: of the experiment.
      opened: where the run is written.
      position: to go on from.
    """
    # Rounds of all jobs so far.
    number = position.job * config.num_rounds
    number += len(position.tallies) * position.num_rounds
    assert position.used is not None  # a snapshot has it
    marks = {} if opened.rows is None else opened.rows.marks()
    plain = positions.to_json(
        Saved(opened.run_id, position.tallies, position.used, marks)
    )
    saved = Checkpoint(position.state, plain)
    checkpoint.save(opened.folder / "checkpoints", number, saved)


def last_position(config: Common, opened: OpenRun, jobs: Sequence[Job]) -> Position:
    """Where to go on: the last checkpoint that can be used, or the beginning.

    Args:
      config: of the experiment.
      opened: where the run is written.
      jobs: all of them.
    """
    number = _last_number(config, opened, jobs) if processes.is_first() else 0
    number = processes.from_first(number)
    if number == 0:
        return Position()
    batch = _batch_of(config, number, jobs)
    start, algorithm = batch.start, batch.jobs[0].program.algorithm
    with devices_of(config, start.data):
        fresh = initial_state(start.key, algorithm, start.data)
        saved = checkpoint.load(opened.folder / "checkpoints", number, fresh)
    _, tallies, used, _ = _checked(config, number, batch, saved.position)
    position = Position(batch.first, tallies, saved.state, used)
    logging.info("Resuming %s after round %d.", batch.label, position.num_rounds)
    if position.num_rounds == config.num_rounds:
        return Position(batch.after)
    return position


def _last_number(config: Common, opened: OpenRun, jobs: Sequence[Job]) -> int:
    """The last usable checkpoint, to which all rows are cut back; 0 if none."""
    folder, changed = opened.folder, False
    if (folder / "checkpoints").is_symlink():
        raise InputError(
            f"Need a folder, but {folder / 'checkpoints'} is a link: put the folder in "
            "its place."
        )
    numbers = checkpoint.numbers(folder / "checkpoints")
    for number in reversed(numbers):
        try:
            batch = _batch_of(config, number, jobs)
            start, algorithm = batch.start, batch.jobs[0].program.algorithm
            shapes = initial_shapes(start.key, algorithm, start.data)
            found = checkpoint.check(folder / "checkpoints", number, shapes)
            saved = _checked(config, number, batch, found)
            if saved.run_id != opened.run_id:
                raise DifferentRunError(
                    f"Checkpoint {folder / 'checkpoints' / str(number)} belongs to a "
                    "different run: its id is another."
                )
            for name, mark in saved.marks.items():
                row_files.check(folder, name, mark)
        except DifferentRunError as error:
            raise InputError(
                f"{error} It was written with other flags or by another version of "
                "p2pjax: choose another --workdir."
            ) from error
        except InputError as error:
            logging.warning("%s Falling back to the previous checkpoint.", error)
            changed = changed or isinstance(error, ChangedRowsError)
            continue
        for name, mark in saved.marks.items():
            own_files.cut(folder / name, mark.num_bytes)
        newer = len(numbers) - numbers.index(number)
        checkpoint.tidy(folder / "checkpoints", keep=max(2, newer))
        return number
    if changed:
        raise InputError(
            f"Need the rows of {folder} as the run wrote them to resume it, but they "
            "were changed before its oldest checkpoint: put them back, or run it again "
            "in another --workdir."
        )
    for name in row_files.NAMES:
        own_files.cut(folder / name, 0)
    return 0


def _checked(config: Common, number: int, batch: Batch, found: Any) -> Saved:
    """What a checkpoint says, if it can be of the batch."""
    num_agents, num_rounds = batch.start.data.cluster.shape[-1], config.num_rounds
    try:
        saved = positions.from_json(found, len(batch.jobs), num_agents, num_rounds)
        done = len(batch.jobs) * saved.tallies[0].num_rounds
        if number != batch.first * num_rounds + done:
            raise InputError("its number is not that of its rounds")
    except InputError as error:
        raise InputError(f"Checkpoint {number} cannot be used: {error}.") from error
    return saved


def _batch_of(config: Common, number: int, jobs: Sequence[Job]) -> Batch:
    """What ran when a checkpoint was written."""
    job = (number - 1) // config.num_rounds
    if job >= len(jobs):
        raise InputError(f"Checkpoint {number} belongs to a different run.")
    return next(batches(config, jobs, job))
