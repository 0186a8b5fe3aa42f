"""Exact diffusion and NIDS: D2 with a matrix that needs no condition.

Yuan, Ying, Zhao, Sayed (2019), "Exact diffusion for distributed optimization and
learning", https://arxiv.org/abs/1702.05122. Li, Shi, Yan (2019), "A decentralized
proximal-gradient method with network independent step-sizes",
https://arxiv.org/abs/1704.07807 (NIDS). The rule is in `engines.diffusion_protocol`.
"""

from typing import Unpack

import optax

from p2pjax.engines.diffusion_protocol import diffusion
from p2pjax.engines.options import GossipOptions
from p2pjax.engines.prepared_matrices import prepare_symmetric
from p2pjax.engines.protocol import GossipProtocol, MixingWeights
from p2pjax.engines.stepwise import gossip
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm


def exact_diffusion(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    mix_first_step: bool = True,
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Exact diffusion (Yuan et al. 2019, https://arxiv.org/abs/1702.05122), and NIDS.

    D2 with `(W + I) / 2` in place of W, on any undirected graph. Lost messages are
    refused; its theory needs one graph that stays. What agents remember follows the
    learning rate where `optax.inject_hyperparams` keeps it in the optimizer's state,
    else it is constant; schedules hidden in the optimizer are refused.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who receives from whom, `[N, D]`, undirected: see `graphs.as_graph`.
      batch_size: B.
      mix_first_step: False is NIDS, whose agents send nothing after the first step.
      mixing_weights: the mixing matrix W of a graph, symmetric and doubly stochastic.
      **options: see `GossipOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> ring = pj.graphs.ring(4)
      >>> method = pj.exact_diffusion(task, optax.sgd(0.1), ring, batch_size=32)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    return gossip(
        task,
        optimizer,
        exact_diffusion_protocol(mixing_weights, mix_first_step=mix_first_step),
        graph,
        batch_size=batch_size,
        name="Exact diffusion",
        **options,
    )


def exact_diffusion_protocol(
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    *,
    mix_first_step: bool = True,
) -> GossipProtocol:
    """`x' = V (2 x - x_old + u - u_old)`, `V = (W + I) / 2`, with the updates u.

    Args:
      mixing_weights: the mixing matrix W of a graph, symmetric and doubly stochastic.
      mix_first_step: whether the first step is mixed, too.

    Example:
      >>> exact_diffusion_protocol().takes_losses
      False
    """
    prepare = prepare_symmetric(mixing_weights, "Exact diffusion", lazy=True)
    return diffusion(prepare, "Exact diffusion", mix_first_step=mix_first_step)
