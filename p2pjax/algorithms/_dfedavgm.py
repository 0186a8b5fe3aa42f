"""DFedAvgM: local training with momentum that begins anew, then the neighbours' mean.

Sun, Li, Wang (2023), "Decentralized federated averaging",
https://arxiv.org/abs/2104.11375.
"""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
import optax

from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.options import GossipOptions
from p2pjax.engines.protocol import MixingWeights
from p2pjax.engines.stepwise import gossip
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task
from p2pjax.training.gradient_learners import (
    Momentum,
    check_remembers_nothing,
    with_momentum,
)
from p2pjax.training.learner import Learner, as_learner
from p2pjax.training.local_updates import epochs
from p2pjax.types import Algorithm, InputError, PyTree


def dfedavgm(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    momentum: float = 0.9,
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Decentralized federated averaging with momentum (Sun, Li, Wang 2023).

    https://arxiv.org/abs/2104.11375. Between two exchanges `d <- momentum * d + update`
    and `y <- y + d`, with d = 0 after each exchange; then `x <- W y`. Schedules of the
    optimizer go on. Agents with different data keep disagreeing unless the learning
    rate goes to zero.

    Args:
      task: what each agent learns.
      optimizer: of optax, without momentum, such as `optax.sgd(0.1)`.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      momentum: theta, 0 or more and less than 1; 0 is D-PSGD with local updates.
      mixing_weights: the mixing matrix of a graph, doubly stochastic in the paper.
      **options: see `GossipOptions`; `local_updates` is `epochs(1)` if not given.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.dfedavgm(task, optax.sgd(0.1), pj.graphs.ring(4), batch_size=32)
      >>> method.round_is
      '1 local epoch of each agent and one exchange'
    """
    if not 0 <= momentum < 1:
        raise InputError(
            f"Need a momentum of 0 or more and less than 1, got {momentum}."
        )
    learner = as_learner(task, optimizer)
    check_remembers_nothing(task, learner, "DFedAvgM")
    protocol = neighbor_averaging(mixing_weights)._replace(
        adjust_learners=_without_momentum
    )
    settled: Any = {"local_updates": epochs(1), **options}
    return gossip(
        task,
        with_momentum(learner, momentum),
        protocol,
        graph,
        batch_size=batch_size,
        name="DFedAvgM",
        **settled,
    )


def _without_momentum(
    opt_state: Momentum, protocol_state: PyTree
) -> tuple[Momentum, PyTree]:
    zeros = jax.tree.map(jnp.zeros_like, opt_state.displacement)
    return opt_state._replace(displacement=zeros), protocol_state
