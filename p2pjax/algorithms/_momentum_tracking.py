"""Momentum tracking: gradient tracking of agents whose steps have momentum.

Takezawa et al. (2023), "Momentum tracking: momentum acceleration for decentralized
deep learning on heterogeneous data", https://arxiv.org/abs/2209.15505.
"""

from typing import Unpack

import optax

from p2pjax.engines.options import GossipOptions
from p2pjax.engines.protocol import MixingWeights, check_momentum
from p2pjax.engines.stepwise import gossip
from p2pjax.engines.tracking_protocol import tracking
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner, as_learner
from p2pjax.training.rates import check_plain
from p2pjax.types import Algorithm, InputError

NAME = "Momentum tracking"


def momentum_tracking(
    task: Task,
    optimizer: optax.GradientTransformation,
    graph: GraphLike,
    *,
    batch_size: int,
    momentum: float = 0.9,
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Momentum tracking (Takezawa et al. 2023, https://arxiv.org/abs/2209.15505).

    Combine-then-adapt, with two models in a message: `m <- momentum m + gradient`,
    `x <- W x - rate (m - c)`, `c <- W (c - m) + m`. Momentum starts at 0, not with the
    mean gradient of all, which no agent knows. Lost messages are refused. What agents
    remember follows the learning rate where `optax.inject_hyperparams` keeps it in the
    optimizer's state, else it is constant; schedules hidden in it are refused.

    Args:
      task: what each agent learns.
      optimizer: of optax, without momentum; it is given m for a gradient.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      momentum: from 0, gradient tracking, to less than 1.
      mixing_weights: the mixing matrix of a graph, doubly stochastic.
      **options: see `GossipOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> ring = pj.graphs.ring(4)
      >>> method = pj.momentum_tracking(task, optax.sgd(0.1), ring, batch_size=32)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    check_momentum(momentum, "momentum", NAME)
    if isinstance(optimizer, Learner):
        raise InputError(
            f"Need an optimizer of optax for {NAME}, which gives it a momentum, got a "
            "Learner: use gradient_tracking with a learner that has momentum."
        )
    check_plain(task, as_learner(task, optimizer), NAME)
    return gossip(
        task,
        optax.chain(optax.trace(momentum), optimizer),
        tracking(mixing_weights, order="combine_then_adapt", name=NAME),
        graph,
        batch_size=batch_size,
        name=NAME,
        **options,
    )
