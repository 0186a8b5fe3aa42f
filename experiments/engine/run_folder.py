"""The folder of one experiment: run.flags, metrics.jsonl, links.jsonl and others.

`metrics.jsonl` has a row per scheme, run and evaluation, `links.jsonl` one per scheme
and run with who received from whom. Nothing in them depends on time, path or machine,
so equal flags give equal bytes.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from experiments.engine import own_files, reading
from experiments.engine.row_kinds import Row
from experiments.engine.untrusted_files import MissingFileError, shown
from p2pjax.types import InputError

# What an experiment may put into its folder before the run starts there.
PREPARED = frozenset(("vocabulary.txt",))


def default_name(experiment: str) -> str:
    """Of the folder, where none is given."""
    return f"runs/{experiment}-{time.strftime('%Y%m%d-%H%M%S')}"


def check_unused(workdir: str | None) -> None:
    """Refuses a folder that `create` would refuse because of what it holds."""
    if workdir is None:
        return
    try:
        names = {path.name for path in Path(workdir).iterdir()} - PREPARED
        names = {name for name in names if not own_files.is_temporary(name)}
    except FileNotFoundError:
        _check_can_be_made(Path(workdir))
        return
    except (OSError, ValueError) as error:  # a ValueError of what is no path at all
        raise unwritable(workdir, error) from error
    if "run.flags" in names:
        raise InputError(
            f"Need a work folder without results, but {workdir} holds a run: choose "
            "another --workdir, or go on with it by --resume."
        )
    if names:
        raise InputError(
            f"Need a new or an empty work folder, but {workdir} holds {min(names)}: "
            "choose another --workdir."
        )


def _check_can_be_made(folder: Path) -> None:
    """Refuses at once what would otherwise fail when everything else is done."""
    above = next(path for path in folder.absolute().parents if path.exists())
    reasons = {
        errno.ENOTDIR: not above.is_dir(),
        errno.EACCES: not os.access(above, os.W_OK | os.X_OK),
        errno.ENAMETOOLONG: any(
            len(os.fsencode(part)) > os.pathconf(above, "PC_NAME_MAX")
            for part in folder.parts
        ),
    }
    for number, is_so in reasons.items():
        if is_so:
            raise unwritable(folder, OSError(number, os.strerror(number)))


def unwritable(workdir: str | Path, error: Exception) -> InputError:
    """Says that a run cannot start in the folder."""
    return InputError(
        f"Need a work folder that can be written, got {shown(workdir)} "
        f"({reason(error)}): choose another --workdir."
    )


def failed(folder: Path, error: OSError, then: str = "") -> InputError:
    """Says what could not be read or written, and what to do then."""
    where = shown(error.filename if error.filename is not None else folder)
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "make room" if is_full else "see that it can be read and written"
    return InputError(
        f"Could not read or write {where} ({reason(error)}): {remedy}"
        f"{', then ' if then else '.'}{then}"
    )


def reason(error: Exception) -> str:
    """What the system says, without its number and path."""
    return getattr(error, "strerror", None) or str(error)


def create(workdir: str | None, experiment: str, flags_text: str) -> Path:
    """Makes the folder; call it when everything else is known to be sound."""
    check_unused(workdir)
    with starting(Path(workdir or default_name(experiment))) as folder:
        own_files.write_new(folder / "run.flags", flags_text)  # claims the folder
    return folder


@contextlib.contextmanager
def starting(folder: Path, *names: str) -> Iterator[Path]:
    """Makes the folder for what follows; if that fails, all is as it was.

    Args:
      folder: that may have to be made.
      names: of the files in it that are written meanwhile.

    Raises:
      InputError: something cannot be written.
    """
    made: list[Path] = []
    try:
        made += [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except BaseException as error:
        for name in names:
            with contextlib.suppress(OSError):
                (folder / name).unlink(missing_ok=True)
        for path in made:
            with contextlib.suppress(OSError):  # it was not made, or others use it
                path.rmdir()
        if isinstance(error, OSError):
            raise unwritable(folder, error) from error
        raise


def check_start(workdir: str | None, resume: bool) -> None:
    """Refuses a folder in which no run can start, or go on, before anything is done."""
    if resume:
        _flags_before(workdir)
    else:
        check_unused(workdir)


def _flags_before(workdir: str | None) -> str:
    """Of the run that is to go on."""
    lacks = InputError(
        f"Need the work folder of a run for --resume, got {workdir}: pass "
        "--flagfile=WORKDIR/run.flags --workdir=WORKDIR --resume."
    )
    if workdir is None:
        raise lacks
    try:
        return reading.flags_text(Path(workdir))
    except MissingFileError as error:
        raise lacks from error


def reopen(workdir: str | None, flags_text: str) -> Path:
    """The folder of an earlier start of the same run."""
    flags_before = _flags_before(workdir)
    folder = Path(workdir or "")
    changed = sorted(set(flags_text.splitlines()) ^ set(flags_before.splitlines()))
    if changed and all(line.startswith("--num_devices=") for line in changed):
        logging.warning(
            "The run has had another number of devices (%s): what comes now is the "
            "same to six digits only.",
            " ".join(changed),
        )
    elif changed:
        raise InputError(
            f"Need the flags of the run in {folder} to resume it, but these differ: "
            f"{shown(' '.join(changed))}; pass --flagfile={folder}/run.flags and no "
            "others."
        )
    return folder


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps a second process out; removes what a killed one has left half-written."""
    descriptor = own_files.open_file(folder / "lock", os.O_RDWR | os.O_CREAT)
    with os.fdopen(descriptor) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"Need a work folder of its own, but another process runs in {folder}."
            ) from error
        own_files.remove_temporaries(folder)
        yield
    (folder / "lock").unlink(missing_ok=True)


def size(folder: Path, name: str) -> int:
    """Bytes of a file; 0 if there is none."""
    path = folder / name
    return path.stat().st_size if path.exists() else 0


def append(folder: Path, name: str, row: Row) -> None:
    """Adds one line to a JSON-lines file."""
    own_files.append(folder / name, line_of(row))


def line_of(row: Row) -> str:
    """The line that a row is in a JSON-lines file."""
    return json.dumps(plain(row)) + "\n"


def environment() -> Row:
    """What the numbers were made with."""
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "backend": jax.default_backend(),
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "cpus": os.cpu_count(),
    }


def plain(value: Any) -> Any:
    """As JSON has it: arrays are lists, numbers have seven digits."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return plain(np.asarray(value).tolist())
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None  # JSON has no infinity
    # Seven digits are what single precision holds; counts are exact.
    return int(value) if value.is_integer() else float(f"{value:.7g}")
