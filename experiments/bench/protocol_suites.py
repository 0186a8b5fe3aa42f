"""Asynchronous protocols, and methods that choose their peers by evaluating them."""

from collections.abc import Sequence

from experiments.bench.harness import (
    NUM_CORES,
    Medians,
    Suite,
    System,
    Workload,
    amount,
    cpu_milliseconds,
    rate,
    speedups,
    torch_systems,
)


def events(
    sizes: Sequence[tuple[int, int]] = (
        (100, 10_000),
        (300, 10_000),
        (1000, 2000),
    ),
    units: int = 100,
    batch_size: int = 32,
    num_examples: int = 64,
) -> Suite:
    """Network epochs of P2P-BN with next-word networks, by (agents, words)."""
    workloads = []
    for num_agents, words in sizes:
        network = {"kind": "gru", "words": words, "units": units, "length": 10}
        size = {
            "network": network,
            "num_agents": num_agents,
            "num_examples": num_examples,
        }
        name = f"{num_agents}_agents_{words}_words"
        arguments = {**size, "batch_size": batch_size}
        by_waves = {**arguments, "num_devices": NUM_CORES}
        systems = {
            "p2pjax": System("event_loops", "by_waves", by_waves),
            "jax_loop": System("event_loops", "one_after_the_other", arguments),
            **torch_systems("events", arguments),
        }
        workloads.append(Workload(name, "events/s", rate, systems))
        width = {"p2pjax": System("event_loops", "wave_width", size)}
        wave = Workload(f"{name}_wave_width", "events", amount, width)
        workloads.append(wave)

    def ratios(found: Medians) -> dict[str, float]:
        return {
            f"{workload.name}: {name}": value
            for workload in workloads
            for name, value in speedups(found[workload.name]).items()
        }

    return Suite(workloads, ratios)


def selection(
    num_agents: int = 100,
    widths: Sequence[int] = (784, 300, 100, 10),
    batch_size: int = 50,
    num_examples: int = 500,
    num_candidates: int = 6,
    num_kept: int = 3,
) -> Suite:
    """Rounds of PENS: an epoch, judge candidates on own examples, average the best."""
    arguments = {
        "setting": {
            "network": {"kind": "mlp", "widths": list(widths)},
            "num_agents": num_agents,
            "batch_size": batch_size,
            "num_steps": num_examples // batch_size,
            "num_examples": num_examples,
        },
        "num_candidates": num_candidates,
        "num_kept": num_kept,
    }
    systems = {
        "p2pjax": System(
            "p2pjax_selection", "pens_rounds", {**arguments, "num_devices": NUM_CORES}
        ),
        "jax_loop": System("jax_loop", "pens_rounds", arguments),
        **torch_systems("pens_rounds", arguments),
    }
    speed = Workload("pens", "agents/s", rate, systems)
    cost = Workload("pens_cpu", "CPU-ms/agent", cpu_milliseconds, systems)

    def ratios(found: Medians) -> dict[str, float]:
        costs = found[cost.name]
        cheaper = {
            f"CPU time {name}/p2pjax": value / costs["p2pjax"]
            for name, value in costs.items()
            if name != "p2pjax"
        }
        return speedups(found[speed.name]) | cheaper

    return Suite((speed, cost), ratios)
