"""Per-sample updates of sigmoid networks, written in plain numpy."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.bench import inputs

Layer = tuple[np.ndarray, np.ndarray]  # kernel [in, out], bias [out]


def rounds(setting: dict[str, Any]) -> Callable[[], float]:
    """Updates done by all agents in a run."""
    want = inputs.Training(**setting)
    widths = want.network["widths"]
    rng = np.random.default_rng(0)
    models: list[list[Layer]] = [
        [
            (
                rng.normal(0, a**-0.5, (a, b)).astype(np.float32),
                np.zeros(b, np.float32),
            )
            for a, b in itertools.pairwise(widths)
        ]
        for _ in range(want.num_agents)
    ]
    x, y = inputs.examples(want.network, want.num_agents, want.num_examples)
    x = (x / 255).astype(np.float32)
    target = np.eye(inputs.NUM_CLASSES, dtype=np.float32)[y]
    ids = inputs.peer_ids(want.num_agents, want.degree)
    done = 0

    def run() -> float:
        nonlocal models, done
        for _ in range(want.num_rounds):
            for _ in range(want.num_steps):
                for agent, model in enumerate(models):
                    for i in range(want.batch_size):
                        at = (done + i) % want.num_examples
                        update(model, x[agent, at], target[agent, at])
                done += want.batch_size
            models = [
                [_mean([models[i][layer] for i in row]) for layer in range(len(model))]
                for row, model in zip(ids, models, strict=True)
            ]
        return want.updates

    return run


def update(model: list[Layer], x: np.ndarray, target: np.ndarray) -> None:
    """A gradient step on half the squared error of one example, in place."""
    outputs = [x]
    for kernel, bias in model:
        outputs.append(1 / (1 + np.exp(-(outputs[-1] @ kernel + bias))))
    error = outputs[-1] - target
    for layer in reversed(range(len(model))):
        kernel, bias = model[layer]
        error = error * outputs[layer + 1] * (1 - outputs[layer + 1])
        below = kernel @ error if layer else error
        scaled = np.float32(0.01) * error
        kernel -= np.outer(outputs[layer], scaled)
        bias -= scaled
        error = below


def _mean(layers: list[Layer]) -> Layer:
    kernels, biases = zip(*layers, strict=True)
    return sum(kernels) / len(layers), sum(biases) / len(layers)
