"""Asynchronous protocols, and methods that choose their peers by evaluating them."""

import itertools
from collections.abc import Sequence
from typing import Any

from experiments.bench.harness import (
    NUM_CORES,
    Medians,
    Suite,
    System,
    Workload,
    amount,
    cpu_milliseconds,
    gigabytes,
    is_installed,
    milliseconds,
    rate,
    speedups,
    torch_systems,
)
from experiments.bench.inputs import Training

FORMS = ("p2pjax", "p2pjax_1_device")  # of waves: all cores as devices, or one


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
        on_one = {**arguments, "num_devices": 1}
        systems = {
            "p2pjax": System("event_loops", "by_waves", by_waves),
            "p2pjax_1_device": System("event_loops", "by_waves", on_one),
            "jax_loop": System("event_loops", "one_after_the_other", arguments),
            **torch_systems("events", arguments),
        }
        workloads.append(Workload(name, "events/s", rate, systems))
        width = {"p2pjax": System("event_loops", "wave_width", size)}
        wave = Workload(f"{name}_wave_width", "events", amount, width)
        workloads.append(wave)

    def ratios(found: Medians) -> dict[str, float]:
        found_ratios = {}
        speeds = workloads[::2]  # the others are widths of waves
        for workload, form in itertools.product(speeds, FORMS):
            rates = found[workload.name]
            others = {name: rates[name] for name in rates if name not in FORMS}
            for name, value in speedups({**others, "p2pjax": rates[form]}).items():
                ratio = name.replace("p2pjax", form)
                found_ratios[f"{workload.name}: {ratio}"] = value
        return found_ratios

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


def adversity(
    num_agents: int = 1000,
    widths: Sequence[int] = (784, 126, 10),
    degree: int = 6,
    batch_size: int = 32,
    num_rounds: int = 2,
) -> Suite:
    """A lossy, compressed, attacked and robust round beside the plain one.

    The loops of PyTorch and ByzFL do the exchange alone, receiver by receiver; ByzFL
    has no ClippedGossip, so that its exchange stands beside a round of its own rule.
    """
    network = {"kind": "mlp", "widths": list(widths)}
    want = Training(
        network, num_agents, batch_size, 1, num_rounds, num_examples=batch_size
    )
    size = {"setting": want._asdict(), "degree": degree, "num_devices": NUM_CORES}

    def mine(rule: str | None, **options: Any) -> System:
        return System("p2pjax_adversity", "rounds", {**size, "rule": rule, **options})

    systems = {"p2pjax": mine("clipped_gossip"), "p2pjax_plain": mine(None)}
    columns = sum((a + 1) * b for a, b in itertools.pairwise(widths))
    exchange = {"num_agents": num_agents, "num_columns": columns, "degree": degree}
    timed = {**systems, **torch_systems("adverse_exchange", exchange)}
    workloads = [
        Workload("round", "ms", milliseconds, timed),
        Workload("memory", "GB", gigabytes, systems),
    ]
    if is_installed("byzfl", "torch"):
        threads = {"threads": NUM_CORES}
        loop = System(
            "byzfl_loop", "adverse_exchange", {**exchange, **threads}, NUM_CORES
        )
        trimmed = {"p2pjax": mine("trimmed_mean", quantized=False), "byzfl": loop}
        workloads.append(Workload("trimmed_round", "ms", milliseconds, trimmed))

    def ratios(found: Medians) -> dict[str, float]:
        times = dict(found["round"])
        adverse, plain = times.pop("p2pjax"), times.pop("p2pjax_plain")
        held = found["memory"]
        ratios = {
            "time: adverse/plain": adverse / plain,
            "memory: adverse/plain": held["p2pjax"] / held["p2pjax_plain"],
        }
        for name, time in times.items():
            ratios[f"{name}, exchange alone/p2pjax"] = time / adverse
        for name, time in found.get("trimmed_round", {}).items():
            if name != "p2pjax":
                by_rule = time / found["trimmed_round"]["p2pjax"]
                ratios[f"{name}, trimmed exchange alone/p2pjax"] = by_rule
        return ratios

    return Suite(workloads, ratios)
