"""Programs that are compiled before their turn, beside the one that compiles or runs.

Compiling a program keeps one core busy, so two are compiled at a time, and the next
ones while the first scheme runs. Nothing else is computed ahead: rows, their
order and their bytes are those of a run that compiles each program in its turn.
"""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
from absl import logging

from experiments.engine.config import Common
from experiments.engine.jobs import Batch, Job, Program, batches, devices_of, num_bytes
from p2pjax.host_memory import free_bytes
from p2pjax.simulation._simulate import compiled

AT_ONCE = 2  # programs that are compiled side by side
MOST_AHEAD = 3  # that may be compiled or wait for their turn
_SHARE = 0.1  # of the free memory, which data may take that is made to compile


class Ahead:
    """Compiles programs once, each in its turn or before.

    Example:
      >>> with Ahead() as ahead:
      ...     with ahead.turn("program"):  # it is not being compiled elsewhere now
      ...         pass
    """

    def __init__(self) -> None:
        """None is compiled before its turn until `start`."""
        self._locks: dict[Program, threading.Lock] = defaultdict(threading.Lock)
        self._had_turn: set[Program] = set()
        self._room = threading.Semaphore(MOST_AHEAD)
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(AT_ONCE, "compiling ahead")

    def start(self, config: Common, jobs: Sequence[Job]) -> None:
        """Lets threads compile the jobs' programs in their order.

        Args:
          config: of the experiment.
          jobs: all of a run that starts anew.
        """
        firsts: dict[Program, int] = {}
        for number, job in enumerate(jobs):
            firsts.setdefault(job.program, number)
        if len(firsts) > 1 and jax.process_count() == 1 and config.runs_at_once:
            for number in firsts.values():
                self._threads.submit(self._look, config, jobs, number)

    def _look(self, config: Common, jobs: Sequence[Job], number: int) -> None:
        self._room.acquire()
        if self._is_over.is_set():
            return
        try:
            self._compile(config, jobs, number)
        except Exception as error:  # it fails again in its turn, where it is told
            logging.info("Nothing is compiled ahead (%s).", error)
            self._is_over.set()

    def _compile(self, config: Common, jobs: Sequence[Job], number: int) -> None:
        program = jobs[number].program
        lock = self._locks[program]
        if program in self._had_turn or not lock.acquire(blocking=False):
            return
        try:
            batch = next(batches(config, jobs, number))
            free = free_bytes()
            if free is not None and num_bytes(batch.start.data) > _SHARE * free:
                return
            with devices_of(config, batch.start.data):
                compile_batch(config, batch)
        finally:
            lock.release()

    @contextlib.contextmanager
    def turn(self, program: Program) -> Iterator[None]:
        """Waits until the program is not being compiled ahead.

        Args:
          program: whose turn it is to be compiled, or found compiled.
        """
        with self._locks[program]:
            yield
            if program not in self._had_turn:
                self._had_turn.add(program)
                self._room.release()

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *unused: object) -> None:
        """Waits for what is being compiled: a program cannot be left half made."""
        self._is_over.set()
        self._room.release(AT_ONCE)
        self._threads.shutdown(cancel_futures=True)


def compile_batch(config: Common, batch: Batch, first_round: int = 0) -> None:
    """Compiles what a batch needs from a round on.

    Args:
      config: of the experiment.
      batch: of one program.
      first_round: with which it goes on.
    """
    num_rounds, eval_every = config.num_rounds, config.eval_every
    algorithm, evaluate = batch.jobs[0].program
    firsts = range(first_round, num_rounds, eval_every)
    for length in {min(eval_every, num_rounds - first) for first in firsts}:
        compiled(batch.start, algorithm, length, evaluate)
