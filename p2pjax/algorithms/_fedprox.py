"""FedProx: FedAvg whose clients stay near the model they received.

Li et al. (2020), "Federated optimization in heterogeneous networks".
"""

from functools import partial
from typing import Any

from p2pjax.engines.server import server_rounds
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner, check_penalty_weight, proximal
from p2pjax.types import Algorithm


def fedprox(
    task: Task, learner: Learner, *, strength: float, **options: Any
) -> Algorithm:
    """FedAvg with `strength / 2` times the squared distance to the server's model.

    Args:
      task: what every agent learns.
      learner: how.
      strength: mu, 0 or more.
      **options: those of `fedavg`.
    """
    check_penalty_weight(strength)
    return server_rounds(task, learner, penalty=partial(proximal, strength), **options)
