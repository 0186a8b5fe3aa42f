"""FedProx: FedAvg whose clients stay near the model they received.

Li et al. (2020), "Federated optimization in heterogeneous networks".
"""

from functools import partial
from typing import Any

from p2pjax.engines.server import fedavg
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner, check_strength, proximal
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
    check_strength(strength)
    return fedavg(task, learner, penalty=partial(proximal, strength), **options)
