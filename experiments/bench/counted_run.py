"""Runs an experiment and counts what it compiles, in whatever checkout it is started.

    python -c "exec(open('counted_run.py').read())" COUNTS experiments.NAME FLAGS

The file COUNTS then says, as JSON, how many programs were compiled (`programs`), how
many were found in the compilation cache (`found`) and how many seconds both took by the
clock, summed over programs (`seconds`): of those side by side each counts. It needs
nothing but JAX, so that it can count in older states of this package too.
"""

import json
import runpy
import sys
from pathlib import Path

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"
FOUND = "/jax/compilation_cache/cache_hits"


def main() -> None:
    """Counts until the experiment has ended."""
    counts = {"programs": 0, "found": 0, "seconds": 0.0}

    def on_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == COMPILED:
            counts["programs"] += 1
            counts["seconds"] += duration_secs

    def on_event(event: str, **kwargs: str | int) -> None:
        counts["found"] += event == FOUND

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(on_event)
    path, module, *flags = sys.argv[1:]
    sys.argv = [module, *flags]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        counts["programs"] -= counts["found"]
        Path(path).write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
