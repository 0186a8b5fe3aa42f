"""An asynchronous protocol by the waves of p2pjax, and one event after the other."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.bench import inputs
from experiments.bench.jax_tasks import task_of
from p2pjax import sharding
from p2pjax.algorithms._p2p_bn import p2p_bn
from p2pjax.asynchronous import waves
from p2pjax.asynchronous.events import Schedule, draw
from p2pjax.graphs import generators, topology
from p2pjax.training import local_training, samplers
from p2pjax.training.learner import Learner, StepContext, gradient_descent
from p2pjax.types import FederatedData, PyTree, Split, Variables

NUM_EPOCHS = 4  # that are drawn; the first, in which each agent wakes once, is not run


def by_waves(
    network: inputs.Network,
    num_agents: int,
    batch_size: int,
    num_examples: int,
    num_devices: int,
) -> Callable[[], float]:
    """Trainings in a network epoch of `p2p_bn`."""
    sharding.use_cpu_devices(num_devices)
    jax.set_mesh(sharding.agents_mesh(num_agents))
    task = task_of(network)
    learner = _learner(network)
    method = p2p_bn(
        task, learner, _graph(num_agents), batch_size=batch_size, fine_tuning=False
    )
    world = _world(network, num_agents, num_examples)
    plan = method.plan(np.random.default_rng(0), world, NUM_EPOCHS)
    world = sharding.place(world)
    one_epoch = jax.jit(method.round, donate_argnums=3)
    state = sharding.jit_sharded(method.init)(jax.random.key(0), world)
    number = 0

    def run() -> float:
        nonlocal state, number
        at = 1 + number % (NUM_EPOCHS - 1)
        tables = jax.tree.map(lambda leaf: leaf[at], plan)
        state, _ = one_epoch(jax.random.key(0), jnp.int32(at), tables, state, world)
        jax.block_until_ready(state)
        number += 1
        return float(tables.waves[0].width.sum())

    return run


def one_after_the_other(
    network: inputs.Network, num_agents: int, batch_size: int, num_examples: int
) -> Callable[[], float]:
    """The same events in a Python loop over two jitted functions of one agent."""
    learner = _learner(network)
    world = _world(network, num_agents, num_examples)
    sampler = samplers.shuffled_epochs(batch_size, num_examples)
    num_steps = -(-num_examples // batch_size)

    @jax.jit
    def train(number: jax.Array, params: PyTree, examples: PyTree) -> PyTree:
        carry, _ = local_training.take_steps(
            learner,
            sampler,
            jax.random.key(0),
            examples,
            jnp.int32(num_examples),
            StepContext(),
            (Variables(params, {}), learner.init(Variables(params, {}))),
            number * num_steps,
            num_steps,
        )
        return carry[0].params

    @partial(jax.jit, donate_argnums=0)
    def merge(mine: PyTree, message: PyTree) -> PyTree:
        return jax.tree.map(lambda a, b: (a + b) / 2, mine, message)

    first = jax.jit(task_of(network).init)(jax.random.key(0)).params
    models = [jax.tree.map(jnp.copy, first) for _ in range(num_agents)]
    examples = [
        {name: jnp.asarray(leaf[n]) for name, leaf in world.train.examples.items()}
        for n in range(num_agents)
    ]
    drawn = epochs(network, num_agents, num_examples)
    number = 0

    def run() -> float:
        nonlocal number
        events = drawn[number % len(drawn)]
        for agent, receivers, at in events:
            models[agent] = train(jnp.int32(at), models[agent], examples[agent])
            for receiver in receivers:
                models[receiver] = merge(models[receiver], models[agent])
        jax.block_until_ready(models)
        number += 1
        return float(len(events))

    return run


class Event(NamedTuple):
    """An agent trains and sends its model."""

    agent: int
    receivers: list[int]
    number: int


def epochs(
    network: inputs.Network, num_agents: int, num_examples: int
) -> list[list[Event]]:
    """The events of `by_waves` in their order, by network epoch."""
    schedule = _schedule(num_agents, _world(network, num_agents, num_examples))
    receivers: dict[int, list[int]] = {}
    for receiver, source in zip(schedule.receiver, schedule.source, strict=True):
        receivers.setdefault(int(source), []).append(int(receiver))
    return [
        [
            Event(int(schedule.agent[at]), receivers.get(at, []), at)
            for at in np.flatnonzero(schedule.epoch == epoch).tolist()
        ]
        for epoch in range(1, NUM_EPOCHS)
    ]


def wave_width(
    network: inputs.Network, num_agents: int, num_examples: int
) -> Callable[[], float]:
    """Trainings per wave, which is what several devices can share."""
    world = _world(network, num_agents, num_examples)
    packed, *_ = waves.pack(_schedule(num_agents, world), num_agents, NUM_EPOCHS)
    width = waves.mean_width(packed)
    return lambda: width


def _learner(network: inputs.Network) -> Learner:
    return gradient_descent(task_of(network), optax.sgd(0.01))


def _graph(num_agents: int) -> topology.Topology:
    return generators.directed_regular(num_agents, 3, seed=0)


def _schedule(num_agents: int, world: FederatedData) -> Schedule:
    to = topology.receivers(topology.stack([_graph(num_agents)]))
    to = jax.tree.map(lambda leaf: np.repeat(leaf, NUM_EPOCHS, axis=0), to)
    rng = np.random.default_rng(0)
    return draw(rng, to, np.asarray(world.train.size), NUM_EPOCHS)


def _world(
    network: inputs.Network, num_agents: int, num_examples: int
) -> FederatedData:
    x, y = inputs.examples(network, num_agents, num_examples)
    sizes: Any = np.full(num_agents, num_examples, np.int32)
    train = Split({"x": x, "y": y}, sizes)
    few = Split({"x": x[:, :1], "y": y[:, :1]}, np.ones_like(sizes))
    return FederatedData(train, few, few, np.zeros(num_agents, np.int32))
