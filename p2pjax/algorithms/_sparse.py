"""Sparse: average with the same few peers, or with random ones, in every round.

The baseline of Sajina (2025), "Deep Learning Personalization Methods in Peer-to-peer
Heterogeneous Systems"; on `graphs.oracle` it knows who is alike.
"""

from typing import Unpack

import optax

from p2pjax.engines.options import PullOptions
from p2pjax.engines.pulling import pull
from p2pjax.graphs.conversion import GraphLike
from p2pjax.selection.sparse import sparse as sparse_selection
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm


def sparse(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike | None = None,
    *,
    batch_size: int,
    num_peers: int | None = None,
    **options: Unpack[PullOptions],
) -> Algorithm:
    """Average with all permitted peers after every round of local training.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: whom each agent may choose, see `graphs.as_graph`; None permits all others.
      batch_size: B.
      num_peers: of those that are permitted, drawn anew in every round; None takes
        them all.
      **options: see `PullOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.rotated(2))
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.sparse(task, optax.sgd(0.1), batch_size=32, num_peers=3)
      >>> method.round_is
      'average with the peers chosen last time, ...choose peers'
    """
    selection = sparse_selection(num_peers)
    return pull(
        task,
        optimizer,
        selection,
        graph,
        batch_size=batch_size,
        name="Sparse",
        **options,
    )
