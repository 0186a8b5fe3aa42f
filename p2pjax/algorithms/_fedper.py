"""FedPer: FedAvg of the lower layers; the others stay with their agents.

Arivazhagan et al. (2019), "Federated learning with personalization layers".
"""

import re
from collections.abc import Sequence
from typing import Any

import jax

from p2pjax.engines.server import server_rounds
from p2pjax.paths import leaves_with_paths
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm, InputError


def fedper(
    task: Task, learner: Learner, *, personal: Sequence[str], **options: Any
) -> Algorithm:
    """FedAvg with personal layers, which agents train but do not send.

    Args:
      task: what every agent learns.
      learner: how.
      personal: regular expressions of whole paths, as in `params/layer_2/.*`.
      **options: those of `fedavg`, without `local`.
    """
    shapes = jax.eval_shape(task.init, jax.random.key(0)).params
    paths = [path for path, _ in leaves_with_paths({"params": shapes})]
    for pattern in personal:
        if not any(re.fullmatch(pattern, path) for path in paths):
            raise InputError(
                f"Need personal layers among {', '.join(paths)}, got '{pattern}', "
                "which matches none."
            )
    return server_rounds(task, learner, local=tuple(personal), **options)
