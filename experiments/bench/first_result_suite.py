"""How long until the first result: whole quick runs, with a cold and a warm cache."""

from collections.abc import Sequence

from experiments.bench.harness import (
    ROOT,
    Answer,
    Medians,
    Suite,
    System,
    Workload,
    cpu_seconds,
    seconds,
)

QUICK = tuple(
    sorted(
        path.parents[1].name for path in ROOT.glob("experiments/*/flags/quick.flags")
    )
)


def first_result(
    experiments: Sequence[str] = QUICK, more_flags: Sequence[str] = ()
) -> Suite:
    """Quick flagfiles, from the command line to the table.

    Args:
      experiments: names of those with a quick flagfile.
      more_flags: in addition to those of the file.
    """
    workloads = []
    for name in experiments:
        flags = [f"--flagfile=experiments/{name}/flags/quick.flags", *more_flags]
        systems = {
            f"p2pjax_{cache}": System(
                "p2pjax_first_result",
                "whole_run",
                {"experiment": name, "is_warm": cache == "warm", "flags": flags},
                starts_checkout=True,
            )
            for cache in ("cold", "warm")
        }
        workloads += [
            Workload(name, "s", seconds, systems),
            Workload(f"{name}_cpu", "CPU-s", cpu_seconds, systems),
            Workload(f"{name}_programs", "programs", programs, systems),
            Workload(f"{name}_compile", "s of compiling", compile_seconds, systems),
        ]

    def ratios(found: Medians) -> dict[str, float]:
        return {
            f"{name}: warm/cold": found[name]["p2pjax_warm"]
            / found[name]["p2pjax_cold"]
            for name in experiments
        }

    return Suite(workloads, ratios)


def programs(answer: Answer) -> float:
    """Compiled in the run, those found in the cache not counted."""
    return answer.programs


def compile_seconds(answer: Answer) -> float:
    """By the clock, each of those side by side counted, and those found too."""
    return answer.compile_seconds
