"""The process of one system: builds what it runs, then runs it whenever it is told to.

    python -m experiments.bench.worker '{"module": ..., "function": ..., ...}'

The function is one of `experiments.bench.<module>`. It returns what to run, which
returns how much work it did, or a dict of that and of what else it has counted. Every
line on standard input asks for one run; every run is answered by one line of JSON.
Nothing is imported that the system does not need.
"""

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path


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
        start, cpu_start = time.perf_counter(), _cpu_seconds()
        work = run()
        seconds = time.perf_counter() - start
        cpu_seconds = _cpu_seconds() - cpu_start
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = {
            "seconds": seconds,
            **(work if isinstance(work, dict) else {"work": work}),
            "gigabytes": most / (1e9 if sys.platform == "darwin" else 1e6),
            "cpu_seconds": cpu_seconds,
        }
        print(json.dumps(answer), file=answers, flush=True)


def _cpu_seconds() -> float:
    """Of this process and all below it, as long as they live."""
    used, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        used[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    below, own = 0.0, os.getpid()
    for number in used:
        above = parents.get(number)
        while above not in (None, 0, own):
            above = parents.get(above)
        below += used[number] if above == own else 0
    gone = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + below + gone.ru_utime + gone.ru_stime


if __name__ == "__main__":
    main()
