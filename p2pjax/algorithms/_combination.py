"""Combination: hosts train for a few epochs, then their models are summed.

A. Ioste and M. Finger, "Establishing the parameters of a decentralized neural machine
learning model".
"""

import optax

from p2pjax.engines.combining import GlobalStopping, combined_rounds
from p2pjax.exchange import factors as sums
from p2pjax.exchange.factors import Factors
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.early_stopping import for_epochs
from p2pjax.training.learner import Learner, as_learner
from p2pjax.training.local_updates import LocalUpdates, epochs
from p2pjax.types import Algorithm, InputError


def combination(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    factors: Factors | None = sums.mean,
    local_updates: LocalUpdates = epochs(1),
    global_stopping: GlobalStopping | None = None,
    shared_init: bool = True,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Local epochs of each host, then a sum of all models (Ioste, Finger).

    Args:
      task: what each host learns.
      optimizer: of optax; it starts afresh in each round.
      batch_size: B.
      factors: how much a host counts, of its relative size, such as `factors.mean`,
        `factors.additive()` or `factors.exponential()`; None never combines.
      local_updates: of each host in a round, `epochs(e)`.
      global_stopping: when the coordinator stops, by held-out loss; None goes on.
      shared_init: whether all hosts start from the same weights, as those of a mean
        must to be near each other.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.combination(
      ...     task, optax.sgd(0.1), batch_size=32, factors=pj.factors.exponential())
      >>> method.round_is
      "1 local epoch of each host, then the coordinator's sum"
    """
    if not local_updates.num_epochs:
        raise InputError(
            "Combination counts passes of hosts over their data, as complete training "
            f"does, got {local_updates.described}: use epochs(e)."
        )
    learner = as_learner(task, optimizer)
    training = for_epochs(
        learner,
        local_updates.num_epochs,
        batch_size=batch_size,
        agent_loop=agent_loop,
    )
    return combined_rounds(
        task,
        training,
        factors,
        stop=global_stopping,
        shared_init=shared_init,
        agent_loop=agent_loop,
    )
