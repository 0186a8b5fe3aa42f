"""What every experiment shares: flags, how it starts and ends.

Bad input ends the program with exit status 2 and one sentence on standard error.
"""

import logging as stdlib_logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jax
from absl import app, flags, logging

from experiments import processes
from experiments.processes import Seat
from p2pjax import sharding
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import fastest_agent_loop
from p2pjax.types import InputError

FLAGS = flags.FLAGS
flags.declare_key_flag("verbosity")  # of absl; worth a line in --help

WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder for the results; runs/<experiment>-<time> if not given."
)
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Folder or file that holds the data set (see data/README.md)."
)
SEED = flags.DEFINE_integer(
    "seed",
    0,
    "Seed of everything that is random.",
    lower_bound=0,
    upper_bound=2**31 - 1,
)
NUM_RUNS = flags.DEFINE_integer(
    "num_runs", 1, "Repetitions with other splits and initial weights.", lower_bound=1
)
NUM_ROUNDS = flags.DEFINE_integer(
    "num_rounds",
    200,
    "Rounds of a run: mini-batches, network epochs in next_word, refinements of every "
    "client in virtual.",
    lower_bound=1,
)
EVAL_EVERY = flags.DEFINE_integer(
    "eval_every", 10, "Rounds between two evaluations.", lower_bound=1
)
BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 50, "Examples of a mini-batch.", lower_bound=1
)
LEARNING_RATE = flags.DEFINE_float(
    "learning_rate", None, "Step size of the optimizer; the paper's if not given."
)
DEGREE = flags.DEFINE_integer(
    "degree",
    None,
    "Agents that each agent receives from in a random graph; 4 in studies of partial "
    "averaging and 3 in those of protocols if not given.",
    lower_bound=1,
)
CHECKPOINT_EVERY = flags.DEFINE_integer(
    "checkpoint_every",
    1000,
    "Rounds between two checkpoints; one more is written where a run ends.",
    lower_bound=1,
)
RESUME = flags.DEFINE_bool(
    "resume", False, "Go on with the run in --workdir from its last checkpoint."
)
TENSORBOARD = flags.DEFINE_bool(
    "tensorboard", False, "Also write TensorBoard files, to WORKDIR/tensorboard."
)
WANDB = flags.DEFINE_bool(
    "wandb",
    False,
    "Also write runs of Weights & Biases, to WORKDIR/wandb; they are sent nowhere "
    "unless the environment has WANDB_MODE=online.",
)
AGENT_LOOP = flags.DEFINE_integer(
    "agent_loop",
    None,
    "How many agents train side by side: 1 one after the other in place, c chunks of "
    "c, 0 all in one batch; what suits the first network and the machine if not given.",
    lower_bound=0,
)
RUNS_AT_ONCE = flags.DEFINE_integer(
    "runs_at_once",
    None,
    "How many runs of a scheme train side by side in one program, as long as they fit "
    "into memory; if not given, 1 on CPUs, where more help the smallest networks only, "
    "and as many as fit on accelerators.",
    lower_bound=1,
)
NUM_DEVICES = flags.DEFINE_integer(
    "num_devices",
    None,
    "Devices the agents are spread over, those of all processes together; if not "
    "given, all accelerators, or a virtual device per CPU core.",
    lower_bound=1,
)
NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes",
    None,
    "Processes that run the experiment together: start each with the same flags but "
    "for --process_id. Needs --coordinator, and a --workdir that all can reach.",
    lower_bound=2,
)
PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "Which of the processes this is, from 0.", lower_bound=0
)
COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "Address of process 0, as in localhost:1234."
)
CLUSTER = flags.DEFINE_bool(
    "cluster",
    False,
    "Let JAX find the three flags above: under Slurm, Open MPI, on TPU pods.",
)
# How a run is started, not what it is.
_OF_A_START = (
    "cluster",
    "coordinator",
    "num_processes",
    "process_id",
    "resume",
    "workdir",
)


def run(main: Callable[[], None]) -> None:
    """Parses the flags and runs an experiment."""
    # Libraries below us log every step of theirs; ours are few and should be seen.
    stdlib_logging.getLogger("jax").setLevel("WARNING")
    logging.get_absl_handler().addFilter(
        lambda record: (
            record.levelno > stdlib_logging.INFO or "orbax" not in record.pathname
        )
    )
    app.run(lambda _: guarded(lambda: _start(main)), flags_parser=parse_flags)


def _start(main: Callable[[], None]) -> None:
    seat = processes.seat(
        NUM_PROCESSES.value, PROCESS_ID.value, COORDINATOR.value, CLUSTER.value
    )
    num_devices = (NUM_DEVICES.value or 0) // (NUM_PROCESSES.value or 1)
    sharding.use_cpu_devices(num_devices or num_cores())
    if seat is None:
        settle_defaults()
        main()
    else:
        _start_with_others(main, seat)


def _start_with_others(main: Callable[[], None], seat: Seat) -> None:
    if WORKDIR.value is None:
        raise InputError(
            "Need --workdir for several processes, got none: name a folder that all of "
            "them can reach."
        )
    if (RUNS_AT_ONCE.value or 1) > 1:
        raise InputError(
            f"Need --runs_at_once=1 for several processes, got {RUNS_AT_ONCE.value}: "
            "only one process can train runs side by side."
        )
    when_lost = (
        "Stopped, because another process of this run has stopped: start all of them "
        f"again, with --resume where {WORKDIR.value} has checkpoints."
    )
    processes.join(seat, when_lost)

    def settle_and_run() -> None:
        settle_defaults()
        main()

    processes.run(lambda: guarded(settle_and_run), when_lost)


def settle_defaults() -> None:
    """Decides what was left to the machine, so that run.flags has it."""
    FLAGS["num_devices"].value = NUM_DEVICES.value or jax.device_count()
    is_alone = jax.process_count() == 1
    if RUNS_AT_ONCE.value is None and (jax.default_backend() == "cpu" or not is_alone):
        FLAGS["runs_at_once"].value = 1


def agent_loop(task: Task | None = None) -> int:
    """How many agents train side by side.

    The first network that asks settles it, so that run.flags has it; without a network
    the machine alone does.
    """
    if AGENT_LOOP.value is None:
        FLAGS["agent_loop"].value = fastest_agent_loop(task)
    return int(FLAGS.agent_loop)


def runs_at_once() -> int:
    """How many runs of a scheme train side by side."""
    assert RUNS_AT_ONCE.value is not None, "fitting.settle comes first"
    return RUNS_AT_ONCE.value


def load_dataset(
    dataset: str | None,
    embedded: Callable[[], Any],
    note: str,
    loaders: Mapping[str, Callable[[str], Any]],
) -> Any:
    """The data set that the flags name.

    Args:
      dataset: what `--dataset` says, None if nothing.
      embedded: makes the data that needs no download.
      note: what it is, said where nothing was chosen.
      loaders: by name, those that read `--data_dir`.
    """
    data_dir = DATA_DIR.value
    if dataset is None and data_dir is not None:
        choices = " or ".join(f"--dataset={name}" for name in loaders)
        raise InputError(f"Got --data_dir without --dataset: add {choices}.")
    if dataset is None:
        logging.info("No --dataset given: %s.", note)
    if dataset is None or dataset not in loaders:
        return embedded()
    if data_dir is None:
        raise InputError(f"Need --data_dir for --dataset={dataset}, got none.")
    return loaders[dataset](data_dir)


def learning_rate(default: float) -> float:
    """The rate that the flags give, or the experiment's own."""
    rate = default if LEARNING_RATE.value is None else LEARNING_RATE.value
    if not 0 < rate < float("inf"):
        raise InputError(f"Need a positive learning rate, got {rate}.")
    return rate


def num_cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parse_flags(args: list[str]) -> list[str]:
    """Reads the command line; refuses what is not a flag of the experiment."""
    try:
        rest = FLAGS(args)
    except flags.Error as error:
        _refuse(str(error))
    if len(rest) > 1:
        _refuse(f"Need flags such as --seed=1 only, got '{rest[1]}'.")
    return rest


def guarded(main: Callable[[], None]) -> None:
    """Runs an experiment; input it cannot use becomes a sentence and status 2."""
    try:
        main()
    except InputError as error:
        _refuse(str(error))


def _refuse(reason: str) -> NoReturn:
    print(" ".join(reason.split()), file=sys.stderr)
    sys.exit(2)


def own_flags() -> str:
    """This experiment's flags as a flagfile, without where its results go."""
    modules = FLAGS.flags_by_module_dict()
    own = [
        flag
        for module, defined in modules.items()
        if module == sys.argv[0] or module.startswith("experiments.")
        for flag in defined
        if flag.value is not None and flag.name not in _OF_A_START
    ]
    return "".join(
        f"{flag.serialize()}\n" for flag in sorted(own, key=lambda f: f.name)
    )


def integers(name: str, fields: list[str]) -> list[int]:
    """Reads a flag that is a list of whole numbers; repeated ones count once."""
    if not fields or not all(
        f.strip().isascii() and f.strip().isdigit() for f in fields
    ):
        raise InputError(
            f"Need whole numbers joined by commas for --{name}, got "
            f"'{','.join(fields)}'."
        )
    return list(dict.fromkeys(int(field) for field in fields))
