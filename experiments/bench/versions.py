"""Compares two checkouts of p2pjax, in turns in one run.

    python -m experiments.bench.versions --other=DIR --suite=headline,mixing --repeats=7
    python -m experiments.bench.versions --other=DIR --suite=first_result --only=femnist

A ratio above 1 means that this checkout is faster. Needs a quiet machine.
"""

import contextlib
import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.bench.harness import (
    ROOT,
    Answer,
    Process,
    System,
    Workload,
    together,
)
from experiments.bench.suites import SUITES
from experiments.engine import command
from experiments.engine.fields import integer, names, text
from p2pjax.types import InputError

FALLING = ("s", "CPU-s", "s of compiling", "programs", "GB")  # units: less is better


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the comparison."""

    other: str | None = text(None, "Folder of the other checkout.")
    suite: tuple[str, ...] = names(
        ("headline",), "What is measured.", among=list(SUITES)
    )
    only: tuple[str, ...] | None = names(
        None, "Workloads of these suites, by their first name; all if not given."
    )
    repeats: int = integer(
        7, "Turns of each checkout; their median counts.", at_least=1
    )


def own_systems(
    name: str, only: Sequence[str] | None = None
) -> Iterator[tuple[Sequence[Workload], str, System]]:
    """What of a suite runs p2pjax itself, and what is measured of each run."""
    for same in together(SUITES[name]().workloads):
        if only is not None and same[0].name not in only:
            continue
        for system, each in same[0].systems.items():
            if "p2pjax" in (system[:6], each.module[:6]):
                yield same, system, each


def compared(system: System, other: Path, repeats: int) -> list[tuple[Answer, Answer]]:
    """Answers of both checkouts, in turns."""
    found = []
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(Process(str(folder), system, folder))
            for folder in (ROOT, other)
        ]
        for process in both:
            process.wait_until_ready()
        for _ in range(repeats):
            mine, theirs = (process.ask() for process in both)
            found.append((mine, theirs))
    return found


def main(options: Options, arguments: list[str]) -> None:
    """Prints a row for each workload."""
    if arguments or not Path(options.other or "", "p2pjax").is_dir():
        raise InputError(
            "Need --other with the folder of another checkout, got "
            f"{options.other} {' '.join(arguments)}."
        )
    there = [w.name for name in options.suite for w in SUITES[name]().workloads]
    if unknown := set(options.only or ()) - set(there):
        raise InputError(
            f"Need --only among {', '.join(there)}, got {', '.join(sorted(unknown))}."
        )
    other = Path(options.other or "").resolve()
    print("| suite | system | this | other | unit | ratio | ratios of turns |")
    print("|---" * 7 + "|")
    for name in options.suite:
        for workloads, label, system in own_systems(name, options.only):
            answers = compared(system, other, options.repeats)
            for workload in workloads:
                mine, theirs = (
                    [workload.measure(answer) for answer in own]
                    for own in zip(*answers, strict=True)
                )
                print(row(name, workload, label, mine, theirs), flush=True)


def row(
    suite: str,
    workload: Workload,
    label: str,
    mine: Sequence[float],
    theirs: Sequence[float],
) -> str:
    """Of the table: medians, their ratio, and the range of ratios of turns.

    Args:
      suite: its name.
      workload: what was measured.
      label: of the system.
      mine: of this checkout, a value for each turn.
      theirs: of the other.
    """
    falls = workload.unit in FALLING or "ms" in workload.unit
    pairs = zip(theirs, mine, strict=True) if falls else zip(mine, theirs, strict=True)
    turns = [_ratio(*pair) for pair in pairs]
    a, b = statistics.median(mine), statistics.median(theirs)
    ratio = _ratio(b, a) if falls else _ratio(a, b)
    return (
        f"| {suite} | {workload.name}, {label} | {a:.4g} | {b:.4g} | "
        f"{workload.unit} | {ratio:.3f} | {min(turns):.2f} to {max(turns):.2f} |"
    )


def _ratio(a: float, b: float) -> float:
    return a / b if b else float("nan")  # nothing was compiled


if __name__ == "__main__":
    command.tool(Options, main)
