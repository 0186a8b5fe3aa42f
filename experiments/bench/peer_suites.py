r"""Simulators and loops that people use, on one perceptron, in CPU time per step.

Each peer may live in an environment of its own, named by a variable:

    python -m venv P && P/bin/pip install torch==2.13.0 gossipy-dfl torchvision
    python -m venv F && F/bin/pip install torch==2.13.0 'flwr[simulation]'
    python3.13 -m venv D && D/bin/pip install torch==2.13.0 decent-bench
    BENCH_TORCH_PYTHON=P/bin/python BENCH_GOSSIPY_PYTHON=P/bin/python \
    BENCH_FLOWER_PYTHON=F/bin/python BENCH_DECENT_BENCH_PYTHON=D/bin/python \
    python -m experiments.bench --suite=peers

Those that are not there are left out, and why is printed. The CPU time is that of a
process and all that it has started.
"""

import os
import subprocess
import sys
from collections.abc import Sequence

from experiments.bench.harness import (
    Medians,
    Suite,
    System,
    Workload,
    cpu_milliseconds,
)
from experiments.bench.inputs import Training

# Variable, modules and distributions of a peer's environment.
_NEEDED = {
    "torch": ("BENCH_TORCH_PYTHON", ("torch",)),
    "gossipy": ("BENCH_GOSSIPY_PYTHON", ("gossipy-dfl", "torch")),
    "flower": ("BENCH_FLOWER_PYTHON", ("flwr", "ray", "torch")),
    "decent_bench": ("BENCH_DECENT_BENCH_PYTHON", ("decent-bench", "torch")),
}


def versions(peer: str) -> tuple[str, str | None]:
    """The peer's Python, and the versions there; None if something is missing."""
    variable, packages = _NEEDED[peer]
    python = os.environ.get(variable, sys.executable)
    asked = "import importlib.metadata as m; print(', '.join(f'{n} {m.version(n)}' "
    asked += f"for n in {packages!r}))"
    try:
        done = subprocess.run([python, "-c", asked], capture_output=True, text=True)
    except OSError:
        return python, None
    return python, None if done.returncode else done.stdout.strip()


def peers(
    num_agents: int = 100,
    widths: Sequence[int] = (784, 50, 10),
    batch_size: int = 10,
    num_steps: int = 10,
    num_rounds: int = 5,
) -> Suite:
    """Local steps and an averaging; one thread each."""
    network = {"kind": "mlp", "widths": list(widths)}
    want = Training(network, num_agents, batch_size, num_steps, num_rounds)
    setting = {"setting": want._asdict()}
    one = {**setting, "threads": 1}
    systems = {
        "p2pjax": System("p2pjax_training", "rounds", {**setting, "num_devices": 1}, 1),
        "jax_loop": System("jax_loop", "rounds", setting, 1),
    }
    for peer, (variable, packages) in _NEEDED.items():
        python, found = versions(peer)
        if found is None:
            needed = ", ".join(packages)
            print(f"Left out {peer}: no {needed} in {python}; set {variable}.")
            continue
        print(f"{peer}: {found}")
        if peer == "torch":
            loop = System("torch_loop", "rounds", one, 1, python)
            systems["torch_loop"] = loop
            systems["torch_vmap"] = loop._replace(module="torch_vmap")
        elif peer == "flower":
            systems["flower"] = System("flower_loop", "rounds", setting, 1, python)
        else:
            systems[peer] = System(f"{peer}_loop", "rounds", one, 1, python)
    workload = Workload("peers", "CPU-ms/agent-step", cpu_milliseconds, systems)

    def ratios(found: Medians) -> dict[str, float]:
        costs = dict(found["peers"])
        mine = costs.pop("p2pjax")
        return {f"CPU time {name}/p2pjax": cost / mine for name, cost in costs.items()}

    return Suite((workload,), ratios)
