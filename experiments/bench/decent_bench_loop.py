"""decent-bench: FedAvg of all clients by PyTorch, without its metrics and snapshots.

pip install decent-bench torch==2.13.0, with Python 3.13. A server's mean stands where
the others average with neighbours: of its methods only that one takes several local
steps of mini-batches and then averages.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from decent_array.types import Devices, Frameworks
from decent_bench.agents import Agent
from decent_bench.algorithms.federated import FedAvg
from decent_bench.benchmark import configure
from decent_bench.costs import PyTorchCost
from decent_bench.networks import FedNetwork

from experiments.bench import inputs
from experiments.bench.torch_loop import network_of


def rounds(setting: dict[str, Any], threads: int) -> Callable[[], float]:
    """Updates done by all clients in a run."""
    torch.set_num_threads(threads)
    configure(Frameworks.PYTORCH, Devices.CPU, seed=0, log_level=logging.ERROR)
    want = inputs.Training(**setting)
    num_used = want.num_steps * want.batch_size  # examples of a local epoch
    x, y = inputs.examples(want.network, want.num_agents, num_used)
    clients = [
        Agent(_cost(want, x[agent], y[agent])) for agent in range(want.num_agents)
    ]
    network = FedNetwork(clients)
    algorithm = FedAvg(step_size=0.01, num_local_steps=want.num_steps)
    algorithm.initialize(network)
    done = 0

    def run() -> float:
        nonlocal done
        for _ in range(want.num_rounds):
            network._step(done)
            algorithm.step(network, done)
            done += 1
        return want.updates

    return run


def _cost(want: inputs.Training, x: Any, y: Any) -> PyTorchCost:
    layers, _ = network_of(want.network)
    images = torch.from_numpy(x).flatten(1).float() / 255
    labels = torch.from_numpy(y).flatten().long()
    return PyTorchCost(
        list(zip(images, labels, strict=True)),
        layers,
        torch.nn.CrossEntropyLoss(),
        batch_size=want.batch_size,
    )
