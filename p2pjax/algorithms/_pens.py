"""PENS: average with peers whose models often do well on your data.

Onoszko et al. (2021), "Decentralized federated learning of deep neural networks on
non-iid data", https://arxiv.org/abs/2107.08517.
"""

from typing import Unpack

import optax

from p2pjax.engines.options import PullOptions
from p2pjax.engines.pulling import pull
from p2pjax.graphs.conversion import GraphLike
from p2pjax.selection.pens import pens as pens_selection
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm


def pens(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike | None = None,
    *,
    batch_size: int,
    num_peers: int = 3,
    num_candidates: int = 6,
    second_stage: int = 100,
    **options: Unpack[PullOptions],
) -> Algorithm:
    """Performance-based neighbour selection (Onoszko et al. 2021).

    https://arxiv.org/abs/2107.08517.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: whom each agent may choose, see `graphs.as_graph`; None permits all others.
      batch_size: B.
      num_peers: models to average with.
      num_candidates: models to try in a round of the first stage.
      second_stage: the first round, counted from 1, of the second stage.
      **options: see `PullOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.rotated(2))
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.pens(task, optax.sgd(0.1), batch_size=32, num_peers=2)
      >>> method.round_is
      'average with the peers chosen last time, ...choose peers'
    """
    selection = pens_selection(
        num_peers=num_peers,
        num_candidates=num_candidates,
        second_stage=second_stage,
    )
    return pull(
        task,
        optimizer,
        selection,
        graph,
        batch_size=batch_size,
        name="PENS",
        **options,
    )
