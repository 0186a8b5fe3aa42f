"""How much memory runs take, beside what is estimated before they start.

    python -m experiments.bench.estimates

Each run is a process of its own; counted is what it grows by after the estimate, at its
highest. Needs Linux, which can forget the highest so far, and about 4 GB.
"""

import contextlib
import dataclasses
import importlib
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.bench.harness import ROOT
from experiments.engine import command, fitting
from experiments.engine.config import Common
from experiments.engine.fields import text
from experiments.engine.jobs import Batch
from p2pjax.memory_estimate import MemoryEstimate
from p2pjax.types import InputError

_TWICE = ("--num_rounds=4", "--eval_every=2", "--checkpoint_every=2")
_WIDE = ("compare", "--num_agents=64", "--hidden=1500,1500", *_TWICE)
RUNS: dict[str, Sequence[str]] = {
    "MLP, 1200 agents, partial averaging, per sample": (
        *("femnist", "--num_agents=1200", "--levels=80", "--train_size=20"),
        *("--test_size=10", "--batch_size=10", *_TWICE),
    ),
    "MLP, 64 agents, D-PSGD, Adam": (*_WIDE, "--methods=dpsgd", "--optimizer=adam"),
    "MLP, 64 agents, FedAvg, momentum": (
        *(*_WIDE, "--methods=fedavg", "--optimizer=momentum"),
    ),
    "MLP, 64 agents, PENS": (*_WIDE, "--methods=pens"),
    "CNN, 1000 agents, PENS, Adam": (
        *("connections", "--dataset=glyphs", "--num_agents=1000", "--methods=pens"),
        *("--network=cnn", *_TWICE),
    ),
    "GRU, 400 agents, P2P-BN, Adam": (
        *("next_word", "--num_agents=400", "--methods=p2p_bn", "--num_rounds=2"),
        *("--eval_every=1", "--checkpoint_every=1"),
    ),
    "GRU, 400 agents, D2, Adam": (
        *("next_word", "--num_agents=400", "--methods=d2", "--num_rounds=2"),
        *("--eval_every=1", "--checkpoint_every=1"),
    ),
    "MLP, 16 agents, 100,000 tests each": (
        *("vsn", "--num_agents=16", "--test_size=100000", "--levels=80", *_TWICE),
    ),
}


def measured(arguments: Sequence[str]) -> tuple[int, int]:
    """Estimate and growth of one run in this process, in bytes."""
    name, *flags = arguments
    experiment = importlib.import_module(f"experiments.{name}.study").EXPERIMENT
    experiment = dataclasses.replace(experiment, report=lambda *_: None)
    estimated: list[int] = []
    held: list[int] = []
    ask = fitting._need

    def need(config: Common, batch: Batch) -> MemoryEstimate:
        found = ask(config, batch)
        estimated.append(found.total)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is forgotten
        held.append(_of_status("VmRSS"))
        return found

    fitting._need = need
    with tempfile.TemporaryDirectory() as folder:
        quiet = ("--verbosity=-1", f"--workdir={folder}/run")
        command.start(experiment, [*flags, *quiet])
    return estimated[0], _of_status("VmHWM") - held[0]


def _of_status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def lines() -> Iterator[str]:
    """Of the table, one when a run has ended."""
    yield "| run | estimated | taken | taken / estimated |\n|---|---|---|---|"
    for name in RUNS:
        done = subprocess.run(
            [sys.executable, "-m", "experiments.bench.estimates", f"--run={name}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        estimated, taken = json.loads(done.stdout)
        yield (
            f"| {name} | {estimated / 1e9:.2f} GB | {taken / 1e9:.2f} GB | "
            f"{taken / estimated:.2f} |"
        )


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the comparison."""

    run: str | None = text(None, "One of the runs, in this process; all if not given.")


def main(options: Options, arguments: list[str]) -> None:
    """Prints the table, or the two numbers of one run."""
    if arguments:
        raise InputError(f"Need no arguments but --run, got '{arguments[0]}'.")
    if options.run is None:
        for line in lines():
            print(line, flush=True)
        return
    if options.run not in RUNS:
        raise InputError(f"Need a run of {'; '.join(RUNS)}, got '{options.run}'.")
    with contextlib.redirect_stdout(io.StringIO()):
        found = measured(RUNS[options.run])
    print(json.dumps(found))


if __name__ == "__main__":
    command.tool(Options, main)
