"""p2pjax on the mixing workloads: parameters move between agents, nothing trains."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np

from experiments.bench import inputs
from p2pjax import sharding
from p2pjax.exchange import mixing, owner_classes
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.topology import Topology
from p2pjax.nn import mlp
from p2pjax.partial import ownership, placement
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.types import Peers, PyTree


def whole(
    num_agents: int, num_columns: int, degree: int, num_devices: int
) -> Callable[[], float]:
    """Each agent averages one leaf with its neighbours."""
    params = {"leaf": np.ones((num_agents, num_columns), np.float32)}
    plan = owner_classes.whole_model(num_agents, {"leaf": params["leaf"][0]})
    return _mixed(params, plan, degree, num_devices)


def by_class(
    num_agents: int,
    widths: Sequence[int],
    num_models: int,
    degree: int,
    num_devices: int,
) -> Callable[[], float]:
    """Partial models that each agent implements, and the weights between any two.

    G models make G (G + 1) / 2 owner classes; every parameter is in one of them.
    """
    shapes = {
        f"layer_{layer}": {"kernel": (a, b), "bias": (b,)}
        for layer, (a, b) in enumerate(itertools.pairwise(widths), start=1)
    }
    one_agent = {
        layer: {name: np.ones(shape, np.float32) for name, shape in leaves.items()}
        for layer, leaves in shapes.items()
    }
    all_agents = tuple(range(num_agents))
    parts = [_evenly(width, num_models) for width in widths]
    models = [PartialModel(cells, all_agents) for cells in zip(*parts, strict=True)]
    scheme = Scheme((tuple(widths),) * num_agents, tuple(models), cross_model=True)
    cells, _ = placement.align(placement.attach(scheme))
    plan = ownership.mix_plan(scheme, cells, mlp.wiring(len(widths) - 1), one_agent)
    params = jax.tree.map(lambda leaf: np.stack([leaf] * num_agents), one_agent)
    return _mixed(params, plan, degree, num_devices)


def _evenly(total: int, num_parts: int) -> list[int]:
    return [total // num_parts + (i < total % num_parts) for i in range(num_parts)]


def _mixed(
    params: PyTree, plan: MixPlan, degree: int, num_devices: int
) -> Callable[[], float]:
    """Metropolis gossip of every class on one graph; counts mixes."""
    sharding.use_cpu_devices(num_devices)
    num_agents = jax.tree.leaves(params)[0].shape[0]
    jax.set_mesh(sharding.agents_mesh(num_agents))
    neighbor = inputs.peer_ids(num_agents, degree)[:, 1:]
    graph = sharding.place(Topology(neighbor, np.ones(neighbor.shape, bool)))
    state = sharding.place(params)

    @partial(jax.jit, donate_argnums=0)
    def mix(params: PyTree, graph: Topology) -> PyTree:
        def combine(owner: np.ndarray) -> mixing.Combine:
            peers: Peers = mixing_matrices.metropolis(graph, owner)
            return mixing.by_peers(peers)

        return mixing.mix(params, plan, combine)

    def run() -> float:
        nonlocal state
        state = jax.block_until_ready(mix(state, graph))
        return 1.0

    return run
