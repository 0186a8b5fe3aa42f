"""Every method of the front door on one problem, to be counted and timed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
import optax

import p2pjax as pj
from experiments.bench.inputs import NUM_CLASSES
from experiments.compare import methods
from experiments.compare.graphs import NamedGraph
from p2pjax.asynchronous.task_groups import joined_world
from p2pjax.nn.encoder import Encoder
from p2pjax.nn.variational import Columns
from p2pjax.training.agent_loop import VMAP
from p2pjax.types import Algorithm, FederatedData, Split

_WORDS, _LENGTH, _MASK = 1000, 32, 2  # of the encoder in `multi_task`


class Size(NamedTuple):
    """Of the problem; the headline's network and batches."""

    num_agents: int = 64
    widths: tuple[int, ...] = (784, 300, 100, NUM_CLASSES)
    batch_size: int = 50
    # Of an agent: one mini-batch, so that loops over mini-batches, whose number depends
    # on the data, run once, which is how often they are counted.
    num_examples: int = 50
    agent_loop: int = VMAP  # the form for accelerators


class _Normalised(nn.Module):
    """The same network with batch norm, for what needs it."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        for width in self.widths[:-1]:
            norm = nn.BatchNorm(use_running_average=not train)
            x = nn.relu(norm(nn.Dense(width)(x)))
        return nn.Dense(self.widths[-1])(x)


def build(name: str, size: Size = Size()) -> tuple[Algorithm, FederatedData]:
    """The method of this name in `pj.METHODS` and its data.

    Args:
      name: of the method.
      size: of the problem.
    """
    if name == "multi_task":
        return _multi_task(size)
    data = _images(size)
    task = pj.classification(pj.nn.MLP(size.widths[1:]), size.widths[:1])
    if name == "p2p_bn":
        task = pj.classification(_Normalised(size.widths[1:]), size.widths[:1])
    graph = pj.graphs.ring(size.num_agents)
    if name == "d2":  # which a ring's smallest eigenvalue does not suit
        graph = pj.graphs.complete(size.num_agents)
    problem = methods.Problem(
        task=task,
        optimizer=optax.sgd(0.01),
        graph=NamedGraph(graph),
        data=data,
        num_rounds=10,
        num_peers=3,
        penalty_weight=0.1,
        batch_size=size.batch_size,
        local_updates=None,
        loss_probability=0,
        score_before=False,
        agent_loop=size.agent_loop,
    )
    if name in _OTHERS:
        return _OTHERS[name](problem, size), data
    return methods.METHODS[name](problem), data


def _last_layer(size: Size) -> tuple[str, ...]:
    return (f"params/layer_{len(size.widths) - 1}/.*",)


def _virtual(p: methods.Problem, size: Size) -> Algorithm:
    module = Columns(size.widths[1:])
    task = pj.variational_classification(module, size.widths[:1], num_samples=1)
    return pj.virtual(task, p.optimizer, **p.own)


_OTHERS: dict[str, Callable[[methods.Problem, Size], Algorithm]] = {
    "choco_sgd": lambda p, size: pj.choco_sgd(
        p.task, p.optimizer, p.graph.graph, compression=pj.channel.sign(), **p.own
    ),
    "combination": lambda p, size: pj.combination(
        p.task, p.optimizer, factors=pj.factors.exponential(), **p.own
    ),
    "complete_training": lambda p, size: pj.complete_training(
        p.task, p.optimizer, **p.own
    ),
    "facade": lambda p, size: pj.facade(
        p.task, p.optimizer, p.graph.graph, head=_last_layer(size), **p.own
    ),
    "fedper": lambda p, size: pj.fedper(
        p.task, p.optimizer, personal=_last_layer(size), **p.own
    ),
    "virtual": _virtual,
}


def _world(examples: dict[str, np.ndarray], size: Size, cluster: int) -> FederatedData:
    sizes = np.full(size.num_agents, size.num_examples, np.int32)
    split = Split(examples, sizes)
    groups = np.arange(size.num_agents, dtype=np.int32) % cluster
    return FederatedData(split, split, split, groups)


def _images(size: Size) -> FederatedData:
    rng = np.random.default_rng(0)
    shape = (size.num_agents, size.num_examples)
    x = rng.random((*shape, size.widths[0]), np.float32)
    y = rng.integers(0, size.widths[-1], shape, np.int32)
    return _world({"x": x, "y": y}, size, 2)


def _multi_task(size: Size) -> tuple[Algorithm, FederatedData]:
    """Masked tokens by a small encoder: the one method that takes no perceptron."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(
        3, _WORDS, (size.num_agents, size.num_examples, _LENGTH), np.int32
    )
    encoder = Encoder(
        _WORDS, hidden_size=32, num_heads=(2,), mlp_dim=(64,), head_dim=16
    )
    groups = pj.task_groups(
        [pj.masked_token(encoder, _LENGTH, _MASK)], [size.num_agents]
    )
    examples = {"tokens": tokens, "y": tokens[..., 0].copy()}
    tokens[..., 0] = _MASK
    world = joined_world([_world(examples, size, 1)])
    graph = pj.graphs.ring(size.num_agents)
    method = pj.multi_task(
        groups,
        optax.sgd(0.01),
        graph,
        batch_size=size.batch_size,
        agent_loop=size.agent_loop,
    )
    return method, world
