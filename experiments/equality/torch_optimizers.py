"""torch's optimizers and gradients on the quadratics, in float64."""

from typing import Any

import numpy as np

from experiments.equality.quadratics import (
    DISTINCT,
    MATRIX,
    NUM_ROUNDS,
    RATE,
    SIZE,
    START,
    A,
    B,
)


def alone(name: str, **options: Any) -> np.ndarray:
    """Each agent trains by itself with an optimizer of `torch.optim`, `[R, 5, 3]`."""
    import torch

    x = torch.tensor(DISTINCT, requires_grad=True)
    optimizer = getattr(torch.optim, name)([x], lr=RATE, **options)
    return np.array([_step(x, optimizer) for _ in range(NUM_ROUNDS)])


def central(momentum: float) -> np.ndarray:
    """One model on the mean loss of all agents, `[R, 5, 3]`."""
    import torch

    x = torch.tensor(START[0], requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=RATE, momentum=momentum)
    found = [_step(x, optimizer, mean=True) for _ in range(NUM_ROUNDS)]
    return np.repeat(np.array(found)[:, None], SIZE, 1)


def gossip(momentum: float, nesterov: bool) -> np.ndarray:
    """A step of each agent, then the product with the matrix, `[R, 5, 3]`."""
    import torch

    x = torch.tensor(DISTINCT, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=RATE, momentum=momentum, nesterov=nesterov)
    found = []
    for _ in range(NUM_ROUNDS):
        _step(x, optimizer)
        found.append(_mixed(x))
    return np.array(found)


def restarted(rate: float, momentum: float, num_steps: int) -> np.ndarray:
    """So many steps with a new optimizer, then the product, `[R, 5, 3]`."""
    import torch

    x, found = torch.tensor(DISTINCT, requires_grad=True), []
    for _ in range(NUM_ROUNDS):
        optimizer = torch.optim.SGD([x], lr=rate, momentum=momentum)
        for _ in range(num_steps):
            _step(x, optimizer)
        found.append(_mixed(x))
    return np.array(found)


def _mixed(x: Any) -> np.ndarray:
    import torch

    with torch.no_grad():
        x.copy_(torch.from_numpy(MATRIX) @ x)
    return x.detach().numpy().copy()


def _step(x: Any, optimizer: Any, mean: bool = False) -> np.ndarray:
    """One step along the gradient of each agent's own loss, or of their mean."""
    import torch

    each = x.expand(SIZE, 3) if mean else x
    rest = torch.einsum("nij,nj->ni", torch.from_numpy(A), each) - torch.from_numpy(B)
    losses = rest.square().sum(1) / 2
    optimizer.zero_grad()
    (losses.mean() if mean else losses.sum()).backward()
    optimizer.step()
    return x.detach().numpy().copy()
