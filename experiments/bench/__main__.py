"""Runs benchmarks: tables on the screen, bench.json and bench.md in the work folder.

    python -m experiments.bench --suite=headline --workdir=DIR [--repeats=9]

With several suites, each has a folder of its own in the work folder. Needs a quiet
machine; `pip install torch gossipy-dfl torchvision` lets those take part that p2pjax
itself does not need.
"""

import os
import time
from pathlib import Path

from absl import app, flags

from experiments import common
from experiments.bench import harness
from experiments.bench.suites import SUITES
from p2pjax.types import InputError

_SUITE = flags.DEFINE_list("suite", [], f"Among {', '.join(SUITES)}.")
_REPEATS = flags.DEFINE_integer(
    "repeats", 5, "Turns of every system; their median counts.", lower_bound=1
)


def main() -> None:
    """Runs the suites that the flags name."""
    names = _SUITE.value
    if not names or not set(names) <= set(SUITES):
        raise InputError(
            f"Need --suite among {', '.join(SUITES)}, got '{','.join(names)}'."
        )
    default = f"runs/bench-{time.strftime('%Y%m%d-%H%M%S')}"
    workdir = Path(common.WORKDIR.value or default)
    for name in names:
        folder = workdir / name if len(names) > 1 else workdir
        suite = SUITES[name]()
        samples = harness.run(suite, _REPEATS.value)
        print(f"# {name}\n\n{harness.write(folder, name, suite, samples)}")
        print(f"Load of the last minute {os.getloadavg()[0]:.1f}; saved in {folder}.\n")


if __name__ == "__main__":
    app.run(lambda _: common.guarded(main), flags_parser=common.parse_flags)
