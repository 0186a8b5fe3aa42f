"""Flower's simulation (Beutel et al. 2020): FedAvg of all clients, one Ray actor.

A server's mean stands where the others average with neighbours; starting Ray is part of
every run, as it is for users, so that `num_steps=0` says what that takes.
"""

from collections.abc import Callable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from experiments.bench import inputs
from experiments.bench.torch_loop import network_of


def rounds(setting: dict[str, Any]) -> Callable[[], float]:
    """Updates done by all clients in a run; at least one, also without steps."""
    want = inputs.Training(**setting)
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        agent = int(context.node_config["partition-id"])
        arrays = message.content["arrays"].to_torch_state_dict()
        trained = _trained(want, agent, arrays)
        answer = {
            "arrays": ArrayRecord(trained),
            "metrics": MetricRecord({"num-examples": want.num_examples}),
        }
        return Message(content=RecordDict(answer), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=2
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(network_of(want.network)[0].state_dict()),
            num_rounds=want.num_rounds,
        )

    def run() -> float:
        run_simulation(
            server_app=server,
            client_app=client,
            num_supernodes=want.num_agents,
            backend_config={
                "init_args": {"num_cpus": 1, "include_dashboard": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
        return max(1, want.updates)

    return run


_EXAMPLES: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}


def _trained(want: inputs.Training, agent: int, arrays: dict) -> dict:
    network, loss = network_of(want.network)
    network.load_state_dict(arrays)
    if "all" not in _EXAMPLES:  # once in the actor's process
        x, y = inputs.examples(want.network, want.num_agents, want.num_examples)
        xs = torch.from_numpy(x).float() / 255
        _EXAMPLES["all"] = xs, torch.from_numpy(y).long()
    x, y = (part[agent] for part in _EXAMPLES["all"])
    params = list(network.parameters())
    for step in range(want.num_steps):
        start = step * want.batch_size % want.num_examples
        stop = start + want.batch_size
        gradients = torch.autograd.grad(
            loss(network(x[start:stop]), y[start:stop]), params
        )
        with torch.no_grad():
            torch._foreach_add_(params, gradients, alpha=-0.01)
    return network.state_dict()
