"""How far it goes: many agents, memory, compilation."""

import itertools
from collections.abc import Sequence
from typing import Any

from experiments.bench.harness import (
    NUM_CORES,
    Medians,
    Suite,
    System,
    Workload,
    cpu_milliseconds,
    gigabytes,
    milliseconds,
    rate,
)
from experiments.bench.inputs import Network, Training

WIDTHS = (784, 300, 100, 10)


def scale(
    num_agents: Sequence[int] = (100, 1000, 10_000),
    widths: Sequence[int] = WIDTHS,
    num_updates: int = 100_000,
) -> Suite:
    """The headline's steps with more and more agents."""
    network = {"kind": "mlp", "widths": list(widths)}
    systems = {
        f"p2pjax_{n}": _rounds(network, n, num_rounds=max(1, num_updates // (10 * n)))
        for n in num_agents
    }
    few, many = f"p2pjax_{min(num_agents)}", f"p2pjax_{max(num_agents)}"

    def ratios(found: Medians) -> dict[str, float]:
        rates = found["agents"]
        return {f"cost {many}/{few}": rates[few] / rates[many]}

    return Suite((Workload("agents", "agent-steps/s", rate, systems),), ratios)


def views(
    num_agents: Sequence[int] = (1000, 10_000),
    view_size: int = 32,
    widths: Sequence[int] = (784, 10),
    batch_size: int = 10,
    num_steps: int = 2,
) -> Suite:
    """Two rounds of methods whose agents choose, one of each stage, in views."""
    network = {"kind": "mlp", "widths": list(widths)}
    workloads = []
    for method in ("pens", "dac", "panm"):
        systems = {
            f"p2pjax_{n}": _many(
                "chosen_rounds",
                Training(network, n, batch_size, num_steps, 2, num_steps * batch_size),
                method=method,
                view_size=view_size,
            )
            for n in num_agents
        }
        workloads += _costs(method, systems)
    return Suite(workloads, _flatness)


def million(
    num_agents: Sequence[int] = (10_000, 100_000, 1_000_000),
    widths: Sequence[int] = (99, 10),
    batch_size: int = 4,
) -> Suite:
    """A round of D-PSGD, one step of a thousand parameters, with ever more agents."""
    network = {"kind": "mlp", "widths": list(widths)}
    systems = {
        f"p2pjax_{n}": _many(
            "averaged_rounds", Training(network, n, batch_size, 1, 1, batch_size)
        )
        for n in num_agents
    }
    return Suite(_costs("dpsgd", systems), _flatness)


def _many(function: str, want: Training, **more: Any) -> System:
    arguments = {"setting": want._asdict(), "num_devices": NUM_CORES, **more}
    return System("p2pjax_scale", function, arguments)


def _costs(name: str, systems: dict[str, System]) -> list[Workload]:
    """Time, time of all cores, and memory, by the number of agents."""
    return [
        Workload(name, "agent-steps/s", rate, systems),
        Workload(f"{name}_cpu", "CPU-ms/agent-step", cpu_milliseconds, systems),
        Workload(f"{name}_memory", "GB", gigabytes, systems),
    ]


def _flatness(found: Medians) -> dict[str, float]:
    """What an agent costs among many, by what it costs among fewest."""
    ratios = {}
    for name, costs in found.items():
        if not name.endswith("_cpu"):
            continue
        few, *others = costs
        for many in others:
            method = name.removesuffix("_cpu")
            ratios[f"{method}: CPU time {many}/{few}"] = costs[many] / costs[few]
            rates = found[method]
            ratios[f"{method}: time {many}/{few}"] = rates[few] / rates[many]
    return ratios


def memory(
    sizes: Sequence[tuple[int, Sequence[int]]] = (
        (10_000, WIDTHS),
        (100_000, (784, 10)),
    ),
    shared: tuple[int, Sequence[int]] = (2000, WIDTHS),
) -> Suite:
    """Peak of the process, by agents and their network; parameters alone to compare.

    With the agents of `shared` also that of one of two processes.
    """
    workloads, held = [], {}
    for num_agents, widths in (*sizes, shared):
        network = {"kind": "mlp", "widths": list(widths)}
        products = itertools.pairwise(widths)
        num_parameters = sum((a + 1) * b for a, b in products)
        name = f"{num_agents}_agents_{num_parameters}_parameters"
        held[name] = 4 * num_agents * num_parameters / 1e9
        systems = {"p2pjax": _rounds(network, num_agents, num_steps=1)}
        workloads.append(Workload(name, "GB", gigabytes, systems))
    together = workloads[-1]
    setting = together.systems["p2pjax"].arguments["setting"]
    both = {"setting": setting, "num_processes": 2}
    systems["p2pjax_1_of_2"] = System("p2pjax_processes", "rounds", both, threads=1)

    def ratios(found: Medians) -> dict[str, float]:
        of_two = found[together.name]
        return {
            f"{name}: peak/parameters": found[name]["p2pjax"] / alone
            for name, alone in held.items()
        } | {"one of two processes/one": of_two["p2pjax_1_of_2"] / of_two["p2pjax"]}

    return Suite(workloads, ratios)


def compilation(
    networks: Sequence[Network] = (
        {"kind": "mlp", "widths": list(WIDTHS)},
        {"kind": "cnn", "image": [32, 32, 3], "channels": [32, 64], "dense": [512]},
        {"kind": "gru", "words": 10_000, "units": 100, "length": 10},
        {"kind": "encoder", "words": 30_522, "length": 64},
    ),
    num_agents: int = 10,
) -> Suite:
    """From Python to a program: without and with a compilation cache on disk."""
    workloads = []
    for network in networks:
        systems = {
            name: _rounds(
                network,
                num_agents,
                function="compilation",
                batch_size=16,
                more={"cached": name == "p2pjax_cached"},
            )
            for name in ("p2pjax", "p2pjax_cached")
        }
        name = f"compile_{network['kind']}"
        workloads.append(Workload(name, "ms", milliseconds, systems))

    def ratios(found: Medians) -> dict[str, float]:
        return {
            f"{one.name}: cold/cached": found[one.name]["p2pjax"]
            / found[one.name]["p2pjax_cached"]
            for one in workloads
        }

    return Suite(workloads, ratios)


def _rounds(
    network: Network,
    num_agents: int,
    *,
    function: str = "rounds",
    batch_size: int = 50,
    num_steps: int = 10,
    num_rounds: int = 1,
    more: dict[str, Any] | None = None,
) -> System:
    """A system of its own per size; agents have one mini-batch of examples each."""
    want = Training(
        network, num_agents, batch_size, num_steps, num_rounds, num_examples=batch_size
    )
    arguments = {"setting": want._asdict(), "num_devices": NUM_CORES, **(more or {})}
    return System("p2pjax_training", function, arguments)
