"""Oracle: average with random peers of the own cluster, which it is told.

The upper baseline of Sajina (2025), "Deep Learning Personalization Methods in
Peer-to-peer Heterogeneous Systems".
"""

from collections.abc import Sequence
from typing import Unpack

import numpy as np
import optax

from p2pjax.engines.options import PullOptions
from p2pjax.engines.pulling import pull
from p2pjax.graphs import clusters
from p2pjax.selection.sparse import sparse
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm, Array


def oracle(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    cluster: Array | Sequence[int],
    *,
    batch_size: int,
    degree: int = 3,
    **options: Unpack[PullOptions],
) -> Algorithm:
    """Average with a few peers of the own cluster after every round.

    The graph inside each cluster is drawn when a run is prepared; `rewire_every` draws
    it anew.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      cluster: `[N]`, who belongs together, such as `data.cluster`.
      batch_size: B.
      degree: peers of each agent.
      **options: see `PullOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.rotated(2))
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.oracle(task, optax.sgd(0.1), data.cluster, batch_size=32)
      >>> method.round_is
      'average with the peers chosen last time, ...choose peers'
    """
    labels = np.asarray(cluster)
    return pull(
        task,
        optimizer,
        sparse(),
        lambda rng: clusters.oracle(labels, degree, seed=rng),
        batch_size=batch_size,
        name="Oracle",
        **options,
    )
