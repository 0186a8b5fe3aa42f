"""Where else rows can go: TensorBoard and Weights & Biases, both optional.

A writer is a function of a row of metrics.jsonl. Every run of a scheme is a run of
theirs; lists, such as the agents' accuracies, stay in metrics.jsonl.
"""

import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from experiments.engine.config import Common
from experiments.engine.run_folder import Row
from p2pjax.types import InputError

Writer = Callable[[Row], None]


def asked_for(
    config: Common,
) -> list[Callable[[Path], AbstractContextManager[Writer]]]:
    """Functions of the run folder that open the writers which the flags name.

    Raises:
      InputError: one of them is not installed.
    """
    found: list[Callable[[Path], AbstractContextManager[Writer]]] = []
    if config.tensorboard:
        tensorboard = _import("tensorboardX", "tensorboard")
        found.append(
            lambda folder: _tensorboard(tensorboard, folder, config.num_rounds)
        )
    if config.wandb:
        wandb = _import("wandb", "wandb")
        found.append(lambda folder: _wandb(wandb, folder, config.num_rounds))
    return found


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"Need {module} for --{extra}, got none: pip install 'p2pjax[{extra}]'."
        ) from error


def _tensorboard(
    tensorboard: Any, folder: Path, num_rounds: int
) -> AbstractContextManager[Writer]:
    """Event files in a folder per run below `WORKDIR/tensorboard`."""

    def open_run(name: str, row: Row) -> Any:
        # What an earlier start has written from this round on is written again.
        path = str(folder / "tensorboard" / name)
        return tensorboard.SummaryWriter(path, purge_step=row["round"])

    def log(run: Any, row: Row) -> None:
        for tag, value in scalars(row).items():
            run.add_scalar(tag, value, row["round"])
        run.flush()

    return _per_run(open_run, log, lambda run: run.close(), num_rounds)


def _wandb(wandb: Any, folder: Path, num_rounds: int) -> AbstractContextManager[Writer]:
    """Runs below `WORKDIR/wandb`, which stay there unless WANDB_MODE says otherwise."""
    mode = os.environ.get("WANDB_MODE", "offline")

    def open_run(name: str, row: Row) -> Any:
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "p2pjax"),
            group=folder.name,
            name=name,
            id=_fit_for_files(f"{folder.name}-{name}"),
            config={"scheme": row["scheme"], **row["setting"], "run": row["run"]},
            dir=str(folder),
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",  # runs side by side are open at once
        )

    def log(run: Any, row: Row) -> None:
        run.log(scalars(row), step=row["round"])

    return _per_run(open_run, log, lambda run: run.finish(), num_rounds)


@contextlib.contextmanager
def _per_run(
    open_run: Callable[[str, Row], Any],
    log: Callable[[Any, Row], None],
    close: Callable[[Any], None],
    num_rounds: int,
) -> Iterator[Writer]:
    """Opens a run with its first row and closes it with its last, or at the end."""
    runs: dict[str, Any] = {}

    def write(row: Row) -> None:
        name = run_name(row)
        if name not in runs:
            runs[name] = open_run(name, row)
        log(runs[name], row)
        if row["round"] == num_rounds:
            close(runs.pop(name))

    try:
        yield write
    finally:
        for run in runs.values():
            close(run)


def run_name(row: Row) -> str:
    """Scheme, setting and run, fit for a file name.

    >>> run_name({"scheme": "level_80", "setting": {"level": 80}, "run": 1})
    'level_80-level=80-run=1'
    """
    said = {**row["setting"], "run": row["run"]}
    parts = [f"{name}={value}" for name, value in said.items()]
    return _fit_for_files("-".join([row["scheme"], *parts]))


def _fit_for_files(name: str) -> str:
    return re.sub(r"[^\w=.+-]", "_", name)


def scalars(row: Row) -> dict[str, float]:
    """The numbers of a row, but for those that tell rows apart."""
    return {
        name: value
        for name, value in row.items()
        if isinstance(value, (int, float)) and name not in ("run", "round")
    }
