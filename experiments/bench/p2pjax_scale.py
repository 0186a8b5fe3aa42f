"""p2pjax with very many agents: methods that choose in views, and rounds of D-PSGD."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import p2pjax as pj
from experiments.bench import inputs
from experiments.bench.jax_tasks import task_of
from p2pjax import sharding
from p2pjax.graphs.topology import Topology
from p2pjax.types import Algorithm, FederatedData, Split

# One round in each stage, so that both of PENS and PANM are timed.
STAGES = {
    "pens": {"second_stage": 2},
    "panm": {"second_stage": 2, "matching_every": 1},
}


def chosen_rounds(
    setting: dict[str, Any], method: str, view_size: int, num_devices: int
) -> Callable[[], float]:
    """Updates of agents that know `view_size` others; counts steps of agents."""
    sharding.use_cpu_devices(num_devices)
    want = inputs.Training(**setting)
    views = pj.graphs.random_views(want.num_agents, view_size, seed=0)
    task = task_of(want.network)
    algorithm = getattr(pj, method)(
        task,
        optax.sgd(0.01),
        views,
        batch_size=want.batch_size,
        local_updates=pj.steps(want.num_steps),
        **STAGES.get(method, {}),
    )
    return _rounds(algorithm, want)


def averaged_rounds(setting: dict[str, Any], num_devices: int) -> Callable[[], float]:
    """Updates of D-PSGD on a ring; counts steps of agents."""
    sharding.use_cpu_devices(num_devices)
    want = inputs.Training(**setting)
    own = np.arange(want.num_agents, dtype=np.int32)[:, None]
    neighbor = np.sort((own + np.array([-1, 1])) % want.num_agents, 1).astype(np.int32)
    algorithm = pj.dpsgd(
        task_of(want.network),
        optax.sgd(0.01),
        Topology(neighbor, np.ones(neighbor.shape, bool)),
        batch_size=want.batch_size,
        local_updates=pj.steps(want.num_steps),
    )
    return _rounds(algorithm, want)


def _rounds(algorithm: Algorithm, want: inputs.Training) -> Callable[[], float]:
    """A run is `num_rounds` rounds from the same number on, so all runs are alike."""
    jax.set_mesh(sharding.agents_mesh(want.num_agents))
    world = _world(want)
    state = sharding.jit_sharded(algorithm.init)(jax.random.key(0), world)
    plan = algorithm.plan(np.random.default_rng(0), world, 1)
    first = sharding.place(jax.tree.map(lambda leaf: leaf[0], plan))
    one_round = jax.jit(
        lambda t, given, state, world: algorithm.round(
            jax.random.fold_in(jax.random.key(0), t), t, given, state, world
        )[0],
        donate_argnums=2,
    )

    def run() -> float:
        nonlocal state
        for t in range(want.num_rounds):
            state = one_round(jnp.int32(t), first, state, world)
            jax.block_until_ready(state)
        return float(want.updates)

    return run


def _world(want: inputs.Training) -> FederatedData:
    """Agents that have training examples only."""
    x, y = inputs.examples(want.network, want.num_agents, want.num_examples)
    examples = {"x": x, "y": y}
    none = {name: leaf[:, :0] for name, leaf in examples.items()}
    train = Split(examples, np.full(want.num_agents, want.num_examples, np.int32))
    empty = Split(none, np.zeros(want.num_agents, np.int32))
    return sharding.place(
        FederatedData(train, empty, empty, np.zeros(want.num_agents, np.int32))
    )
