"""Compares two checkouts of p2pjax, in turns in one run.

    python -m experiments.bench.versions --other=DIR --suite=headline,mixing --repeats=7

A ratio above 1 means that this checkout is faster. Needs a quiet machine.
"""

import contextlib
import dataclasses
import statistics
from collections.abc import Iterator
from pathlib import Path

from experiments.bench.harness import ROOT, Process, System, Workload
from experiments.bench.suites import SUITES
from experiments.engine import command
from experiments.engine.fields import integer, names, text
from p2pjax.types import InputError


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the comparison."""

    other: str | None = text(None, "Folder of the other checkout.")
    suite: tuple[str, ...] = names(
        ("headline",), "What is measured.", among=list(SUITES)
    )
    repeats: int = integer(
        7, "Turns of each checkout; their median counts.", at_least=1
    )


def own_systems(name: str) -> Iterator[tuple[Workload, str, System]]:
    """What of a suite runs p2pjax itself."""
    for workload in SUITES[name]().workloads:
        for system, each in workload.systems.items():
            if each.module.startswith("p2pjax_"):
                yield workload, system, each


def compared(
    workload: Workload, system: System, other: Path, repeats: int
) -> tuple[list, list]:
    """Values of both checkouts, in turns."""
    found: tuple[list, list] = ([], [])
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(Process(str(folder), system, folder))
            for folder in (ROOT, other)
        ]
        for process in both:
            process.wait_until_ready()
        for _ in range(repeats):
            for values, process in zip(found, both, strict=True):
                values.append(workload.measure(process.ask()))
    return found


def main(options: Options, arguments: list[str]) -> None:
    """Prints a row for each workload."""
    if arguments or not Path(options.other or "", "p2pjax").is_dir():
        raise InputError(
            "Need --other with the folder of another checkout, got "
            f"{options.other} {' '.join(arguments)}."
        )
    other = Path(options.other or "").resolve()
    print("| suite | system | this | other | unit | ratio | ratios of turns |")
    print("|---" * 7 + "|")
    for name in options.suite:
        for workload, label, system in own_systems(name):
            mine, theirs = compared(workload, system, other, options.repeats)
            falls = workload.unit in ("ms", "s", "GB") or "ms" in workload.unit
            pairs = [
                b / a if falls else a / b for a, b in zip(mine, theirs, strict=True)
            ]
            a, b = statistics.median(mine), statistics.median(theirs)
            ratio = b / a if falls else a / b
            print(
                f"| {name} | {workload.name}, {label} | {a:.4g} | {b:.4g} | "
                f"{workload.unit} | {ratio:.3f} | "
                f"{min(pairs):.2f} to {max(pairs):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    command.tool(Options, main)
