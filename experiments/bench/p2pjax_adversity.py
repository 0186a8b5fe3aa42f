"""p2pjax on rounds whose messages are compressed, lost, attacked and judged."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import p2pjax as pj
from experiments.bench import inputs
from experiments.bench.jax_tasks import task_of
from p2pjax import host_memory, sharding
from p2pjax.types import FederatedData, Split

SCALE = 1.5  # of ALIE
LOST = 0.3


def rounds(
    setting: dict[str, Any],
    degree: int,
    rule: str | None,
    num_devices: int,
    quantized: bool = True,
) -> Callable[[], float]:
    """Rounds of D-PSGD, plain or attacked, lossy and robust; counts rounds."""
    sharding.use_cpu_devices(num_devices)
    want = inputs.Training(**setting)
    jax.set_mesh(sharding.agents_mesh(want.num_agents))
    graph = pj.graphs.random_regular(want.num_agents, degree, seed=0)
    options: dict[str, Any] = {}
    if rule is not None:
        formats = [pj.channel.quantize(8)] if quantized else []
        options = {
            "channel": pj.channel.chain(*formats, pj.channel.drop(LOST)),
            "attack": pj.attacks.alie(attackers(want.num_agents), SCALE),
            "aggregate": getattr(pj.robust, rule)(max_byzantine=1),
        }
    method = pj.dpsgd(
        task_of(want.network),
        optax.sgd(0.01),
        graph,
        batch_size=want.batch_size,
        **options,
    )
    x, y = inputs.examples(want.network, want.num_agents, want.num_examples)
    world = _world(x, y)
    with warnings.catch_warnings():  # the attackers cut this graph nowhere
        warnings.simplefilter("ignore")
        planned = method.plan(np.random.default_rng(0), _judged(world), 1)
    first = sharding.place(jax.tree.map(lambda leaf: leaf[0], planned))
    init = sharding.jit_sharded(method.init)
    one_round = jax.jit(
        lambda t, inputs, state, world: method.round(
            jax.random.fold_in(jax.random.key(0), t), t, inputs, state, world
        )[0],
        donate_argnums=2,
    )
    # Compiled while there are no models yet, as experiments do: what the compiler needs
    # for a while does not come on top of what a round needs.
    shapes = sharding.placed(jax.eval_shape(init, jax.random.key(0), world))
    step = one_round.lower(jnp.int32(0), first, shapes, world).compile()
    host_memory.give_back()
    state = init(jax.random.key(0), world)
    done = 0

    def run() -> float:
        nonlocal state, done
        for _ in range(want.num_rounds):
            state = step(jnp.int32(done), first, state, world)
            done += 1
        jax.block_until_ready(state)
        return float(want.num_rounds)

    return run


def attackers(num_agents: int) -> tuple[int, ...]:
    """Every tenth agent."""
    return tuple(range(0, num_agents, 10))


def _world(x: np.ndarray, y: np.ndarray) -> FederatedData:
    """Agents that have training examples only."""
    size = np.full(len(y), y.shape[1], np.int32)
    empty = Split({"x": x[:, :0], "y": y[:, :0]}, np.zeros(len(y), np.int32))
    world = FederatedData(
        Split({"x": x, "y": y}, size), empty, empty, np.zeros(len(y), np.int32)
    )
    return sharding.place(world)


def _judged(world: FederatedData) -> FederatedData:
    """With test sets, which `plan` asks for."""
    return world._replace(test=world.train)
