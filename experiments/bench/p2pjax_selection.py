"""p2pjax on rounds in which agents judge each other's models."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.bench import inputs
from experiments.bench.jax_tasks import task_of
from p2pjax import sharding
from p2pjax.engines.pulling import pull
from p2pjax.selection.pens import pens
from p2pjax.training import agent_loop, learner
from p2pjax.types import Array, FederatedData, Split

NEVER = 1_000_000  # the second stage, which judges no agent


def pens_rounds(
    setting: dict[str, Any], num_candidates: int, num_kept: int, num_devices: int
) -> Callable[[], float]:
    """Rounds of PENS, counted once for every agent."""
    sharding.use_cpu_devices(num_devices)
    want = inputs.Training(**setting)
    assert want.num_steps * want.batch_size == want.num_examples, "rounds are epochs"
    jax.set_mesh(sharding.agents_mesh(want.num_agents))
    task = task_of(want.network)
    algorithm = pull(
        task,
        learner.gradient_descent(task, optax.sgd(0.01)),
        pens(num_peers=num_kept, num_candidates=num_candidates, second_stage=NEVER),
        batch_size=want.batch_size,
        agent_loop=agent_loop.fastest_agent_loop(task),
    )
    x, y = inputs.examples(want.network, want.num_agents, want.num_examples)
    world = _world({"x": x, "y": y})
    state = sharding.jit_sharded(algorithm.init)(jax.random.key(0), world)
    one_round = jax.jit(
        lambda t, state, world: algorithm.round(
            jax.random.fold_in(jax.random.key(0), t), t, None, state, world
        )[0],
        donate_argnums=1,
    )
    done = 0

    def run() -> float:
        nonlocal state, done
        for _ in range(want.num_rounds):
            state = one_round(jnp.int32(done), state, world)
            done += 1
        jax.block_until_ready(state)
        return float(want.num_rounds * want.num_agents)

    return run


def _world(examples: dict[str, Array]) -> FederatedData:
    """Agents that have training examples only."""
    num_agents, num_examples = examples["y"].shape
    none = {name: leaf[:, :0] for name, leaf in examples.items()}
    train = Split(examples, np.full(num_agents, num_examples, np.int32))
    empty = Split(none, np.zeros(num_agents, np.int32))
    return sharding.place(
        FederatedData(train, empty, empty, np.zeros(num_agents, np.int32))
    )
