"""D-PSGD: each agent takes a step, then the mean of its neighbours' models and its own.

Lian et al. (2017), "Can decentralized algorithms outperform centralized algorithms?",
https://arxiv.org/abs/1705.09056.
"""

from typing import Unpack

import optax

from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.options import GossipOptions
from p2pjax.engines.protocol import MixingWeights
from p2pjax.engines.stepwise import gossip
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm


def dpsgd(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    mixing_weights: MixingWeights = mixing_matrices.uniform_receive,
    mix_first: bool = False,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Decentralized parallel SGD (Lian et al. 2017, https://arxiv.org/abs/1705.09056).

    With `optax.sgd(rate, momentum=0.9)` it is DSGDm, with `nesterov=True` DSGDm-N:
    momenta are private and never mixed. They multiply by 1 / (1 - momentum) how much
    agents with different data disagree; those of `qg_dsgdm` do not.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      mixing_weights: the mixing matrix of a graph; doubly stochastic ones, such as
        `graphs.metropolis_hastings`, keep the agents' mean. With attached attackers it
        is that of Metropolis-Hastings in which they count.
      mix_first: combine-then-adapt, as in the paper, instead of adapt-then-combine.
      **options: see `GossipOptions`.

    Example:
      >>> import jax, optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.dpsgd(task, optax.sgd(0.1), pj.graphs.ring(4), batch_size=32)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    attack = options.get("attack")
    protocol = neighbor_averaging(
        mixing_weights,
        mix_first=mix_first,
        num_attached=0 if attack is None else attack.num_attached,
    )
    return gossip(
        task,
        optimizer,
        protocol,
        graph,
        batch_size=batch_size,
        name="D-PSGD",
        **options,
    )
