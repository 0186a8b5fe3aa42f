"""gossipy (Polato): every agent pushes its model once a round; receivers merge, train.

pip install gossipy-dfl torchvision
"""

import contextlib
import io
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

# gossipy imports torchvision for its downloads only; one built for CUDA does not load
# beside PyTorch for CPUs ("operator torchvision::nms does not exist").
try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    for _name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
        del sys.modules[_name]
    sys.modules["torchvision"] = types.ModuleType("torchvision")
from gossipy.core import AntiEntropyProtocol, CreateModelMode, StaticP2PNetwork
from gossipy.data import DataDispatcher
from gossipy.data.handler import ClassificationDataHandler
from gossipy.model import TorchModel
from gossipy.model.handler import TorchModelHandler
from gossipy.node import GossipNode
from gossipy.simul import GossipSimulator

from experiments.bench import inputs
from experiments.bench.torch_loop import network_of


class _Network(TorchModel):
    def __init__(self, network: inputs.Network):
        super().__init__()
        self.layers = network_of(network)[0]

    def init_weights(self) -> None:
        """Leaves PyTorch's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def rounds(setting: dict[str, Any], threads: int) -> Callable[[], float]:
    """Updates done by all agents in a run; a model is merged with one other."""
    torch.set_num_threads(threads)
    logging.getLogger("gossipy").setLevel("ERROR")
    want = inputs.Training(**setting)
    num_used = want.num_steps * want.batch_size  # examples of a local epoch
    x, y = inputs.examples(want.network, want.num_agents, num_used)
    xs = torch.from_numpy(x).flatten(0, 1).float() / 255
    handler = ClassificationDataHandler(
        xs, torch.from_numpy(y).flatten().long(), test_size=0
    )
    dispatcher = DataDispatcher(
        handler, n=want.num_agents, eval_on_user=False, auto_assign=False
    )
    own = np.arange(want.num_agents * num_used).reshape(want.num_agents, -1)
    dispatcher.set_assignments([row.tolist() for row in own], None)
    ids = inputs.peer_ids(want.num_agents, want.degree)
    links = np.zeros((want.num_agents, want.num_agents), int)
    links[ids[:, :1], ids[:, 1:]] = 1
    nodes = GossipNode.generate(
        data_dispatcher=dispatcher,
        p2p_net=StaticP2PNetwork(want.num_agents, links),
        model_proto=TorchModelHandler(
            net=_Network(want.network),
            optimizer=torch.optim.SGD,
            optimizer_params={"lr": 0.01},
            criterion=torch.nn.functional.cross_entropy,
            local_epochs=1,
            batch_size=want.batch_size,
            create_model_mode=CreateModelMode.MERGE_UPDATE,
        ),
        round_len=want.num_agents,
        sync=True,
    )
    simulator = GossipSimulator(
        nodes, dispatcher, delta=want.num_agents, protocol=AntiEntropyProtocol.PUSH
    )
    simulator.init_nodes()

    def run() -> float:
        with contextlib.redirect_stdout(io.StringIO()):  # a bar per round
            simulator.start(n_rounds=want.num_rounds)
        return want.updates

    return run
