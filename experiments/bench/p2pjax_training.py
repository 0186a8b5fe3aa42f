"""p2pjax on the training workloads: local steps and mixing, one jitted round."""

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.bench import inputs
from experiments.bench.jax_tasks import task_of
from p2pjax import sharding
from p2pjax.exchange import mixing, owner_classes
from p2pjax.training import agent_loop, local_training, samplers
from p2pjax.training.learner import gradient_descent, per_sample
from p2pjax.training.local_training import identical_models
from p2pjax.types import Key, Peers, PyTree, Split, Variables

UNFINISHED = 20  # rounds at a time; see `p2pjax.sharding`


def rounds(setting: dict[str, Any], num_devices: int) -> Callable[[], float]:
    """Updates done by all agents in a run."""
    sharding.use_cpu_devices(num_devices)
    want = inputs.Training(**setting)
    one_round, state, agents, peers = build(want)

    def run() -> float:
        nonlocal state
        for number in range(want.num_rounds):
            state = one_round(state, agents, peers)
            if number % UNFINISHED == 0:
                jax.block_until_ready(state)
        jax.block_until_ready(state)
        return want.updates

    return run


def build(want: inputs.Training) -> tuple[Any, PyTree, Split, Peers]:
    """The jitted round and what it is called with; sets the mesh."""
    jax.set_mesh(sharding.agents_mesh(want.num_agents))
    task = task_of(want.network)
    learner = gradient_descent(task, optax.sgd(0.01))
    learner = per_sample(learner) if want.per_sample else learner
    train = local_training.local_training(
        learner,
        samplers.cyclic_window(want.batch_size),
        want.num_steps,
        agent_loop.fastest_agent_loop(task),
    )
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    plan = owner_classes.whole_model(want.num_agents, shapes.params)

    @partial(jax.jit, donate_argnums=0)
    def one_round(state: PyTree, agents: Split, peers: Peers) -> PyTree:
        step, variables, opt_state = state
        variables, opt_state, _ = train(
            jax.random.key(0), step, variables, opt_state, agents
        )
        params = mixing.mix(
            variables.params, plan, lambda owner: mixing.fastest_combine(peers, owner)
        )
        variables = variables._replace(params=params)
        return step + want.num_steps, variables, opt_state

    def start(key: Key) -> tuple[Variables, PyTree]:
        variables = identical_models(key, task, want.num_agents)
        return variables, jax.vmap(learner.init)(variables)

    x, y = inputs.examples(want.network, want.num_agents, want.num_examples)
    sizes = np.full(want.num_agents, want.num_examples, np.int32)
    ids = inputs.peer_ids(want.num_agents, want.degree)
    weight = np.full(ids.shape, 1 / ids.shape[1], np.float32)
    agents = sharding.place(Split({"x": x, "y": y}, sizes))
    peers = sharding.place(Peers(ids, weight))
    state = jnp.int32(0), *sharding.jit_sharded(start)(jax.random.key(0))
    return one_round, state, agents, peers


def compilation(
    setting: dict[str, Any], num_devices: int, cached: bool
) -> Callable[[], float]:
    """Tracing and compiling a round; counts programs."""
    sharding.use_cpu_devices(num_devices)
    if cached:
        jax.config.update("jax_compilation_cache_dir", tempfile.mkdtemp())
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    one_round, *arguments = build(inputs.Training(**setting))

    def run() -> float:
        jax.clear_caches()
        one_round.lower(*arguments).compile()
        return 1.0

    return run
