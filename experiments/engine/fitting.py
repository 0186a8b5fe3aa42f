"""Whether an experiment fits into memory, and how many of its runs side by side."""

import dataclasses
from collections.abc import Sequence

import jax
import optax
from absl import logging

from experiments.engine import config as configs
from experiments.engine.ahead import Ahead
from experiments.engine.config import Common
from experiments.engine.jobs import Batch, Job, Program, batches, devices_of
from p2pjax import memory_estimate
from p2pjax.host_memory import check_room, size
from p2pjax.memory_estimate import MemoryEstimate
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.training.agent_loop import IN_PLACE
from p2pjax.types import InputError

_SHARE = 0.9  # of the free memory that runs side by side may take together

# What a process still grows by after the first program is compiled, whatever it runs:
# others are compiled, the writer of checkpoints is imported. 50 to 90 MB where it was
# measured (bench/estimates.py).
_PROGRAMS = 10**8


def settle(config: Common, jobs: Sequence[Job], ahead: Ahead) -> Common:
    """The config with how many runs go side by side; refuses what does not fit.

    The program whose agents and data are largest is compiled and asked; it has to be
    compiled anyway.

    Args:
      config: of the experiment.
      jobs: all of them.
      ahead: what compiles programs.
    """
    at_once = config.runs_at_once or 1
    firsts: dict[Program, int] = {}
    for number, job in enumerate(jobs):
        firsts.setdefault(job.program, number)
    largest = max(firsts.values(), key=lambda number: _held(config, jobs[number]))
    batch = next(batches(config, jobs, largest))
    logging.info("%s: compiling, which tells how much memory it needs.", batch.label)
    with devices_of(config, batch.start.data), ahead.turn(batch.jobs[0].program):
        need, free = _need(config, batch), memory_estimate.available_memory()
    if free is None:
        logging.info("Memory: %s; how much is free is unknown.", describe(need))
    elif need.total > free:
        raise InputError(_refusal(need, free, at_once, configs.agent_loop(config)))
    else:
        logging.info("Memory: %s; %s are free.", describe(need), size(free))
    if config.runs_at_once is None:
        fitting = 1 if free is None else int(_SHARE * free / need.total)
        at_once = max(1, min(fitting, config.num_runs))
    return dataclasses.replace(config, runs_at_once=at_once)


def check_agents(
    config: Common,
    num_agents: int,
    task: Task,
    optimizer: optax.GradientTransformation | None = None,
    *,
    examples: int = 0,
    batch: int = 0,
) -> None:
    """Refuses agents that cannot fit, from shapes alone, before anything is made.

    They need this much at least: their models and optimizers, once more where a
    checkpoint is written, and their examples, as they are made and as they are stacked.

    Args:
      config: of the experiment.
      num_agents: that have a model of their own.
      task: what each agent learns.
      optimizer: of each agent, if it remembers something.
      examples: bytes of those of ONE agent.
      batch: bytes of what ONE agent computes at once from its mini-batch.
    """
    own = -(-num_agents // jax.process_count())
    variables = shapes_of(task)
    remembered = optimizer and jax.eval_shape(optimizer.init, variables.params)
    models = own * memory_estimate.num_bytes(variables)
    memory = own * memory_estimate.num_bytes(remembered)
    need = MemoryEstimate(models, memory, 2 * num_agents * examples, batch)
    if jax.default_backend() == "cpu":
        working = max(batch, models + memory)
        need = need._replace(working=working, programs=_PROGRAMS)
    else:
        host = need.data + models + memory
        check_room(host, f"examples and a checkpoint of {num_agents} agents")
        need = need._replace(data=own * examples)
    free = memory_estimate.available_memory()
    if free is not None and need.total > free:
        at_once, agent_loop = config.runs_at_once or 1, configs.agent_loop(config)
        raise InputError(_refusal(need, free, at_once, agent_loop))


def _held(config: Common, job: Job) -> int:
    data, algorithm = job.make_data(), job.program.algorithm
    with devices_of(config, data):
        return memory_estimate.static_memory(job.key, algorithm, data).total


def _need(config: Common, batch: Batch) -> MemoryEstimate:
    algorithm, evaluate = batch.jobs[0].program
    num_rounds = min(config.eval_every, config.num_rounds)
    need = memory_estimate.estimate(batch.start, algorithm, num_rounds, evaluate)
    if jax.default_backend() != "cpu":
        return need
    # While a checkpoint is written, a copy of the state is in the same memory.
    working = max(need.working, need.models + need.memory)
    return need._replace(working=working, programs=_PROGRAMS)


PARTS = {
    "models": "models",
    "memory": "optimizers and messages",
    "data": "data",
    "working": "training, evaluation and checkpoints",
    "programs": "programs",
}


def _refusal(need: MemoryEstimate, free: int, at_once: int, agent_loop: int) -> str:
    fewer = []
    if at_once > 1:
        fewer.append(f"runs side by side (--runs_at_once is {at_once})")
    parts = dict(zip(PARTS, need, strict=True))
    del parts["programs"]
    if need.working <= need.models + need.memory:  # of a checkpoint: as large as these
        del parts["working"]
    largest = max(parts, key=parts.__getitem__)
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
