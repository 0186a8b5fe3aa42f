"""Constructs every method, and fails if JAX has started a backend."""

import flax.linen as nn
import numpy as np
import optax
from jax._src import xla_bridge

import p2pjax as pj
from p2pjax.nn.encoder import Encoder
from p2pjax.nn.variational import Columns

SIZE = 8
x, y = np.zeros((96, 4, 4, 1), np.float32), np.arange(96) % 2
data = pj.federate(x, y, num_agents=SIZE, split=pj.split.iid(), valid_fraction=0.2)
task = pj.classification(pj.nn.BatchNormCNN((2,), (), 2), data)
ring = pj.graphs.ring(SIZE)
third = {
    "d_cliques": np.arange(SIZE) // 4,
    "oracle": np.arange(SIZE) % 2,
    "partial_averaging": pj.partial.level(0.5),
    "teleportation": pj.graphs.ring(4),
}
on_a_ring = [
    "ad_psgd",
    "dpsgd",
    "choco_sgd",
    "d2",
    "dfedavgm",
    "dfedsam",
    "k_gt",
    "sgp",
    "gosgd",
    "exact_diffusion",
    "extra",
    "gradient_tracking",
    "momentum_tracking",
    "qg_dsgdm",
    "relay_sgd",
    "p2p_bn",
    "fedcurv_neighbors",
    "sparse",
    "multi_task",
    "dfca",
    "facade",
]
third |= dict.fromkeys(on_a_ring, ring)
penalised = ["fedprox", "ditto", "fedcurv", "fedcurv_neighbors"]
own = {name: {"penalty_weight": 0.1} for name in penalised} | {
    "choco_sgd": {"compression": pj.channel.sign()},
    "fedper": {"personal": ["params/layer_2/.*"]},
    "facade": {"head": ["params/layer_2/.*"]},
    "aucccr": {"num_agents": SIZE},
    "fedavg": {"local_patterns": pj.FED_BN},
}
encoder = Encoder(9, hidden_size=4, num_heads=(1,), mlp_dim=(4,), head_dim=4)
first = {
    "virtual": pj.variational_classification(Columns((3, 2)), (4,), num_samples=1),
    "multi_task": pj.task_groups([pj.masked_token(encoder, 5, 2)], [SIZE]),
}
for name in pj.METHODS:
    more = [third[name]] if name in third else []
    method = getattr(pj, name)(
        first.get(name, task),
        optax.sgd(0.1),
        *more,
        batch_size=4,
        **own.get(name, {}),
    )
    assert isinstance(method, pj.Algorithm)
    assert not xla_bridge._backends, f"{name} has started a backend"
    print(name)
unknown = pj.classification(
    nn.Sequential([nn.Dense(3), lambda x: x.mean((1, 2))]), data
)
pj.partial_averaging(unknown, optax.sgd(0.1), pj.partial.level(0.5), batch_size=4)
pj.partial.cells_of(unknown.network, unknown.example)
assert not xla_bridge._backends, "finding the cells of a network has started a backend"
