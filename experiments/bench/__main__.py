"""Runs benchmarks: tables on the screen, bench.json and bench.md in the work folder.

    python -m experiments.bench --suite=headline --workdir=DIR [--repeats=9]

With several suites, each has a folder of its own in the work folder. Needs a quiet
machine; `pip install torch gossipy-dfl torchvision` lets those take part that p2pjax
itself does not need.
"""

import dataclasses
import os
import time
from pathlib import Path

from experiments.bench import harness
from experiments.bench.suites import SUITES
from experiments.engine import command
from experiments.engine.fields import RESULTS, integer, names, text
from p2pjax.types import InputError


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags of the benchmarks."""

    suite: tuple[str, ...] | None = names(None, "What is measured.", among=list(SUITES))
    repeats: int = integer(5, "Turns of every system; their median counts.", at_least=1)
    workdir: str | None = text(
        None, "Folder for the results; runs/bench-<time> if not given.", topic=RESULTS
    )


def main(options: Options, arguments: list[str]) -> None:
    """Runs the suites that the flags name."""
    if options.suite is None or arguments:
        raise InputError(
            f"Need --suite among {', '.join(SUITES)}, got '{','.join(arguments)}'."
        )
    default = f"runs/bench-{time.strftime('%Y%m%d-%H%M%S')}"
    workdir = Path(options.workdir or default)
    for name in options.suite:
        folder = workdir / name if len(options.suite) > 1 else workdir
        suite = SUITES[name]()
        samples = harness.run(suite, options.repeats)
        print(f"# {name}\n\n{harness.write(folder, name, suite, samples)}")
        print(f"Load of the last minute {os.getloadavg()[0]:.1f}; saved in {folder}.\n")


if __name__ == "__main__":
    command.tool(Options, main)
