"""How much memory a simulation will take, before it starts.

What the agents hold is known from shapes. What training, mixing and evaluation take on
top depends on what XLA makes of them, so XLA is asked: the program has to be compiled
anyway, and `simulate` then finds it compiled.
"""

import math
from typing import NamedTuple

import jax

from p2pjax import host_memory
from p2pjax.evaluation.test_sets import Evaluate
from p2pjax.sharding import placed
from p2pjax.simulation._simulate import Start, compiled, initial_shapes
from p2pjax.types import Algorithm, FederatedData, Key, PyTree


class MemoryEstimate(NamedTuple):
    """Bytes on all devices of this process together."""

    models: int  # parameters and statistics of all agents
    memory: int  # what else their state has: optimizers, mailboxes, references
    data: int  # examples
    working: int = 0  # training, mixing, evaluation, reports
    programs: int = 0  # libraries and compiled code

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def static_memory(
    key: Key, algorithm: Algorithm, data: FederatedData
) -> MemoryEstimate:
    """What agents and data take all the time; nothing is compiled."""
    axis = key.ndim
    state = initial_shapes(key, algorithm, data)
    models_fn = jax.vmap(algorithm.models) if axis else algorithm.models
    reported = jax.eval_shape(models_fn, state).reported
    models = num_bytes(placed(reported, axis))
    in_state = num_bytes(placed(state, axis))
    models = min(models, in_state)  # one model may stand for all agents
    return MemoryEstimate(models, in_state - models, num_bytes(placed(data, axis)))


def estimate(
    start: Start, algorithm: Algorithm, num_rounds: int, evaluate: Evaluate
) -> MemoryEstimate:
    """All that a program of so many rounds and an evaluation takes.

    Args:
      start: of a run.
      algorithm: the method.
      num_rounds: between two evaluations.
      evaluate: what is measured.
    """
    known = static_memory(start.key, algorithm, start.data)
    analysis = compiled(start, algorithm, num_rounds, evaluate).memory_analysis()
    if analysis is None:  # not every backend tells
        return known
    on_a_device = (
        analysis.temp_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
    )
    return known._replace(working=on_a_device * len(_devices()))


def num_bytes(shapes: PyTree) -> int:
    """Of arrays as `sharding.placed` describes them, on all devices of this process."""
    total = 0
    for leaf in jax.tree.leaves(shapes):
        shape, copies = leaf.shape, 1
        if getattr(leaf, "sharding", None) is not None:
            shape = leaf.sharding.shard_shape(shape)
            copies = len(leaf.sharding.addressable_devices)
        total += math.prod(shape) * leaf.dtype.itemsize * copies
    return total


def available_memory() -> int | None:
    """Bytes that this process's devices can still give together; None if unknown."""
    if jax.default_backend() == "cpu":
        return host_memory.free_bytes()
    left = []
    for device in _devices():
        stats = device.memory_stats() or {}
        if "bytes_limit" not in stats:
            return None
        left.append(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return len(left) * min(left)


def _devices() -> list[jax.Device]:
    mesh = jax.sharding.get_mesh()
    return jax.local_devices()[:1] if mesh.empty else list(mesh.local_devices)
