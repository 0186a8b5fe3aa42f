"""p2pjax on the training workloads in several processes, of which this is the first."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax

from experiments.bench import p2pjax_training


def rounds(setting: dict[str, Any], num_processes: int) -> Callable[[], float]:
    """Updates done by all agents in a run; every process has a share of the agents."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    others = [
        _worker({"setting": setting, "seat": [num_processes, number, port]})
        for number in range(1, num_processes)
    ]
    run = one_of_several(setting, [num_processes, 0, port])
    is_first = True  # the others come to that run by themselves

    def together() -> float:
        nonlocal is_first
        for other in others:
            if not is_first:
                other.stdin.write("\n")
                other.stdin.flush()
        is_first = False
        work = run()
        assert all(other.stdout.readline() for other in others), "a process ended"
        return work

    return together


def one_of_several(setting: dict[str, Any], seat: list[int]) -> Callable[[], float]:
    """The same in one process, whose runs must be those of the others."""
    num_processes, number, port = seat
    jax.distributed.initialize(f"localhost:{port}", num_processes, number)
    return p2pjax_training.rounds(setting, num_devices=1)


def _worker(arguments: dict[str, Any]) -> Any:
    asked = {
        "module": "p2pjax_processes",
        "function": "one_of_several",
        "arguments": arguments,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.bench.worker", json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # it says so at length when the first is killed
        text=True,
    )
