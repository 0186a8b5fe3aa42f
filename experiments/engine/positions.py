"""Where all jobs stand, as a checkpoint says it.

A checkpoint may be damaged or come from someone else, so whatever is read is held
against what a run of these jobs writes: names, kinds, lengths and ranges.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from experiments.engine import row_files, rows
from experiments.engine.row_files import Mark
from experiments.engine.rows import Tally
from p2pjax.simulation._used import Used
from p2pjax.types import InputError

_MOST = 2**62  # of any count
_LARGEST = 1e300  # of any other number


class Position(NamedTuple):
    """Where all jobs stand."""

    job: int = 0  # number of the next one, or of the first of the batch that runs
    tallies: Sequence[Tally] = ()  # of the jobs of that batch; empty at its beginning
    state: Any = None
    used: Used | None = None  # by the batch

    @property
    def num_rounds(self) -> int:
        """That the batch has done."""
        return self.tallies[0].num_rounds if self.tallies else 0


class Saved(NamedTuple):
    """What a checkpoint has beside the state."""

    run_id: str
    tallies: Sequence[Tally]
    used: Used
    marks: Mapping[str, Mark]  # of the files of rows; empty but in process 0


def to_json(saved: Saved) -> dict[str, Any]:
    """For a checkpoint; floats keep all their bits."""
    return {
        "id": saved.run_id,
        "tallies": [rows.to_json(tally) for tally in saved.tallies],
        "used": {name: value.tolist() for name, value in saved.used._asdict().items()},
        "rows": {name: list(mark) for name, mark in saved.marks.items()},
    }


def from_json(found: Any, num_jobs: int, num_agents: int, num_rounds: int) -> Saved:
    """What `to_json` was given.

    Args:
      found: in a checkpoint.
      num_jobs: of the batch that it is of.
      num_agents: of each.
      num_rounds: of each, in all.

    Raises:
      InputError: no run of such jobs writes this.
    """
    _check_names(found, ("id", "tallies", "used", "rows"), "position")
    run_id, tallies = found["id"], found["tallies"]
    if not isinstance(run_id, str):
        _refuse("id")
    if not isinstance(tallies, list) or len(tallies) != num_jobs:
        _refuse("tallies")
    for tally in tallies:
        _check_tally(tally, num_agents, num_rounds)
    if len({tally["num_rounds"] for tally in tallies}) > 1:
        _refuse("num_rounds")
    return Saved(
        run_id,
        [rows.from_json(tally) for tally in tallies],
        _used(found["used"], num_jobs),
        _marks(found["rows"]),
    )


def _check_tally(found: Any, num_agents: int, num_rounds: int) -> None:
    there = set(found) if isinstance(found, dict) else set()
    optional = {"counted", "models"} & there
    _check_names(found, {*Tally._fields} - {"counted", "models"} | optional, "tally")
    if not (_is_count(found["num_rounds"], num_rounds) and found["num_rounds"]):
        _refuse("num_rounds")
    sent = found["sent"]
    if not isinstance(sent, list) or len(sent) != num_agents:
        _refuse("sent")
    if not all(_is_amount(value) for value in sent):
        _refuse("sent")
    for name in ("payload", "delivered", *({"counted"} & optional)):
        if not _is_amount(found[name]):
            _refuse(name)
    for name in ("links", "merged"):
        if found[name] is not None:
            _check_triples(found[name], num_agents, name)
    if "models" in optional:
        _check_models(found["models"])


def _check_models(found: Any) -> None:
    """Messages and parameters of as many models."""
    if not (isinstance(found, list) and len(found) == 2):
        _refuse("models")
    for one in found:
        if not isinstance(one, list) or not all(map(_is_amount, one)):
            _refuse("models")
    if len(found[0]) != len(found[1]):
        _refuse("models")


def _check_triples(found: Any, num_agents: int, name: str) -> None:
    if not isinstance(found, list) or len(found) > num_agents**2:
        _refuse(name)
    for triple in found:
        if not (isinstance(triple, list) and len(triple) == 3):
            _refuse(name)
        receiver, sender, count = triple
        ends = _is_count(receiver, num_agents - 1) and _is_count(sender, num_agents - 1)
        if not (ends and _is_count(count)):
            _refuse(name)


def _used(found: Any, num_jobs: int) -> Used:
    _check_names(found, Used._fields, "used")
    values = {}
    for name, value in found.items():
        each = value if isinstance(value, list) else [value]
        if len(each) != (num_jobs if isinstance(value, list) else 1):
            _refuse(name)
        is_sound = _is_time if name == "time" else _is_count
        if not all(is_sound(one) for one in each):
            _refuse(name)
        dtype = np.float64 if name == "time" else np.int64
        values[name] = np.asarray(value, dtype)
    if len({value.shape for value in values.values()}) > 1:
        _refuse("used")
    return Used(**values)


def _marks(found: Any) -> dict[str, Mark]:
    _check_names(found, row_files.NAMES, "rows")
    for name, mark in found.items():
        if not (isinstance(mark, list) and len(mark) == 2 and _is_count(mark[0])):
            _refuse(name)
        if not (isinstance(mark[1], str) and len(mark[1]) == 64):
            _refuse(name)
    return {name: Mark(*mark) for name, mark in found.items()}


def _check_names(found: Any, names: Collection[str], what: str) -> None:
    if not isinstance(found, dict) or set(found) != set(names):
        _refuse(what)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_amount(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= _LARGEST


def _is_time(value: Any) -> bool:
    """Whether it is a number that a float holds, or not known."""
    return _is_number(value) and not abs(value) > _LARGEST


def _is_count(value: Any, most: int = _MOST) -> bool:
    return isinstance(value, int) and _is_number(value) and 0 <= value <= most


def _refuse(what: str) -> NoReturn:
    raise InputError(f"it is not of such a run, or is damaged: see its {what}")
