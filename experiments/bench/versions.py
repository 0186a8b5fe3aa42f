"""Compares two checkouts of p2pjax, in turns in one run.

    python -m experiments.bench.versions --other=DIR --suite=headline,mixing --repeats=7

A ratio above 1 means that this checkout is faster. Needs a quiet machine.
"""

import contextlib
import statistics
from collections.abc import Iterator
from pathlib import Path

from absl import app, flags

from experiments import common
from experiments.bench.harness import ROOT, Process, System, Workload
from experiments.bench.suites import SUITES
from p2pjax.types import InputError

_OTHER = flags.DEFINE_string("other", None, "Folder of the other checkout.")
_SUITE = flags.DEFINE_list("suite", ["headline"], f"Among {', '.join(SUITES)}.")
_REPEATS = flags.DEFINE_integer(
    "repeats", 7, "Turns of each checkout; their median counts.", lower_bound=1
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


def main() -> None:
    """Prints a row for each workload."""
    unknown = set(_SUITE.value) - set(SUITES)
    if unknown or _OTHER.value is None or not Path(_OTHER.value, "p2pjax").is_dir():
        raise InputError(
            f"Need --suite among {', '.join(SUITES)} and --other with another "
            f"checkout, got {','.join(_SUITE.value)} and {_OTHER.value}."
        )
    other = Path(_OTHER.value).resolve()
    print("| suite | system | this | other | unit | ratio | ratios of turns |")
    print("|---" * 7 + "|")
    for name in _SUITE.value:
        for workload, label, system in own_systems(name):
            mine, theirs = compared(workload, system, other, _REPEATS.value)
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
    app.run(lambda _: common.guarded(main), flags_parser=common.parse_flags)
