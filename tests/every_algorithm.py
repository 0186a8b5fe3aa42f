"""Every method on eight agents, small enough to compile in no time.

Methods go through the front door, under their names in `p2pjax.METHODS`; then come
other ways to call them, engines, and rules of choice. `test_lowering` checks that none
is missing.
"""

from functools import partial

import flax.linen as nn
import jax
import numpy as np
import optax
import test_events
import test_multi_task
import test_selection_contract
import test_virtual
from test_federated import network_task, network_world

import p2pjax as pj
from p2pjax.algorithms._mean_regularized import mean_regularized
from p2pjax.engines.combining import combined_rounds
from p2pjax.engines.partial_rounds import partial_rounds
from p2pjax.engines.server import server_rounds
from p2pjax.graphs import generators
from p2pjax.nn import mlp
from p2pjax.partial import averaging
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.partial.sharing import compile_scheme
from p2pjax.training import learner, samplers
from p2pjax.training.early_stopping import until_converged
from p2pjax.types import FederatedData, Models

SIZE = 8
TASK = network_task()  # two inputs, three hidden cells, two classes
OPTIMIZER = optax.sgd(0.1, momentum=0.5)
PLAIN = optax.sgd(0.1)
CHANGING = optax.inject_hyperparams(optax.sgd)(
    learning_rate=optax.exponential_decay(0.1, 2, 0.5), momentum=0.5
)
LEARNER = learner.gradient_descent(TASK, OPTIMIZER)
RING = generators.ring(SIZE)
CLUSTER = np.arange(SIZE) % 2
# A global model and one of the first four agents.
SCHEME = Scheme(
    networks=((2, 3, 2),) * SIZE,
    models=(
        PartialModel((2, 1, 2), tuple(range(SIZE))),
        PartialModel((0, 1, 0), (0, 1, 2, 3)),
    ),
)
STOPPING = pj.LocalStopping(patience=1, max_epochs=3)
FISHER = pj.curvature.fisher(TASK, 2)
CLIENTS = {"num_clients": 5}
PENALTY = {"penalty_weight": 0.5, **CLIENTS}
FEW = {"num_peers": 2, "num_candidates": 3, "second_stage": 2}  # of four rounds


class Normalised(nn.Module):
    """The smallest network with batch norm."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(3)(x))
        return nn.Dense(2)(nn.relu(x))


def method(name, *args, task=TASK, optimizer=OPTIMIZER, **options):
    """A row: the method of this name, of an agent loop."""

    def build(agent_loop):
        given = options
        if name != "central":  # which has only one model
            given = options | {"agent_loop": agent_loop}
        return getattr(pj, name)(task, optimizer, *args, batch_size=2, **given)

    return build


def averaged(realisation, agent_loop, **options):
    return partial_rounds(
        TASK,
        LEARNER,
        samplers.cyclic_window(2),
        compile_scheme(SCHEME, mlp.wiring(2), TASK),
        realisation,
        agent_loop=agent_loop,
        **options,
    )


def combined(agent_loop):
    local = until_converged(
        TASK, LEARNER, STOPPING, batch_size=2, agent_loop=agent_loop
    )
    return combined_rounds(
        TASK,
        local,
        pj.factors.exponential(),
        stop=pj.GlobalStopping(1),
        agent_loop=agent_loop,
    )


def served(agent_loop):
    return server_rounds(TASK, LEARNER, batch_size=2, agent_loop=agent_loop, **CLIENTS)


def stepped(protocol, agent_loop, graph=RING, **options):
    return pj.gossip(
        TASK,
        LEARNER,
        protocol,
        graph,
        batch_size=2,
        agent_loop=agent_loop,
        **options,
    )


ON_NETWORKS = {
    "ad_psgd": method("ad_psgd", RING, channel=pj.channel.drop(0.1)),
    "aucccr": method(
        "aucccr", num_agents=SIZE, degree=2, num_epochs_alone=1, num_probes=6
    ),
    "central": method("central"),
    "choco_sgd": method(
        "choco_sgd", RING, compression=pj.channel.top_k(0.3), consensus_step=0.4
    ),
    "combination": method(
        "combination",
        factors=pj.factors.exponential(),
        local_updates=pj.epochs(2),
        global_stopping=pj.GlobalStopping(1),
    ),
    "complete_training": method(
        "complete_training",
        local_stopping=STOPPING,
        global_stopping=pj.GlobalStopping(1),
    ),
    "d2": method("d2", generators.complete(SIZE)),
    "d_cliques": method("d_cliques", CLUSTER),
    "dac": method("dac", num_peers=2),
    "dfca": method("dfca", RING, num_clusters=3),
    "dfedavgm": method("dfedavgm", RING, optimizer=optax.sgd(0.1)),
    "dfedsam": method("dfedsam", RING, num_exchanges=2),
    "diple": method("diple", num_peers=2, num_iterations=2),
    "ditto": method("ditto", **PENALTY),
    "divshare": method("divshare", num_fragments=4, late_probability=0.3),
    "dpsgd": method("dpsgd", RING),
    "exact_diffusion": method("exact_diffusion", RING, mix_first_step=False),
    "extra": method("extra", RING),
    "facade": method("facade", RING, head=("params/layer_2/.*",), num_random_rounds=1),
    "epidemic": method("epidemic", num_peers=2),
    "fedavg": method("fedavg", **CLIENTS),
    "fedcurv": method("fedcurv", curvature=FISHER, **PENALTY),
    "fedcurv_neighbors": method(
        "fedcurv_neighbors", RING, curvature=FISHER, penalty_weight=0.5
    ),
    "fedopt": method("fedopt", rule="yogi", **CLIENTS),
    "fedper": method("fedper", personal=("params/layer_2/.*",), **CLIENTS),
    "fedprox": method("fedprox", **PENALTY),
    "gosgd": method("gosgd", RING, probability=0.5),
    "gradient_tracking": method("gradient_tracking", RING, optimizer=CHANGING),
    "k_gt": method("k_gt", RING, communication_step=0.9),
    "l2c": method("l2c", num_kept=2, num_rounds_all=2),
    "local_only": method("local_only"),
    "momentum_tracking": method("momentum_tracking", RING, optimizer=PLAIN),
    "oracle": method("oracle", CLUSTER, degree=2),
    "p2p_bn": method("p2p_bn", RING, task=pj.classification(Normalised(), (2,))),
    "panm": method("panm", matching_every=2, **FEW),
    "partial_averaging": method("partial_averaging", pj.partial.level(0.6)),
    "pens": method("pens", **FEW),
    "qg_dsgdm": method("qg_dsgdm", RING, optimizer=PLAIN, nesterov=True),
    "relay_sgd": method("relay_sgd", RING, channel=pj.channel.drop(0.1)),
    "scaffold": method("scaffold", **CLIENTS),
    "sgp": method("sgp", RING),
    "sparse": method("sparse", RING),
    "teleportation": method("teleportation", generators.ring(3)),
    # Other ways to call them.
    "dpsgd, scored before": method("dpsgd", RING, mix_first=True, score_before=True),
    "sgp, lost messages": method("sgp", RING, channel=pj.channel.drop(0.1)),
    "gradient_tracking, scored before": method(
        "gradient_tracking",
        RING,
        optimizer=CHANGING,
        order="adapt_then_combine",
        score_before=True,
    ),
    "relay_sgd, scored before": method("relay_sgd", RING, score_before=True),
    "fedavg, scored before": method(
        "fedavg", server_opt=optax.adam(0.1, eps=0.01), score_before=True, **CLIENTS
    ),
    "p2p_bn, own rates": method(
        "p2p_bn",
        RING,
        task=pj.classification(Normalised(), (2,)),
        update_scale=jax.numpy.linspace(0.5, 1, SIZE),
    ),
    "partial_averaging, scored before": method(
        "partial_averaging",
        pj.partial.level(0.6),
        drift_threshold=0.01,
        update_scale=np.linspace(0.5, 1, SIZE, dtype=np.float32),
        score_before=True,
    ),
    "dfedavgm, scored before": method(
        "dfedavgm", RING, optimizer=optax.sgd(0.1), score_before=True
    ),
    "epidemic, local": method(
        "epidemic", generators.complete(SIZE), num_peers=2, variant="local"
    ),
    "global merge": lambda agent_loop: pj.global_merge(
        method("dpsgd", RING)(agent_loop), TASK, rounds=(2,), agent_loop=agent_loop
    ),
    # Engines, protocols and what is not of the front door by themselves.
    "mean_regularized": lambda agent_loop: mean_regularized(
        TASK, LEARNER, batch_size=2, penalty_weight=0.5, agent_loop=agent_loop
    ),
    "partial rounds, server": partial(averaged, averaging.server(SIZE)),
    "partial rounds, gossip": partial(
        averaged, averaging.metropolis_gossip(SIZE, RING)
    ),
    "partial rounds, pairs": partial(averaged, averaging.random_pairs(SIZE)),
    "partial rounds, per model": partial(averaged, pj.partial.per_model(cycles=2)),
    "server rounds": served,
    "two rounds of a server": lambda agent_loop: pj.repeat_rounds(
        served(agent_loop), 2
    ),
    "combined rounds": combined,
    "dpsgd protocol": partial(stepped, pj.protocols.dpsgd()),
    "d2 protocol": partial(stepped, pj.protocols.d2(), graph=generators.complete(SIZE)),
    "choco protocol": partial(stepped, pj.protocols.choco_sgd(pj.channel.qsgd(4), 0.4)),
    "sgp protocol": partial(stepped, pj.protocols.sgp(), channel=pj.channel.drop(0.1)),
    "gosgd protocol": partial(stepped, pj.protocols.gosgd(0.5)),
}


def virtual_world():
    """Two examples or three for each."""
    small = test_virtual.network_world()
    again = np.arange(SIZE) % len(small.cluster)
    return jax.tree.map(lambda leaf: leaf[again], small)


def with_networks(build, agent_loop):
    return build(agent_loop=agent_loop), network_world((5, 3, 7, 1, 4, 2, 6, 3))


def choosing(build, agent_loop):
    """Vectors, of which agents look at each other's.

    They are close: of large losses L2C makes exponents, in which rounding grows.
    """
    world = test_selection_contract.random_world(SIZE, distance=1)
    return build(agent_loop=agent_loop), world


def asynchronous(agent_loop):
    method, _, _ = test_events.build(SIZE, agent_loop=agent_loop, max_width=4)
    return method, test_events.text_world(np.random.default_rng(0), SIZE)


def of_several_tasks(agent_loop):
    _, world, _, method = test_multi_task.linear_case(
        agent_loop=agent_loop, max_width=4
    )
    return method, world


def refined(agent_loop):
    return test_virtual.network_virtual(agent_loop=agent_loop), virtual_world()


# Of an agent loop: the method and its world.
EVERY = {
    **{name: partial(with_networks, build) for name, build in ON_NETWORKS.items()},
    **{
        f"choosing by {name}": partial(choosing, build)
        for name, build in test_selection_contract.ALGORITHMS.items()
    },
    "multi_task": of_several_tasks,
    "virtual": refined,
    "p2p_bn, next words": asynchronous,
}


def build(name: str, agent_loop: int) -> tuple:
    """The method of this name and its world."""
    method, world = EVERY[name](agent_loop)
    return method, FederatedData(*jax.tree.map(np.asarray, tuple(world)))


def evaluate(models: Models, world: FederatedData) -> dict:
    """Nothing: not all of these worlds have test data."""
    del models, world
    return {}
