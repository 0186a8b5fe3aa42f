"""How an experiment starts and ends: `python -m experiments.NAME`.

Bad input ends the program with exit status 2 and one sentence on standard error.
"""

import dataclasses
import hashlib
import logging as stdlib_logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NoReturn

import jax
import numpy as np
from absl import app, logging

import p2pjax
from experiments.engine import compile_cache, processes, run_folder, runner, stops
from experiments.engine import config as configs
from experiments.engine.config import Common, ConfigType, Options
from experiments.engine.jobs import Job, Measurement
from experiments.engine.processes import Seat
from experiments.engine.untrusted_files import escaped
from p2pjax import sharding
from p2pjax.types import InputError

SUMMARY = (
    "accuracy",
    "accuracy_before",
    "accuracy_after",
    "loss",
    "messages",
    "bytes",
    "majority",
    "balanced_accuracy",
    "worst_class_accuracy",
)
HELP = frozenset(("--help", "--helpshort", "--helpfull", "-h", "-help", "-helpshort"))


@dataclasses.dataclass(frozen=True)
class Experiment(Generic[ConfigType]):
    """What distinguishes one experiment from another."""

    name: str  # of its package
    config: type[ConfigType]
    make_jobs: Callable[[ConfigType], Sequence[Job] | Sequence[Measurement]]
    report: Callable[[ConfigType, Path], None]  # of a finished run: figures, tables
    summary: tuple[str, ...] = SUMMARY  # metrics of summary.json
    # what has to be settled before jobs can be made
    prepare: Callable[[ConfigType], ConfigType] = lambda config: config
    takes_processes: bool = True  # whether several can run it together


def main(experiment: Experiment) -> None:
    """Reads the command line and runs an experiment."""
    arguments = sys.argv[1:]
    if HELP.intersection(arguments):
        print(sys.modules["__main__"].__doc__)
        print(configs.describe(experiment.config))
        return
    _hush_libraries()
    app.run(lambda _: guarded(lambda: start(experiment, arguments)), sys.argv[:1])


def _hush_libraries() -> None:
    """They log every step of theirs; ours are few and should be seen.

    What orbax logs as an error, it also raises; what its threads have to say after that
    is about their own end.
    """
    stdlib_logging.getLogger("jax").setLevel("WARNING")
    logging.get_absl_handler().addFilter(
        lambda record: (
            record.levelno == stdlib_logging.WARNING or "orbax" not in record.pathname
        )
    )
    said = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            said(unraisable)

    sys.unraisablehook = hook


def tool(kind: type[Options], run: Callable[[Options, list[str]], object]) -> None:
    """Reads the command line of a program that trains nothing, and runs it.

    Args:
      kind: its options, a dataclass of fields.
      run: takes them, and what of the command line is no flag.
    """
    arguments = sys.argv[1:]
    if HELP.intersection(arguments):
        print(sys.modules["__main__"].__doc__)
        print(configs.describe(kind))
        return
    app.run(
        lambda _: guarded(lambda: run(*configs.read(kind, arguments))), sys.argv[:1]
    )


def start(experiment: Experiment, arguments: Sequence[str]) -> None:
    """Runs an experiment with these flags, alone or as one of several processes."""
    config = configs.parse(experiment.config, arguments)
    logging.set_verbosity(config.verbosity)
    seat = processes.seat(
        config.num_processes, config.process_id, config.coordinator, config.cluster
    )
    num_devices = (config.num_devices or 0) // (config.num_processes or 1)
    sharding.use_cpu_devices(num_devices or num_cores())
    if config.compile_cache:
        compile_cache.turn_on()
    if seat is None:
        run(experiment, config)
    else:
        _start_with_others(experiment, config, seat)


def _start_with_others(experiment: Experiment, config: Common, seat: Seat) -> None:
    if config.workdir is None:
        raise InputError(
            "Need --workdir for several processes, got none: name a folder that all of "
            "them can reach."
        )
    if (config.runs_at_once or 1) > 1:
        raise InputError(
            f"Need --runs_at_once=1 for several processes, got {config.runs_at_once}: "
            "only one process can train runs side by side."
        )
    when_lost = (
        "Stopped, because another process of this run has stopped: start all of them "
        f"again, with --resume where {config.workdir} has checkpoints."
    )
    processes.join(seat, when_lost)
    processes.run(
        lambda: guarded(lambda: run(experiment, config)),
        facts_of(experiment, config),
        when_lost,
    )


def facts_of(experiment: Experiment, config: Common) -> dict[str, str]:
    """What all processes of a run have to agree on before anything is exchanged."""
    flags = [
        line.partition("=") for line in configs.as_flags(config).split("\n") if line
    ]
    return {
        "experiment": experiment.name,
        "--workdir": str(config.workdir),
        "--resume": str(config.resume),
        **{name: value or "given" for name, _, value in flags},
        "p2pjax": p2pjax.__version__,
        "code of p2pjax and experiments": _digest_of_code(),
        "jax": jax.__version__,
        "numpy": np.__version__,
    }


def _digest_of_code() -> str:
    """Of all modules, so that two states of one version differ."""
    found = hashlib.sha256()
    for package in (Path(p2pjax.__file__).parent, Path(__file__).parents[1]):
        for path in sorted(package.rglob("*.py")):
            found.update(str(path.relative_to(package)).encode() + b"\0")
            found.update(path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def run(experiment: Experiment[ConfigType], config: ConfigType) -> Path:
    """Runs an experiment in this process and returns the run folder."""
    if not experiment.takes_processes:
        processes.check_alone(experiment.name)
    with stops.terminable():
        if processes.is_first():
            run_folder.check_start(config.workdir, config.resume)
        config = experiment.prepare(settle(config))
        jobs = experiment.make_jobs(config)
        folder = runner.run_jobs(config, experiment.name, jobs, experiment.summary)
        experiment.report(config, folder)
    return folder


def settle(config: ConfigType) -> ConfigType:
    """Decides what was left to the machine, so that run.flags has it."""
    num_devices = config.num_devices or jax.device_count()
    at_once = config.runs_at_once
    is_alone = jax.process_count() == 1
    if at_once is None and (jax.default_backend() == "cpu" or not is_alone):
        at_once = 1
    return dataclasses.replace(config, num_devices=num_devices, runs_at_once=at_once)


def num_cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def guarded(main: Callable[[], object]) -> None:
    """Runs a program; input it cannot use becomes a sentence and status 2.

    So does what stops it from outside, with the status that shells give it.
    """
    try:
        main()
    except InputError as error:
        _refuse(str(error))
    except BrokenPipeError:  # whoever reads what is printed has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (KeyboardInterrupt, stops.TerminatedError) as error:
        print("Stopped.", file=sys.stderr)
        sys.exit(stops.status_of(error))
    except OSError as error:
        _refuse(str(run_folder.failed(Path(), error)))
    except MemoryError as error:
        _refuse(_without_room(error))
    except jax.errors.JaxRuntimeError as error:
        if not re.search("RESOURCE_EXHAUSTED|Out of memory", str(error)):
            raise
        _refuse(_without_room(error))


def _without_room(error: Exception) -> str:
    """What is not foreseen by `fitting` and `host_memory`."""
    first_line = str(error).partition("\n")[0]
    return (
        f"Need more memory than there is ({first_line or type(error).__name__}): take "
        "fewer agents or examples, smaller batches or smaller networks."
    )


def _refuse(reason: str) -> NoReturn:
    print(escaped(" ".join(reason.split())), file=sys.stderr)
    sys.exit(2)
