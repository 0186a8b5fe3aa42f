"""The process of one system: builds what it runs, then runs it whenever it is told to.

    python -m experiments.bench.worker '{"module": ..., "function": ..., ...}'

The function is one of `experiments.bench.<module>`. It returns what to run, which
returns how much work it did. Every line on standard input asks for one run; every run
is answered by one line of JSON. Nothing is imported that the system does not need.
"""

import importlib
import json
import os
import resource
import sys
import time


def main() -> None:
    """Serves until standard input ends."""
    if len(sys.argv) != 2 or not sys.argv[1].startswith("{"):
        given = " ".join(sys.argv[1:])
        print(f"Need what to run as JSON, got {given!r}.", file=sys.stderr)
        sys.exit(2)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the system prints is not an answer
    asked = json.loads(sys.argv[1])
    module = importlib.import_module(f"experiments.bench.{asked['module']}")
    run = getattr(module, asked["function"])(**asked["arguments"])
    run()  # compiles, fills caches
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        start, cpu_start = time.perf_counter(), time.process_time()
        work = run()
        seconds = time.perf_counter() - start
        cpu_seconds = time.process_time() - cpu_start
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = {
            "seconds": seconds,
            "work": work,
            "gigabytes": most / (1e9 if sys.platform == "darwin" else 1e6),
            "cpu_seconds": cpu_seconds,
        }
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
