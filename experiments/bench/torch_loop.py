"""PyTorch loops over agents, hand-written: no optimizer objects, no data loaders."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from experiments.bench import inputs

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class _LastState(nn.Module):
    def __init__(self, units: int):
        super().__init__()
        self.gru = nn.GRU(units, units, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[1][0]


class _TinyEncoder(nn.Module):
    """BERT-Tiny and a tag for every token."""

    def __init__(self, words: int, length: int):
        super().__init__()
        self.tokens = nn.Embedding(words, 128)
        self.positions = nn.Parameter(torch.zeros(512, 128))
        self.segments = nn.Embedding(2, 128)
        self.norm = nn.LayerNorm(128, eps=1e-12)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                128, 2, 512, dropout=0.0, activation="gelu", batch_first=True
            )
            for _ in range(2)
        )
        self.head = nn.Linear(128, inputs.NUM_TAGS)
        self.length = length

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions[: self.length]
        x = self.norm(x + self.segments(torch.zeros_like(tokens)))
        for layer in self.layers:
            x = layer(x)
        return self.head(x).flatten(0, 1)


def network_of(network: inputs.Network) -> tuple[nn.Module, Loss]:
    """One agent's network and the loss of a batch."""
    kind = network["kind"]
    if kind == "mlp":
        widths = network["widths"]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            is_sigmoid = bool(network.get("sigmoid"))
            layers += [nn.Linear(a, b), nn.Sigmoid() if is_sigmoid else nn.ReLU()]
        if network.get("sigmoid"):
            return nn.Sequential(*layers), _squared_error
        return nn.Sequential(*layers[:-1]), functional.cross_entropy
    if kind == "cnn":
        height, width, channels = network["image"]
        layers = []
        for features in network["channels"]:
            layers += [nn.Conv2d(channels, features, 5), nn.ReLU(), nn.MaxPool2d(2)]
            channels, height, width = features, (height - 4) // 2, (width - 4) // 2
        cells = channels * height * width
        layers.append(nn.Flatten())
        for features in network["dense"]:
            layers += [nn.Linear(cells, features), nn.ReLU()]
            cells = features
        layers.append(nn.Linear(cells, inputs.NUM_CLASSES))
        return nn.Sequential(*layers), functional.cross_entropy
    if kind == "gru":
        units, words = network["units"], network["words"]
        module = nn.Sequential(
            nn.Embedding(words, units),
            _LastState(units),
            nn.Linear(units, units),
            nn.Linear(units, words),
        )
        return module, functional.cross_entropy
    module = _TinyEncoder(network["words"], network["length"])
    return module, lambda logits, y: functional.cross_entropy(logits, y.flatten())


def _squared_error(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    target = functional.one_hot(labels, inputs.NUM_CLASSES)
    return (outputs - target).square().sum(-1).mean() / 2


class _Agents:
    """Networks of all agents, and their training."""

    def __init__(self, want: inputs.Training):
        x, y = inputs.examples(want.network, want.num_agents, want.num_examples)
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y).long()
        if want.network["kind"] in ("mlp", "cnn"):
            self.x = self.x.float() / 255
        if want.network["kind"] == "cnn":
            self.x = self.x.movedim(-1, 2).contiguous()
        self.loss = network_of(want.network)[1]
        self.networks = [network_of(want.network)[0] for _ in range(want.num_agents)]
        self.models = [list(network.parameters()) for network in self.networks]
        self._size = 1 if want.per_sample else want.batch_size
        self._num_updates = want.num_steps * want.batch_size // self._size
        self._num_examples, self._done = want.num_examples, 0

    def train(self) -> None:
        """The steps of one round, agent after agent."""
        for agent in range(len(self.models)):
            self.train_one(agent, self._done)
        self._done += self._num_updates

    def train_one(self, agent: int, first: int) -> None:
        """The steps of one agent in a round, from number `first` on."""
        network, params = self.networks[agent], self.models[agent]
        x, y = self.x[agent], self.y[agent]
        for step in range(first, first + self._num_updates):
            start = step * self._size % self._num_examples
            stop = start + self._size
            loss = self.loss(network(x[start:stop]), y[start:stop])
            gradients = torch.autograd.grad(loss, params)
            with torch.no_grad():
                torch._foreach_add_(params, gradients, alpha=-0.01)

    @torch.no_grad()
    def average(self, ids: list[list[int]]) -> None:
        """Each agent takes the mean of the models in its row."""
        mixed = []
        for row in ids:
            total = [leaf.clone() for leaf in self.models[row[0]]]
            for i in row[1:]:
                torch._foreach_add_(total, self.models[i])
            torch._foreach_mul_(total, 1 / len(row))
            mixed.append(total)
        for params, new in zip(self.models, mixed, strict=True):
            torch._foreach_copy_(params, new)

    @torch.no_grad()
    def merge(self, receiver: int, sender: int) -> None:
        """The receiver takes the mean of both models."""
        torch._foreach_lerp_(self.models[receiver], self.models[sender], 0.5)

    @torch.no_grad()
    def best(self, agent: int, candidates: list[int], kept: int) -> list[int]:
        """The candidates whose models have the lowest loss on the agent's examples."""
        x, y = self.x[agent], self.y[agent]
        losses = [float(self.loss(self.networks[c](x), y)) for c in candidates]
        order = sorted(range(len(candidates)), key=losses.__getitem__)
        return [candidates[i] for i in order[:kept]]


def rounds(setting: dict[str, Any], threads: int) -> Callable[[], float]:
    """Updates done by all agents in a run."""
    torch.set_num_threads(threads)
    want = inputs.Training(**setting)
    agents = _Agents(want)
    ids = inputs.peer_ids(want.num_agents, want.degree).tolist()

    def run() -> float:
        for _ in range(want.num_rounds):
            agents.train()
            agents.average(ids)
        return want.updates

    return run


def pens_rounds(
    setting: dict[str, Any],
    num_candidates: int,
    num_kept: int,
    threads: int,
) -> Callable[[], float]:
    """Rounds of PENS, counted once for every agent."""
    torch.set_num_threads(threads)
    want = inputs.Training(**setting)
    agents = _Agents(want)
    rng = np.random.default_rng(0)

    def run() -> float:
        for _ in range(want.num_rounds):
            agents.train()
            drawn = inputs.drawn_peers(rng, want.num_agents, num_candidates)
            agents.average(
                [
                    [n, *agents.best(n, others, num_kept)]
                    for n, others in enumerate(drawn)
                ]
            )
        return float(want.num_rounds * want.num_agents)

    return run


def events(
    network: inputs.Network,
    num_agents: int,
    batch_size: int,
    num_examples: int,
    threads: int,
) -> Callable[[], float]:
    """Trainings in network epochs of P2P-BN, one after the other."""
    from experiments.bench import event_loops  # which imports JAX, for the host only

    torch.set_num_threads(threads)
    num_steps = num_examples // batch_size
    agents = _Agents(
        inputs.Training(
            network, num_agents, batch_size, num_steps, num_examples=num_examples
        )
    )
    epochs = event_loops.epochs(network, num_agents, num_examples)
    number = 0

    def run() -> float:
        nonlocal number
        events = epochs[number % len(epochs)]
        for event in events:
            agents.train_one(event.agent, 0)
            for receiver in event.receivers:
                agents.merge(receiver, event.agent)
        number += 1
        return float(len(events))

    return run


def mixing(num_agents: int, num_columns: int, degree: int, threads: int) -> Callable:
    """Averaging with neighbours alone, of stacked parameters, slot by slot."""
    torch.set_num_threads(threads)
    ids = torch.from_numpy(inputs.peer_ids(num_agents, degree)).long()
    weight = 1 / (1 + degree)
    held = torch.ones(num_agents, num_columns)
    out = torch.empty_like(held)

    def run() -> float:
        nonlocal held, out
        torch.mul(held, weight, out=out)
        for slot in range(1, 1 + degree):
            out.add_(held[ids[:, slot]], alpha=weight)
        held, out = out, held
        return 1.0

    return run


def adverse_exchange(
    num_agents: int, num_columns: int, degree: int, threads: int
) -> Callable:
    """8 bits, a tenth of ALIE, losses, ClippedGossip: receiver by receiver."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    ids = torch.from_numpy(inputs.peer_ids(num_agents, degree)).long()
    weight = 1 / (1 + degree)
    held = torch.randn(num_agents, num_columns)
    is_byzantine = torch.arange(num_agents) % 10 == 0

    def run() -> float:
        nonlocal held
        scale = held.abs().amax(1, keepdim=True) / 127
        sent = (held / scale).round() * scale
        honest = sent[~is_byzantine]
        sent[is_byzantine] = honest.mean(0) + 1.5 * honest.std(0)
        out = torch.empty_like(held)
        for i in range(num_agents):
            arrived = torch.rand(degree) > 0.3
            messages = sent[ids[i, 1:][arrived]]
            gaps = messages - held[i]
            lengths = gaps.norm(dim=1)
            nearest = lengths.sort().values[:-1]  # the weight of one may be hostile
            radius = nearest.square().sum().sqrt()
            factor = (radius / lengths.clamp_min(1e-30)).clamp_max(1)
            out[i] = held[i] + weight * (factor[:, None] * gaps).sum(0)
        held = out
        return 1.0

    return run
