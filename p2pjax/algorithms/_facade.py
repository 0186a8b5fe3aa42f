"""FACADE: a core that all agents share, and a head for each cluster of agents.

Biswas et al. (2025), "Fair decentralized learning", https://arxiv.org/abs/2410.02541.
"""

from collections.abc import Sequence

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


def facade(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    head: Sequence[str],
    num_clusters: int = 2,
    num_random_rounds: int = 0,
    local_updates: LocalUpdates = epochs(1),
    rewire_every: int | None = None,
    local_patterns: Local = shared.FULL,
    channel: Channel = PERFECT,
    attack: Attack | None = None,
    agent_loop: int = AUTO,
) -> Algorithm:
    """A common core and a head per cluster (Biswas et al. 2025).

    https://arxiv.org/abs/2410.02541. In a round each agent takes the head with the
    least loss on all of its training data, trains it with the core, and sends both with
    the number of the head. The core becomes the mean of its own and of all that
    arrived, each head that of its own and of those that arrived with its number. All
    agents start alike. The authors draw a new graph in every round:
    `lambda rng: graphs.random_regular(n, r, seed=rng)` with `rewire_every=1`.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has one state of it, for whichever head.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      head: regular expressions of whole paths, as in `params/layer_2/.*`; the rest of
        the model is the core.
      num_clusters: heads of each agent, k.
      num_random_rounds: first rounds, in which heads are drawn, not chosen; the
        authors' code has a quarter of all.
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
      >>> method = pj.facade(task, optax.sgd(0.1), pj.graphs.ring(8), batch_size=32,
      ...                    head=["params/layer_2/.*"])
      >>> method.round_is
      'a choice among 2 of each agent, 1 local epoch and one exchange'
    """
    return clustered_rounds(
        task,
        optimizer,
        graph,
        batch_size=batch_size,
        num_clusters=num_clusters,
        version_patterns=head,
        num_random_rounds=num_random_rounds,
        local_updates=local_updates,
        rewire_every=rewire_every,
        local_patterns=local_patterns,
        channel=channel,
        attack=attack,
        agent_loop=agent_loop,
        name="FACADE",
    )
