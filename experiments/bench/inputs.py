"""What all systems train on, in numpy only: examples, graphs, what a step costs."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# {"kind": "mlp", "widths": [784, 300, 100, 10]}
# {"kind": "cnn", "image": [32, 32, 3], "channels": [32, 64], "dense": [512]}
# {"kind": "norm_cnn", "written": "linen", "image": ..., "channels": ..., "dense": ...}
# {"kind": "gru", "words": 10_000, "units": 100, "length": 10}
# {"kind": "encoder", "words": 30_522, "length": 64}
Network = Mapping[str, Any]

NUM_CLASSES = 10
NUM_TAGS = 9  # of every token, for the encoder


class Training(NamedTuple):
    """Rounds of local mini-batch steps and an averaging with neighbours."""

    network: Network
    num_agents: int
    batch_size: int
    num_steps: int  # of a round
    num_rounds: int = 1  # of a run
    num_examples: int = 100  # of an agent
    degree: int = 3
    per_sample: bool = False  # a step for every example of a mini-batch

    @property
    def updates(self) -> int:
        """Of all agents in a run."""
        steps = self.num_rounds * self.num_agents * self.num_steps
        return steps * (self.batch_size if self.per_sample else 1)


def examples(
    network: Network, num_agents: int, num_examples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels, `[N, M, ...]`; images are bytes, texts are token ids."""
    rng = np.random.default_rng(0)
    size = (num_agents, num_examples)
    if network["kind"] in ("mlp", "cnn", "norm_cnn"):
        is_flat = network["kind"] == "mlp"
        shape = network["widths"][:1] if is_flat else network["image"]
        x = rng.integers(0, 256, (*size, *shape), np.uint8)
        return x, rng.integers(0, NUM_CLASSES, size, np.int32)
    words, length = network["words"], network["length"]
    x = rng.integers(1, words, (*size, length), np.int32)
    if network["kind"] == "gru":
        return x, rng.integers(1, words, size, np.int32)
    return x, rng.integers(0, NUM_TAGS, (*size, length), np.int32)


def peer_ids(num_agents: int, degree: int) -> np.ndarray:
    """`[N, 1 + degree]`: an agent itself and whom it averages with."""
    rng = np.random.default_rng(0)
    others = [rng.permutation(num_agents) for _ in range(degree)]
    return np.stack([np.arange(num_agents), *others], axis=1).astype(np.int32)


def drawn_peers(
    rng: np.random.Generator, num_agents: int, number: int
) -> list[list[int]]:
    """So many different others of every agent, anew at every call."""
    rows = []
    for agent in range(num_agents):
        drawn = rng.choice(num_agents - 1, number, replace=False)
        rows.append([int(other) + (int(other) >= agent) for other in drawn])
    return rows


def mlp_gigaflops(widths: Sequence[int], batch_size: int) -> float:
    """Of one step; the first layer has no gradient of its inputs."""
    products = [a * b for a, b in itertools.pairwise(widths)]
    return 2 * batch_size * (3 * sum(products) - products[0]) / 1e9
