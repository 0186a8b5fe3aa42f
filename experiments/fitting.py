"""Whether an experiment fits into memory, and how many of its runs side by side."""

from collections.abc import Sequence

import jax
from absl import logging

from experiments import common
from experiments.jobs import Batch, Job, Program, batches, devices_of
from p2pjax import memory_estimate
from p2pjax.memory_estimate import MemoryEstimate
from p2pjax.training.agent_loop import IN_PLACE
from p2pjax.types import InputError

_SHARE = 0.9  # of the free memory that runs side by side may take together


def settle(jobs: Sequence[Job]) -> None:
    """Decides how many runs go side by side; refuses what does not fit.

    The program whose agents and data are largest is compiled and asked; it has to be
    compiled anyway.
    """
    at_once = common.RUNS_AT_ONCE.value or 1
    firsts: dict[Program, int] = {}
    for number, job in enumerate(jobs):
        firsts.setdefault(job.program, number)
    largest = max(firsts.values(), key=lambda number: _held(jobs[number]))
    batch = next(batches(jobs, largest, at_once))
    logging.info("%s: compiling, which tells how much memory it needs.", batch.label)
    with devices_of(batch.start.data):
        need, free = _need(batch), memory_estimate.available_memory()
    if free is None:
        logging.info("Memory: %s; how much is free is unknown.", describe(need))
    elif need.total > free:
        raise InputError(_refusal(need, free, at_once, common.agent_loop()))
    else:
        logging.info("Memory: %s; %s are free.", describe(need), size(free))
    if common.RUNS_AT_ONCE.value is None:
        fitting = 1 if free is None else int(_SHARE * free / need.total)
        most = max(1, min(fitting, common.NUM_RUNS.value))
        common.FLAGS["runs_at_once"].value = most


def _held(job: Job) -> int:
    world = job.make_world()
    with devices_of(world):
        return memory_estimate.static_memory(job.key, job.algorithm, world).total


def _need(batch: Batch) -> MemoryEstimate:
    algorithm, evaluate = batch.jobs[0].program
    num_rounds = min(common.EVAL_EVERY.value, common.NUM_ROUNDS.value)
    need = memory_estimate.estimate(batch.start, algorithm, num_rounds, evaluate)
    if jax.default_backend() != "cpu":
        return need
    # While a checkpoint is written, a copy of the state is in the same memory.
    return need._replace(working=max(need.working, need.models + need.memory))


PARTS = {
    "models": "models",
    "memory": "optimizers and messages",
    "data": "data",
    "working": "training, evaluation and checkpoints",
}


def _refusal(need: MemoryEstimate, free: int, at_once: int, agent_loop: int) -> str:
    fewer = []
    if at_once > 1:
        fewer.append(f"runs side by side (--runs_at_once is {at_once})")
    largest = max(PARTS, key=lambda part: getattr(need, part))
    if largest == "working" and agent_loop != IN_PLACE:
        fewer.append("agents side by side (--agent_loop=1)")
    elif largest == "working":
        fewer.append("examples at once (--batch_size, test examples)")
    elif largest == "data":
        fewer.append("agents or examples")
    else:
        fewer.append("agents or smaller networks")
    return (
        f"Need memory of {describe(need)}, but {size(free)} are free: take fewer "
        f"{', or fewer '.join(fewer)}."
    )


def describe(need: MemoryEstimate) -> str:
    """The total and its parts."""
    parts = [f"{name} {size(getattr(need, part))}" for part, name in PARTS.items()]
    return f"{size(need.total)} ({', '.join(parts)})"


def size(num_bytes: float) -> str:
    """For a person.

    >>> size(1400), size(25_300_000), size(1.5e10)
    ('1 kB', '25.3 MB', '15.0 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes / 1e3:.0f} kB"
