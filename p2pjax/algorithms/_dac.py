"""DAC: sample peers whose models do well on your data, and those they recommend.

Listo Zec et al. (2023), "Decentralized adaptive clustering of deep nets is beneficial
for client collaboration", https://arxiv.org/abs/2206.08839.
"""

from typing import Unpack

import optax

from p2pjax.engines.options import PullOptions
from p2pjax.engines.pulling import pull
from p2pjax.graphs.conversion import GraphLike
from p2pjax.selection.dac import dac as dac_selection
from p2pjax.selection.peer_evaluation import Probe
from p2pjax.selection.similarity import Similarity
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm


def dac(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike | None = None,
    *,
    batch_size: int,
    num_peers: int = 3,
    sharpness: float = 30.0,
    anneal: bool = False,
    similarity: Similarity | None = None,
    probe: Probe | None = None,
    **options: Unpack[PullOptions],
) -> Algorithm:
    """Decentralized adaptive clustering (Listo Zec et al. 2023).

    https://arxiv.org/abs/2206.08839.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: whom each agent may choose, see `graphs.as_graph`; None permits all others.
      batch_size: B.
      num_peers: models to fetch and average with.
      sharpness: softmax sharpness of the peer sampling.
      anneal: whether it begins at 1 and rises to its value in about twenty rounds.
      similarity: `similarity.inverse_loss()` if None, `agreement()` or
        `update_cosine()`; what is negative counts as 0.
      probe: common examples, for `agreement()`.
      **options: see `PullOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.rotated(2))
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.dac(task, optax.sgd(0.1), batch_size=32)
      >>> method.round_is
      'average with the peers chosen last time, ...choose peers'
    """
    selection = dac_selection(
        num_peers=num_peers, sharpness=sharpness, anneal=anneal, similarity=similarity
    )
    return pull(
        task,
        optimizer,
        selection,
        graph,
        batch_size=batch_size,
        probe=probe,
        name="DAC",
        **options,
    )
