"""Gradient tracking: agents follow an estimate of the mean gradient of all.

Di Lorenzo, Scutari (2016), "NEXT: in-network nonconvex optimization",
https://arxiv.org/abs/1602.00591. The rules are in `engines.tracking_protocol`.
"""

from typing import Unpack

import optax

from p2pjax.engines.options import GossipOptions
from p2pjax.engines.protocol import MixingWeights
from p2pjax.engines.stepwise import gossip
from p2pjax.engines.tracking_protocol import Order, tracking
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm


def gradient_tracking(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    order: Order = "semi_adapt_then_combine",
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Gradient tracking (Di Lorenzo, Scutari 2016, https://arxiv.org/abs/1602.00591).

    With one local step, full gradients and a constant rate, agents agree on a minimum
    of the mean loss, however their data differ. With more local steps they track the
    sum of these steps, and agree where the sums cancel, which is close by. Lost
    messages would bias it for good, so they are refused. What agents remember follows
    the learning rate where `optax.inject_hyperparams` keeps it in the optimizer's
    state, else it is constant; schedules hidden in the optimizer are refused.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it, and tracks its updates.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      order: `combine_then_adapt` (DIGing) and `semi_adapt_then_combine` (NEXT, SONATA)
        send two models in a message, `adapt_then_combine` (Aug-DGM, ATC-DIGing) two
        messages, of which the second waits for the first.
      mixing_weights: the mixing matrix of a graph, doubly stochastic.
      **options: see `GossipOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> ring = pj.graphs.ring(4)
      >>> method = pj.gradient_tracking(task, optax.sgd(0.1), ring, batch_size=32)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    return gossip(
        task,
        optimizer,
        tracking(mixing_weights, order=order),
        graph,
        batch_size=batch_size,
        name="Gradient tracking",
        **options,
    )
