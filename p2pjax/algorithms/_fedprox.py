"""FedProx: FedAvg whose clients stay near the model they received.

Li et al. (2020), "Federated optimization in heterogeneous networks",
https://arxiv.org/abs/1812.06127.
"""

from functools import partial
from typing import Unpack

import optax

from p2pjax.engines.options import ServerOptions
from p2pjax.engines.server import server_rounds
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner, check_penalty_weight, proximal
from p2pjax.types import Algorithm


def fedprox(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    penalty_weight: float,
    **options: Unpack[ServerOptions],
) -> Algorithm:
    """FedAvg with a proximal term (Li et al. 2020, https://arxiv.org/abs/1812.06127).

    A client's loss has `penalty_weight / 2` times the squared distance to the server's
    model at the start of the round.

    Args:
      task: what each agent learns.
      optimizer: of optax; each client keeps its own state of it.
      batch_size: B.
      penalty_weight: mu, 0 or more.
      **options: see `ServerOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.fedprox(task, optax.sgd(0.1), batch_size=32, penalty_weight=0.1)
      >>> method.round_is
      "1 local epoch of each chosen client, then the server's mean"
    """
    check_penalty_weight(penalty_weight)
    return server_rounds(
        task,
        optimizer,
        batch_size=batch_size,
        penalty=partial(proximal, penalty_weight),
        name="FedProx",
        **options,
    )
