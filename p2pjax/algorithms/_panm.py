"""PANM: match with neighbours that are most similar, by expectation maximisation.

Li et al. (2022), "Towards effective clustered federated learning: a peer-to-peer
framework with adaptive neighbor matching", https://arxiv.org/abs/2203.12285.
"""

from typing import Unpack

import optax

from p2pjax.engines.options import PullOptions
from p2pjax.engines.pulling import pull
from p2pjax.graphs.conversion import GraphLike
from p2pjax.selection.panm import panm as panm_selection
from p2pjax.selection.peer_evaluation import Probe
from p2pjax.selection.similarity import Similarity
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm


def panm(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike | None = None,
    *,
    batch_size: int,
    similarity: Similarity | None = None,
    num_peers: int = 3,
    num_candidates: int = 6,
    second_stage: int = 100,
    matching_every: int = 10,
    counts_all: bool = True,
    probe: Probe | None = None,
    **options: Unpack[PullOptions],
) -> Algorithm:
    """Personalized adaptive neighbour matching (Li et al. 2022).

    https://arxiv.org/abs/2203.12285.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: whom each agent may choose, see `graphs.as_graph`; None permits all others.
      batch_size: B.
      similarity: `similarity.negative_loss()` if None, `update_cosine()` or
        `agreement()`.
      num_peers: models to average with.
      num_candidates: peers to compare in a round of the first stage.
      second_stage: the first round, counted from 1, of the second stage.
      matching_every: rounds from one matching to the next in the second stage.
      counts_all: False counts messages as the thesis of Sajina (2025) does.
      probe: common examples, for `agreement()`.
      **options: see `PullOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.rotated(2))
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.panm(task, optax.sgd(0.1), batch_size=32)
      >>> method.round_is
      'average with the peers chosen last time, ...choose peers'
    """
    selection = panm_selection(
        similarity=similarity,
        num_peers=num_peers,
        num_candidates=num_candidates,
        second_stage=second_stage,
        matching_every=matching_every,
        counts_all=counts_all,
    )
    return pull(
        task,
        optimizer,
        selection,
        graph,
        batch_size=batch_size,
        probe=probe,
        name="PANM",
        **options,
    )
