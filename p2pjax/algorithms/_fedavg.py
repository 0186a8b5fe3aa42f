"""FedAvg: a server averages the models of a few clients in every round.

McMahan et al. (2017), "Communication-efficient learning of deep networks from
decentralized data", https://arxiv.org/abs/1602.05629.
"""

from typing import Unpack

import optax

from p2pjax.engines.options import ServerOptions
from p2pjax.engines.server import server_rounds
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm


def fedavg(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    server_opt: optax.GradientTransformation | None = None,
    **options: Unpack[ServerOptions],
) -> Algorithm:
    """Federated averaging (McMahan et al. 2017, https://arxiv.org/abs/1602.05629).

    Args:
      task: what each agent learns.
      optimizer: of optax; each client keeps its own state of it.
      batch_size: B.
      server_opt: the server's optimizer (Reddi et al. 2021,
        https://arxiv.org/abs/2003.00295), for which the mean change of the clients'
        parameters, with a minus sign, is a gradient; None takes the mean of models.
      **options: see `ServerOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.fedavg(task, optax.sgd(0.1), batch_size=32, num_clients=2)
      >>> method.round_is
      "1 local epoch of each chosen client, then the server's mean"
    """
    return server_rounds(
        task,
        optimizer,
        batch_size=batch_size,
        server_opt=server_opt,
        name="FedAvg",
        **options,
    )
