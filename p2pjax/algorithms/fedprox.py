"""FedProx: FedAvg whose clients stay near the model they received.

Li et al. (2020), "Federated optimization in heterogeneous networks".
"""

from functools import partial
from typing import Any

from p2pjax.algorithms.base import Algorithm
from p2pjax.algorithms.fedavg import fedavg
from p2pjax.tasks import Task
from p2pjax.training import Learner, proximal
from p2pjax.types import InputError


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


def check_strength(strength: float) -> None:
    """Refuses penalties that are none."""
    if not 0 <= strength < float("inf"):
        raise InputError(f"Need a strength of 0 or more, got {strength}.")
