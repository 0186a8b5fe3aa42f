"""A whole small experiment, from the command line to its table."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from p2pjax.types import InputError

HERE = Path(__file__).parent


def whole_run(
    experiment: str, is_warm: bool, flags: Sequence[str], checkout: str
) -> Callable[[], dict[str, float]]:
    """An experiment in a process of its own, with a compilation cache of its own.

    Args:
      experiment: its name.
      is_warm: whether the cache has what the run before has compiled; else it is empty.
      flags: of the experiment.
      checkout: folder of the code that runs.
    """
    kept = tempfile.TemporaryDirectory()  # until this worker ends
    script = f"exec(open({str(HERE / 'counted_run.py')!r}).read())"

    def run() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            counts = Path(folder, "counts.json")
            command = [sys.executable, "-c", script, str(counts)]
            command += [f"experiments.{experiment}", *flags, f"--workdir={folder}/run"]
            caches = {"XDG_CACHE_HOME": kept.name if is_warm else f"{folder}/cache"}
            environment = {**os.environ, **caches}
            environment.pop("JAX_COMPILATION_CACHE_DIR", None)
            done = subprocess.run(
                command, cwd=checkout, env=environment, capture_output=True, text=True
            )
            if done.returncode:
                raise InputError(
                    f"Need experiments.{experiment} to end well in {checkout}, but it "
                    f"said: {done.stderr[-500:]}"
                )
            found = json.loads(counts.read_text())
        return {
            "work": 1,
            "programs": found["programs"],
            "compile_seconds": found["seconds"],
        }

    return run
