"""Every algorithm on eight agents, small enough to compile in no time.

What is imported here is in the table; `test_lowering` checks that nothing is missing.
"""

from functools import partial

import jax
import numpy as np
import optax
import test_events
import test_multi_task
import test_selection_contract
import test_virtual
from test_federated import network_task, network_world

from p2pjax.algorithms._central import central
from p2pjax.algorithms._combination import GlobalStopping, combination
from p2pjax.algorithms._d2 import d2_protocol
from p2pjax.algorithms._ditto import ditto
from p2pjax.algorithms._fedcurv import fedcurv, fedcurv_neighbors
from p2pjax.algorithms._fedper import fedper
from p2pjax.algorithms._fedprox import fedprox
from p2pjax.algorithms._gosgd import gosgd_protocol
from p2pjax.algorithms._local_only import local_only
from p2pjax.algorithms._partial_averaging import partial_averaging
from p2pjax.algorithms._sgp import sgp_protocol
from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.repetition import repeat_rounds
from p2pjax.engines.server import server_rounds
from p2pjax.engines.stepwise import gossip
from p2pjax.exchange import factors
from p2pjax.graphs import generators
from p2pjax.nn import mlp
from p2pjax.partial import averaging
from p2pjax.partial.schemes import PartialModel, Scheme
from p2pjax.partial.sharing import compile_scheme
from p2pjax.training import curvature, learner, samplers
from p2pjax.training.early_stopping import LocalStopping, for_epochs, until_converged
from p2pjax.types import FederatedData

SIZE = 8
TASK = network_task()  # two inputs, three hidden cells, two classes
LEARNER = learner.gradient_descent(TASK, optax.sgd(0.1, momentum=0.5))
RING = generators.ring(SIZE)
# A global model and one of the first four agents.
SCHEME = Scheme(
    networks=((2, 3, 2),) * SIZE,
    models=(
        PartialModel((2, 1, 2), tuple(range(SIZE))),
        PartialModel((0, 1, 0), (0, 1, 2, 3)),
    ),
)
SERVED = {"batch_size": 2, "num_clients": 5}
FISHER = curvature.fisher(TASK, 2)


def averaged(realisation, agent_loop):
    return partial_averaging(
        TASK,
        LEARNER,
        samplers.cyclic_window(2),
        compile_scheme(SCHEME, mlp.wiring(2), TASK),
        realisation,
        agent_loop=agent_loop,
    )


def served(build, *args, agent_loop, **options):
    """A method of a server."""
    options = SERVED | options
    return build(TASK, LEARNER, *args, agent_loop=agent_loop, **options)


def stepped(protocol, agent_loop, graph=RING):
    return gossip(TASK, LEARNER, protocol, graph, batch_size=2, agent_loop=agent_loop)


def alone(agent_loop):
    return local_only(TASK, LEARNER, batch_size=2, agent_loop=agent_loop)


def pooled(agent_loop):
    del agent_loop  # there is only one model
    return central(TASK, LEARNER, SIZE, batch_size=2)


def among_neighbors(agent_loop):
    return fedcurv_neighbors(
        TASK,
        LEARNER,
        FISHER,
        RING,
        strength=0.5,
        batch_size=2,
        agent_loop=agent_loop,
    )


def combined(local, agent_loop):
    return combination(
        TASK,
        local(agent_loop=agent_loop),
        factors.exponential(),
        stop=GlobalStopping(1),
        agent_loop=agent_loop,
    )


ON_NETWORKS = {
    "partial averaging, server": partial(averaged, averaging.server(SIZE)),
    "partial averaging, gossip": partial(
        averaged, averaging.metropolis_gossip(SIZE, RING)
    ),
    "partial averaging, pairs": partial(averaged, averaging.random_pairs(SIZE)),
    "local only": alone,
    "central": pooled,
    "fedavg": partial(served, server_rounds),
    "two rounds of fedavg": lambda agent_loop: repeat_rounds(
        served(server_rounds, agent_loop=agent_loop), 2
    ),
    "fedprox": partial(served, fedprox, strength=0.5),
    "ditto": partial(served, ditto, strength=0.5),
    "fedper": partial(served, fedper, personal=("params/layer_2/.*",)),
    "fedcurv": partial(served, fedcurv, FISHER, strength=0.5),
    "fedcurv, neighbours": among_neighbors,
    "combination": partial(
        combined,
        partial(
            until_converged,
            TASK,
            LEARNER,
            LocalStopping(patience=1, max_epochs=3),
            batch_size=2,
        ),
    ),
    "combination, fixed epochs": partial(
        combined, partial(for_epochs, LEARNER, 2, batch_size=2)
    ),
    "dpsgd": partial(stepped, neighbor_averaging()),
    "d2": partial(stepped, d2_protocol(), graph=generators.complete(SIZE)),
    "sgp": partial(stepped, sgp_protocol(loss_probability=0.1)),
    "gosgd": partial(stepped, gosgd_protocol(0.5)),
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
    "p2p_bn": asynchronous,
    "multi task": of_several_tasks,
    "virtual": refined,
}


def build(name: str, agent_loop: int) -> tuple:
    """The method of this name and its world."""
    with jax.numpy_dtype_promotion("standard"):  # Adam mixes dtypes
        method, world = EVERY[name](agent_loop)
    return method, FederatedData(*jax.tree.map(np.asarray, tuple(world)))
