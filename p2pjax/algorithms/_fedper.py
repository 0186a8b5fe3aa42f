"""FedPer: FedAvg of the lower layers; the others stay with their agents.

Arivazhagan et al. (2019), "Federated learning with personalization layers",
https://arxiv.org/abs/1912.00818.
"""

from collections.abc import Sequence
from typing import Unpack

import optax

from p2pjax.engines.options import ServerOptions
from p2pjax.engines.server import server_rounds
from p2pjax.paths import check_patterns, leaves_with_paths
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm, InputError


def fedper(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    personal: Sequence[str],
    **options: Unpack[ServerOptions],
) -> Algorithm:
    """FedAvg with personal layers, which agents train but do not send.

    Arivazhagan et al. (2019), https://arxiv.org/abs/1912.00818.

    Args:
      task: what each agent learns.
      optimizer: of optax; each client keeps its own state of it.
      batch_size: B.
      personal: regular expressions of whole paths, as in `params/layer_2/.*`.
      **options: see `ServerOptions`, but for `local_patterns`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.fedper(
      ...     task, optax.sgd(0.1), batch_size=32, personal=["params/layer_2/.*"])
      >>> method.round_is
      "1 local epoch of each chosen client, then the server's mean"
    """
    if "local_patterns" in options:
        raise InputError(
            "Need only one list of what stays with its agent: give FedPer's personal "
            "layers as personal, not as local_patterns."
        )
    shapes = shapes_of(task).params
    paths = [path for path, _ in leaves_with_paths({"params": shapes})]
    check_patterns(personal, paths, "personal layers")
    options["local_patterns"] = tuple(personal)
    return server_rounds(
        task, optimizer, batch_size=batch_size, name="FedPer", **options
    )
