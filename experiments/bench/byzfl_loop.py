"""ByzFL: the exchange of attacked messages alone, receiver by receiver.

pip install --no-deps byzfl==0.0.11 && pip install seaborn, beside torch
"""

import sys
from collections.abc import Callable
from unittest.mock import MagicMock

import torch

# ByzFL imports torchvision for its data sets only; one built for CUDA does not load
# beside PyTorch for CPUs ("operator torchvision::nms does not exist").
try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    for _name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
        sys.modules[_name] = MagicMock()
import byzfl

from experiments.bench import inputs


def adverse_exchange(
    num_agents: int, num_columns: int, degree: int, threads: int
) -> Callable[[], float]:
    """A tenth of ALIE, losses, the trimmed mean of what arrived and of the own."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    ids = torch.from_numpy(inputs.peer_ids(num_agents, degree)).long()
    held = torch.randn(num_agents, num_columns)
    is_byzantine = torch.arange(num_agents) % 10 == 0
    rule = byzfl.TrMean(f=1)

    def run() -> float:
        nonlocal held
        honest = held[~is_byzantine]
        sent = held.clone()
        sent[is_byzantine] = honest.mean(0) + 1.5 * honest.std(0)
        out = torch.empty_like(held)
        for i in range(num_agents):
            arrived = torch.rand(degree) > 0.3
            peers = ids[i, 1:][arrived]
            if len(peers) < 2:  # too few to leave one out on both sides
                out[i] = held[i]
                continue
            out[i] = rule(torch.cat([held[i : i + 1], sent[peers]]))
        held = out
        return 1.0

    return run
