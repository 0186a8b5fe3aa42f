"""Runs the systems of a workload in turn and writes what they reached.

Every system is a process (`worker`), so that the threads of one are not those of
another. All are alive at once and take turns, repeat by repeat, so that what disturbs
the machine disturbs all of them; the median of the repeats counts. The machine's own
limits, matrix products and copies, take turns with them.
"""

import contextlib
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.engine import own_files
from experiments.engine.command import num_cores
from p2pjax.types import InputError

ROOT = Path(__file__).parents[2]
NUM_CORES = num_cores()


class Answer(NamedTuple):
    """Of one run of one system."""

    seconds: float
    work: float  # in the unit of the workload
    gigabytes: float  # most that the process has held so far
    cpu_seconds: float  # of all its threads
    programs: float = 0  # that it has compiled, where it counts them
    compile_seconds: float = 0  # and how long that took


class System(NamedTuple):
    """What runs a workload: a function of a module of this package, see `worker`."""

    module: str
    function: str
    arguments: dict[str, Any]
    threads: int = NUM_CORES
    python: str = sys.executable  # of its own environment
    starts_checkout: bool = False  # takes as `checkout` the folder of what it starts


class Workload(NamedTuple):
    """The same work for several systems."""

    name: str
    unit: str
    measure: Callable[[Answer], float]
    systems: Mapping[str, System]


# workload -> system -> median
Medians = Mapping[str, Mapping[str, float]]


class Suite(NamedTuple):
    """Workloads and what their results say."""

    workloads: Sequence[Workload]
    ratios: Callable[[Medians], dict[str, float]]


def rate(answer: Answer) -> float:
    """Work per second."""
    return answer.work / answer.seconds


def seconds(answer: Answer) -> float:
    """Time of a run."""
    return answer.seconds


def cpu_seconds(answer: Answer) -> float:
    """Time of all cores for a run."""
    return answer.cpu_seconds


def milliseconds(answer: Answer) -> float:
    """Time of a run."""
    return answer.seconds * 1e3


def cpu_milliseconds(answer: Answer) -> float:
    """Time of all cores for one unit of work."""
    return answer.cpu_seconds / answer.work * 1e3


def gigabytes(answer: Answer) -> float:
    """Peak memory of the process."""
    return answer.gigabytes


def amount(answer: Answer) -> float:
    """What the run itself has counted."""
    return answer.work


MACHINE = (
    Workload(
        "gemm_peak",
        "GFLOP/s",
        rate,
        {
            name: System("machine", f"{name}_product", {"size": 2048})
            for name in ("jax", "numpy")
        },
    ),
    Workload(
        "copy_bandwidth",
        "GB/s",
        rate,
        {"jax": System("machine", "read_and_write", {"num_floats": 27_000_000})},
    ),
)


def is_installed(*packages: str) -> bool:
    """Whether a system that is not required can take part."""
    return all(importlib.util.find_spec(name) is not None for name in packages)


def torch_systems(function: str, arguments: dict[str, Any]) -> dict[str, System]:
    """PyTorch with one thread and with all cores, if it is installed."""
    if not is_installed("torch"):
        return {}
    return {
        f"torch_{threads}": System(
            "torch_loop", function, {**arguments, "threads": threads}, threads
        )
        for threads in sorted({1, NUM_CORES})
    }


def speedups(values: Mapping[str, float]) -> dict[str, float]:
    """How many times faster p2pjax is; `torch` is PyTorch at its better threads."""
    torch = [value for name, value in values.items() if name.startswith("torch_")]
    others = dict(values) | ({"torch": max(torch)} if torch else {})
    mine = others.pop("p2pjax", None)
    if mine is None:
        return {}
    return {f"p2pjax/{name}": mine / value for name, value in others.items()}


def run(suite: Suite, repeats: int) -> dict[str, dict[str, list[float]]]:
    """All samples of all systems of all workloads, the machine's limits included."""
    samples: dict[str, dict[str, list[float]]] = {}
    for same in together(suite.workloads):
        with contextlib.ExitStack() as stack:
            running = [
                (
                    some,
                    name,
                    stack.enter_context(Process(f"{some[0].name}, {name}", one)),
                )
                for some in (same, *((limit,) for limit in MACHINE))
                for name, one in some[0].systems.items()
            ]
            for _, _, process in running:
                process.wait_until_ready()
            for _ in range(repeats):
                for some, name, process in running:
                    answer = process.ask()
                    for workload in some:
                        found = samples.setdefault(workload.name, {})
                        found.setdefault(name, []).append(workload.measure(answer))
    return samples


def together(workloads: Sequence[Workload]) -> list[Sequence[Workload]]:
    """Neighbours with the same systems: one run of these gives all their measures."""
    groups = itertools.groupby(workloads, key=lambda workload: id(workload.systems))
    return [tuple(same) for _, same in groups]


class Process:
    """A worker that waits for its turn."""

    def __init__(self, name: str, system: System, checkout: Path = ROOT):
        self._name = name
        arguments = system.arguments
        if system.starts_checkout:
            arguments, checkout = {**arguments, "checkout": str(checkout)}, ROOT
        asked = {
            "module": system.module,
            "function": system.function,
            "arguments": arguments,
        }
        threads = str(system.threads)
        environment = os.environ | {
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            # Large pages for large arrays, in every system.
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        }
        self._process = subprocess.Popen(
            [system.python, "-m", "experiments.bench.worker", json.dumps(asked)],
            cwd=checkout,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *unused: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_until_ready(self) -> None:
        self._line()

    def ask(self) -> Answer:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return Answer(**json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise InputError(
                f"Need every system to finish its runs, but {self._name} ended with "
                f"status {self._process.wait()}: see what it said above."
            )
        return line


def medians(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> Medians:
    """Of the repeats."""
    return {
        workload: {name: statistics.median(values) for name, values in systems.items()}
        for workload, systems in samples.items()
    }


def write(
    folder: Path,
    name: str,
    suite: Suite,
    samples: Mapping[str, Mapping[str, Sequence[float]]],
) -> str:
    """Fills the folder with bench.json and bench.md; returns the table."""
    found = medians(samples)
    units = {one.name: one.unit for one in (*suite.workloads, *MACHINE)}
    rows = [
        {"workload": one, "system": system, "value": value, "unit": units[one]}
        for one, systems in found.items()
        for system, value in systems.items()
    ]
    ratios = suite.ratios(found)
    lines = ["| workload | system | median | lowest | highest | unit |"]
    lines.append("|---" * 6 + "|")
    for one, systems in samples.items():
        for system, values in systems.items():
            numbers = (found[one][system], min(values), max(values))
            shown = " | ".join(f"{number:.4g}" for number in numbers)
            lines.append(f"| {one} | {system} | {shown} | {units[one]} |")
    lines += ["", "| ratio | value |", "|---|---|"]
    lines += [f"| {ratio} | {value:.3g} |" for ratio, value in ratios.items()]
    table = "\n".join(lines) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    result = {"suite": name, "rows": rows, "ratios": ratios}
    own_files.write_whole(folder / "bench.json", json.dumps(result, indent=1) + "\n")
    own_files.write_whole(folder / "bench.md", table)
    return table
