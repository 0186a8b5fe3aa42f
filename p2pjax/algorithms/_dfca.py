"""DFCA: decentralized IFCA. Agents hold a model of each cluster and train the best.

Kirch et al. (2026), "DFCA: Decentralized federated clustering algorithm",
https://arxiv.org/abs/2510.15300.
"""

import optax

from p2pjax.engines.clustered import clustered_rounds
from p2pjax.exchange import shared
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.channel import PERFECT, Channel
from p2pjax.exchange.shared import Local
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner
from p2pjax.training.local_updates import LocalUpdates, epochs
from p2pjax.types import Algorithm


def dfca(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    num_clusters: int = 2,
    same_start: bool = True,
    local_updates: LocalUpdates = epochs(1),
    rewire_every: int | None = None,
    local_patterns: Local = shared.FULL,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    agent_loop: int = AUTO,
) -> Algorithm:
    """Decentralized IFCA (Kirch et al. 2026, https://arxiv.org/abs/2510.15300).

    Each agent has a model of every cluster. In a round it takes the one with the least
    loss on its training data, trains it, and sends it to its neighbours with the number
    of the cluster; of each cluster's model it keeps the mean of its own and of those
    that arrived with this number. It is scored with the model that it trained.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has one state of it, for whichever model.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      num_clusters: models of each agent, k.
      same_start: whether all agents start with the same k models (DFCA-GI), not each
        with its own (DFCA-LI).
      local_updates: in a round, `epochs(e)` or `steps(k)`.
      rewire_every: rounds after which the next graph comes; None keeps the first.
      local_patterns: leaves that are not sent, see `exchange.shared`.
      channel: `channel.drop`, where what is lost does not count, and `quantize`.
      attack: `label_flip`, or `backdoor` without boost; None: all are honest.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.rotated(2))
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> pj.dfca(task, optax.sgd(0.1), pj.graphs.ring(8), batch_size=32).round_is
      'a choice among 2 of each agent, 1 local epoch and one exchange'
    """
    return clustered_rounds(
        task,
        optimizer,
        graph,
        batch_size=batch_size,
        num_clusters=num_clusters,
        version_patterns=(".*",),
        same_start=same_start,
        local_updates=local_updates,
        rewire_every=rewire_every,
        local_patterns=local_patterns,
        channel=channel,
        attack=attack,
        agent_loop=agent_loop,
        name="DFCA",
    )
