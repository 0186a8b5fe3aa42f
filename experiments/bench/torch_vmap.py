"""PyTorch with `torch.func`: all agents stacked, gradients by `vmap`, no loop."""

from collections.abc import Callable
from typing import Any

import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from experiments.bench import inputs
from experiments.bench.torch_loop import network_of


def rounds(setting: dict[str, Any], threads: int) -> Callable[[], float]:
    """Updates done by all agents in a run; perceptrons only."""
    torch.set_num_threads(threads)
    want = inputs.Training(**setting)
    x, y = inputs.examples(want.network, want.num_agents, want.num_examples)
    xs, ys = torch.from_numpy(x).float() / 255, torch.from_numpy(y).long()
    networks = [network_of(want.network)[0] for _ in range(want.num_agents)]
    network, loss = network_of(want.network)
    stacked, _ = stack_module_state(networks)
    params = {name: leaf.detach() for name, leaf in stacked.items()}  # [N, ...]
    ids = torch.from_numpy(inputs.peer_ids(want.num_agents, want.degree)).long()

    def loss_of(params: dict, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss(functional_call(network, params, (x,)), y)

    gradients = vmap(grad(loss_of))
    done = 0

    def run() -> float:
        nonlocal params, done
        for _ in range(want.num_rounds):
            for step in range(done, done + want.num_steps):
                start = step * want.batch_size % want.num_examples
                stop = start + want.batch_size
                found = gradients(params, xs[:, start:stop], ys[:, start:stop])
                params = {n: p.add(found[n], alpha=-0.01) for n, p in params.items()}
            done += want.num_steps
            params = {n: sum(p[row] for row in ids.T) for n, p in params.items()}
            for leaf in params.values():
                leaf.mul_(1 / ids.shape[1])
        return want.updates

    return run
