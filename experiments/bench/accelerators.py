"""What a round of every method costs on a TPU or a GPU, as far as that can be counted.

    python -m experiments.bench.accelerators [--methods=dpsgd,pens] [--measure]

Counted are operations and bytes in the StableHLO that is made for a platform
(`stablehlo_costs`) and what devices receive from each other (`collectives`). Times are
an estimate from peak numbers that vendors publish, not measurements; `--measure` adds
what a round takes on the devices that are here. See docs/accelerators.md.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import p2pjax as pj
from experiments.bench import collectives, standard_problem
from experiments.bench.stablehlo_costs import Cost, cost_of
from experiments.bench.standard_problem import Size
from experiments.engine import command
from experiments.engine.fields import integer, names, switch
from p2pjax import sharding
from p2pjax.memory_estimate import num_bytes
from p2pjax.types import Algorithm, FederatedData, InputError

NUM_DEVICES = 8


class Chip(NamedTuple):
    """Published peaks of one chip."""

    platform: str
    flops: float  # of matrix products of float32 at JAX's default precision
    bandwidth: float  # bytes per second of its memory


CHIPS = {
    "TPU v5e": Chip("tpu", 197e12, 819e9),
    "T4": Chip("cuda", 8.1e12, 320e9),
    "A100": Chip("cuda", 156e12, 1555e9),
}


class Round(NamedTuple):
    """What a round of a method needs."""

    cost: dict[str, Cost]  # of a platform, on one device
    state_bytes: int  # what all agents hold
    data_bytes: int
    received_bytes: float | None = None  # by one of the devices of a mesh
    seconds: float | None = None  # measured here


def arguments(method: Algorithm, data: FederatedData) -> tuple[Any, ...]:
    """Shapes of what a round is called with."""
    inputs = method.plan(np.random.default_rng(0), data, 2)
    state = jax.eval_shape(method.init, jax.random.key(0), data)
    now = jax.tree.map(lambda leaf: leaf[0], inputs)
    return jax.random.key(0), jnp.int32(0), now, state, data


def counted(name: str, size: Size, platforms: Sequence[str]) -> Round:
    """Counts a round; nothing is compiled."""
    method, data = standard_problem.build(name, size)
    given = arguments(method, data)
    traced = jax.jit(method.round).trace(*given)
    cost = {
        platform: cost_of(traced.lower(lowering_platforms=(platform,)))
        for platform in platforms
    }
    return Round(cost, num_bytes(_shapes(given[3])), num_bytes(_shapes(data)))


def received(name: str, size: Size, num_devices: int = NUM_DEVICES) -> float:
    """Bytes that a device of a mesh receives in a round; needs that many devices."""
    method, data = standard_problem.build(name, size)
    with jax.set_mesh(sharding.agents_mesh(size.num_agents, num_devices)):
        key, t, now, state, data = arguments(method, data)
        lowered = jax.jit(method.round, donate_argnums=3).lower(
            key, t, now, sharding.placed(state), sharding.placed(data)
        )
        options: Any = {"xla_backend_optimization_level": 0}  # quick: it never runs
        compiled = lowered.compile(compiler_options=options)
    return collectives.received_bytes(compiled.as_text() or "", num_devices)


def measured(name: str, size: Size, num_rounds: int = 10) -> float:
    """Seconds of a round on what is here, without compilation."""
    method, data = standard_problem.build(name, size)
    data = sharding.place(data)
    inputs = method.plan(np.random.default_rng(0), data, num_rounds + 1)
    state = jax.jit(method.init)(jax.random.key(0), data)
    step = jax.jit(method.round, donate_argnums=3)
    start = 0.0
    for t in range(num_rounds + 1):
        now = jax.tree.map(lambda leaf, t=t: leaf[t], inputs)
        state, _ = step(jax.random.key(t), jnp.int32(t), now, state, data)
        if t == 0:  # compiled
            jax.block_until_ready(state)
            start = time.perf_counter()
    jax.block_until_ready(state)
    return (time.perf_counter() - start) / num_rounds


def bounds(found: Round, chip: Chip) -> tuple[float, float]:
    """Seconds on a chip: each number of the state moved once, and nothing fused."""
    cost = found.cost[chip.platform]
    computing = cost.product_flops / chip.flops
    least = max(computing, 2 * found.state_bytes / chip.bandwidth)
    most = max(computing, cost.moved_bytes / chip.bandwidth)
    return min(least, most), max(least, most)


def lines(
    chosen: Sequence[str],
    size: Size = Size(),
    *,
    num_devices: int = 0,
    num_measured: int = 0,
) -> Iterator[str]:
    """The table, a line when its method is counted.

    Args:
      chosen: names of `pj.METHODS`.
      size: of the problem.
      num_devices: of the mesh whose exchange is counted; none if 0.
      num_measured: rounds that are timed here; none if 0.
    """
    titles = ["method", "MFLOP", "state, MB", "unfused, MB"]
    titles += [f"received by 1 of {num_devices}, MB"] if num_devices else []
    titles += [f"{name}, ms (estimate)" for name in CHIPS]
    titles += [f"measured on {_device()}, ms"] if num_measured else []
    yield f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|"
    platforms = sorted({chip.platform for chip in CHIPS.values()})
    for name in chosen:
        found = counted(name, size, platforms)
        cost = found.cost["tpu"]
        cells = [name]
        cells += [f"{cost.product_flops / 1e6:.4g}", f"{found.state_bytes / 1e6:.4g}"]
        cells += [f"{cost.moved_bytes / 1e6:.4g}"]
        if num_devices:
            cells += [_received_cell(name, size, num_devices)]
        for chip in CHIPS.values():
            low, high = bounds(found, chip)
            cells += [f"{low * 1e3:.3g} to {high * 1e3:.3g}"]
        if num_measured:
            cells += [f"{measured(name, size, num_measured) * 1e3:.3g}"]
        yield f"| {' | '.join(cells)} |"


def _received_cell(name: str, size: Size, num_devices: int) -> str:
    try:
        return f"{received(name, size, num_devices) / 1e6:.3g}"
    except InputError:  # a method that runs on one device only says so
        return "one device"


def _shapes(tree: Any) -> Any:
    return jax.eval_shape(lambda x: x, tree)


def _device() -> str:
    return jax.devices()[0].device_kind


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the table."""

    methods: tuple[str, ...] = names(
        pj.METHODS, "Whose rounds are counted.", among=list(pj.METHODS)
    )
    num_devices: int = integer(
        NUM_DEVICES, "Of the mesh whose exchange is counted; 0: not.", at_least=0
    )
    num_agents: int = integer(64, "Of the problem.", at_least=8)
    measure: bool = switch(False, "Time ten rounds on the devices that are here.")


def _is_cpu() -> bool:
    """Whether no other platform was asked for."""
    return getattr(jax.config, "jax_platforms", None) in (None, "", "cpu")


def main(options: Options, unused: list[str]) -> None:
    """Prints the table."""
    if unused:
        raise InputError(f"Need no arguments but flags, got '{unused[0]}'.")
    if options.num_devices and _is_cpu():
        sharding.use_cpu_devices(options.num_devices)
    for line in lines(
        options.methods,
        Size(options.num_agents),
        num_devices=options.num_devices,
        num_measured=10 if options.measure else 0,
    ):
        print(line, flush=True)


if __name__ == "__main__":
    command.tool(Options, main)
