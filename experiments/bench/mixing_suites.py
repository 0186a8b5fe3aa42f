"""Averaging with neighbours: all parameters, and by owner classes."""

from collections.abc import Sequence

from experiments.bench.harness import (
    NUM_CORES,
    Medians,
    Suite,
    System,
    Workload,
    milliseconds,
    speedups,
    torch_systems,
)


def mixing(
    num_agents: int = 1000, num_columns: int = 100_000, degree: int = 3
) -> Suite:
    """One leaf of stacked parameters; the limit is to read and to write it once."""
    size = {"num_agents": num_agents, "num_columns": num_columns, "degree": degree}
    once = {"num_floats": num_agents * num_columns}
    systems = {
        "p2pjax": System("p2pjax_mixing", "whole", {**size, "num_devices": NUM_CORES}),
        "p2pjax_1_device": System("p2pjax_mixing", "whole", {**size, "num_devices": 1}),
        "read_and_write": System("machine", "read_and_write", once),
        "scipy": System("numpy_mixing", "whole", size),
        **torch_systems("mixing", size),
    }

    def ratios(found: Medians) -> dict[str, float]:
        times = dict(found["mixing"])
        once = times.pop("read_and_write")
        best = min(times["p2pjax"], times.pop("p2pjax_1_device"))
        speeds = speedups({name: 1 / time for name, time in times.items()})
        return {"time/read_and_write": best / once, **speeds}

    return Suite((Workload("mixing", "ms", milliseconds, systems),), ratios)


def slices(
    num_agents: int = 200,
    widths: Sequence[int] = (784, 300, 100, 10),
    num_models: Sequence[int] = (1, 2, 3, 11),
    degree: int = 3,
) -> Suite:
    """All parameters in 1, 3, 6 and 66 owner classes."""

    def of(models: int) -> System:
        arguments = {
            "num_agents": num_agents,
            "widths": list(widths),
            "num_models": models,
            "degree": degree,
            "num_devices": NUM_CORES,
        }
        return System("p2pjax_mixing", "by_class", arguments)

    systems = {f"p2pjax_{g * (g + 1) // 2}": of(g) for g in num_models}

    def ratios(found: Medians) -> dict[str, float]:
        times = found["owner_classes"]
        return {
            f"{name}/p2pjax_1": time / times["p2pjax_1"]
            for name, time in times.items()
            if name != "p2pjax_1"
        }

    return Suite((Workload("owner_classes", "ms", milliseconds, systems),), ratios)
