"""gossipy on the quadratics: its handlers train and merge, its nodes choose peers.

pip install --no-deps gossipy-dfl; it imports torchvision for downloads only.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.equality.absent import without_torchvision
from experiments.equality.quadratics import DISTINCT, NUM_ROUNDS, RATE, SIZE, A, B


def averaged(neighbors: Sequence[Sequence[int]]) -> np.ndarray:
    """All train by one step and take the mean with their neighbours, `[R, 5, 3]`.

    Args:
      neighbors: of each agent.
    """
    handlers, found = _handlers(), []
    for _ in range(NUM_ROUNDS):
        _train(handlers)
        before = [handler.copy() for handler in handlers]
        for handler, peers in zip(handlers, neighbors, strict=True):
            handler._merge([before[n] for n in peers])
        found.append(_models(handlers))
    return np.array(found)


def chosen(num_peers: int) -> np.ndarray:
    """Its PENS nodes in the first stage, all others tried in each round, `[R, 5, 3]`.

    They rank by accuracy; here by minus the loss, in the same place.
    """
    without_torchvision()
    from gossipy import CACHE
    from gossipy.core import AntiEntropyProtocol, StaticP2PNetwork
    from gossipy.node import PENSNode

    network = StaticP2PNetwork(SIZE, None)
    nodes = [
        PENSNode(
            number,
            (_examples(number), None),
            SIZE,
            handler,
            network,
            SIZE - 1,
            num_peers,
        )
        for number, handler in enumerate(_handlers())
    ]
    _train([node.model_handler for node in nodes])  # as its `init_model` does
    found = []
    for t in range(NUM_ROUNDS):
        push = AntiEntropyProtocol.PUSH
        sent = [
            node.send(t, to, push)
            for node in nodes
            for to in range(SIZE)
            if to != node.idx
        ]
        for message in sent:
            nodes[message.receiver].receive(t, message)
        CACHE.clear()
        found.append(_models([node.model_handler for node in nodes]))
    return np.array(found)


def _examples(number: int) -> Any:
    import torch

    return torch.from_numpy(A[number : number + 1]), torch.from_numpy(
        B[number : number + 1]
    )


def _train(handlers: Sequence[Any]) -> None:
    for number, handler in enumerate(handlers):
        handler._update(_examples(number))


def _models(handlers: Sequence[Any]) -> list[np.ndarray]:
    return [handler.model.x.detach().numpy().copy() for handler in handlers]


def _handlers() -> list[Any]:
    without_torchvision()
    import torch
    from gossipy.model import TorchModel
    from gossipy.model.handler import TorchModelHandler

    class Point(TorchModel):
        def __init__(self, at: np.ndarray):
            super().__init__()
            self.x = torch.nn.Parameter(torch.from_numpy(at.copy()))

        def init_weights(self) -> None:
            """They are given."""

        def forward(self, a: Any) -> Any:
            return a @ self.x

    class Handler(TorchModelHandler):
        def evaluate(self, data: Any) -> dict[str, float]:
            a, b = data
            return {"accuracy": -self.criterion(self.model(a), b).item()}

    return [
        Handler(
            net=Point(at),
            optimizer=torch.optim.SGD,
            optimizer_params={"lr": RATE},
            criterion=lambda found, wanted: (found - wanted).square().sum() / 2,
            local_epochs=1,
            batch_size=1,
        )
        for at in DISTINCT
    ]
