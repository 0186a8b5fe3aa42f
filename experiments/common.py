"""What every experiment shares: flags, how it starts and ends, progress.

Bad input ends the program with exit status 2 and one sentence on standard error.
"""

import logging as stdlib_logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

import jax
from absl import app, flags, logging
from tqdm import tqdm

from p2pjax import InputError, sharding

FLAGS = flags.FLAGS

WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder for the results; runs/<experiment>-<time> if not given."
)
DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Folder or file that holds the data set (see data/README.md)."
)
SEED = flags.DEFINE_integer("seed", 0, "Seed of everything that is random.")
NUM_RUNS = flags.DEFINE_integer(
    "num_runs", 1, "Repetitions with other splits and initial weights.", lower_bound=1
)
NUM_ROUNDS = flags.DEFINE_integer(
    "num_rounds", 200, "Rounds of a run; one mini-batch each.", lower_bound=1
)
EVAL_EVERY = flags.DEFINE_integer(
    "eval_every", 10, "Rounds between two evaluations.", lower_bound=1
)
AGENT_LOOP = flags.DEFINE_integer(
    "agent_loop",
    1,
    "How many agents train side by side: 1 one after the other in place (best on "
    "CPUs), 0 all in one batch (best on accelerators), c chunks of c.",
    lower_bound=0,
)
NUM_DEVICES = flags.DEFINE_integer(
    "num_devices",
    None,
    "Devices the agents are spread over; if not given, all accelerators, or a virtual "
    "device per CPU core.",
    lower_bound=1,
)


def run(main: Callable[[], None]) -> None:
    """Parses the flags and runs an experiment."""
    stdlib_logging.getLogger("jax").setLevel("WARNING")  # says which TPU is not there
    app.run(lambda _: _start(main), flags_parser=parse_flags)


def _start(main: Callable[[], None]) -> None:
    cores = len(os.sched_getaffinity(0))
    sharding.use_cpu_devices(NUM_DEVICES.value or cores)
    FLAGS["num_devices"].value = NUM_DEVICES.value or jax.device_count()
    guarded(main)


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
    """This experiment's flags as a flagfile."""
    modules = FLAGS.flags_by_module_dict()
    own = [
        flag
        for module, defined in modules.items()
        if module == sys.argv[0] or module.startswith("experiments.")
        for flag in defined
        if flag.value is not None
    ]
    return "".join(
        f"{flag.serialize()}\n" for flag in sorted(own, key=lambda f: f.name)
    )


class Progress:
    """A bar on a terminal, plain lines elsewhere."""

    def __init__(self, total_rounds: int):
        self._total = total_rounds
        self._done = 0
        self._start = time.monotonic()
        self._bar = tqdm(total=total_rounds, unit="round", disable=not _on_terminal())

    def advance(self, rounds: int, label: str, **facts: Any) -> None:
        """Reports that `rounds` more rounds are done."""
        self._done += rounds
        text = ", ".join(f"{name} {value}" for name, value in facts.items())
        self._bar.set_postfix_str(f"{label}: {text}")
        self._bar.update(rounds)
        if not _on_terminal():
            seconds = time.monotonic() - self._start
            left = seconds / self._done * (self._total - self._done)
            logging.info(
                "%d/%d rounds, %s: %s, %.0f s left",
                *(self._done, self._total, label, text, left),
            )

    def say(self, text: str) -> None:
        """Says something between two reports."""
        if _on_terminal():
            self._bar.set_postfix_str(text)
        else:
            logging.info("%s", text)

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()


def _on_terminal() -> bool:
    return sys.stderr.isatty()
