"""Complete training: each host trains until it stops gaining, then models are summed.

A. Ioste and M. Finger, "Establishing the parameters of a decentralized neural machine
learning model".
"""

import optax

from p2pjax.engines.combining import GlobalStopping, combined_rounds
from p2pjax.exchange import factors as sums
from p2pjax.exchange.factors import Factors
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.early_stopping import LocalStopping, until_converged
from p2pjax.training.learner import Learner, as_learner
from p2pjax.types import Algorithm


def complete_training(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    factors: Factors | None = sums.mean,
    local_stopping: LocalStopping = LocalStopping(),
    global_stopping: GlobalStopping | None = None,
    shared_init: bool = True,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Local training until the held-out loss stops falling, then a sum of all models.

    A. Ioste, M. Finger. Needs validation data of each host. How long a host trains in a
    round is decided by its held-out loss, so there are no `local_updates`; those of
    `combination` have a fixed number of epochs.

    Args:
      task: what each host learns.
      optimizer: of optax; it starts afresh in each round.
      batch_size: B.
      factors: how much a host counts, of its relative size, such as `factors.mean`,
        `factors.additive()` or `factors.exponential()`; None never combines.
      local_stopping: when a host has learned what it can.
      global_stopping: when the coordinator stops, by held-out loss; None goes on.
      shared_init: whether all hosts start from the same weights, as those of a mean
        must to be near each other.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(
      ...     num_agents=4, split=pj.split.iid(), valid_fraction=0.2)
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.complete_training(task, optax.sgd(0.1), batch_size=32)
      >>> method.round_is
      "training until the held-out loss stops falling of each host, ...sum"
    """
    learner = as_learner(task, optimizer)
    training = until_converged(
        task, learner, local_stopping, batch_size=batch_size, agent_loop=agent_loop
    )
    return combined_rounds(
        task,
        training,
        factors,
        stop=global_stopping,
        shared_init=shared_init,
        agent_loop=agent_loop,
    )
