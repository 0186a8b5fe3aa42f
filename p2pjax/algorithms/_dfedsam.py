"""DFedSAM: local training towards flat minima, then one or more neighbours' means.

Shi et al. (2023), "Improving the model consistency of decentralized federated
learning", https://arxiv.org/abs/2302.04083.
"""

from typing import Any, Unpack

import optax

from p2pjax.engines.averaging_protocol import neighbor_averaging
from p2pjax.engines.options import GossipOptions
from p2pjax.engines.protocol import MixingWeights
from p2pjax.engines.stepwise import gossip
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task
from p2pjax.training.gradient_learners import sharpness_aware
from p2pjax.training.learner import Learner, as_learner
from p2pjax.training.local_updates import epochs
from p2pjax.types import Algorithm, Array, FederatedData, Info, InputError, Key, PyTree


def dfedsam(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    rho: float = 0.05,
    num_exchanges: int = 1,
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Decentralized federated learning with sharpness-aware steps (Shi et al. 2023).

    https://arxiv.org/abs/2302.04083. A step goes along the gradient at
    `y + rho * g / |g|`, of the same batch; then `x <- W^Q y`. Batch-norm statistics are
    those of the first of the two passes. Both passes count among the examples that are
    reported, not among the steps.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      rho: how far away from its model an agent looks for the worst, 0 or more; 0 is
        D-PSGD with local updates.
      num_exchanges: Q, one after the other on the same graph; DFedSAM-MGS has several.
      mixing_weights: the mixing matrix of a graph, doubly stochastic in the paper.
      **options: see `GossipOptions`; `local_updates` is `epochs(1)` if not given.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> ring, sgd = pj.graphs.ring(4), optax.sgd(0.1)
      >>> pj.dfedsam(task, sgd, ring, batch_size=32, num_exchanges=4).round_is
      '1 local epoch of each agent and 4 exchanges'
    """
    if not 0 <= rho < float("inf"):
        raise InputError(f"Need a rho of 0 or more, got {rho}.")
    if not isinstance(num_exchanges, int) or num_exchanges < 1:
        raise InputError(
            f"Need one exchange or more after local training, got {num_exchanges}: "
            "give a whole number."
        )
    protocol = neighbor_averaging(mixing_weights)
    settled: Any = {"local_updates": epochs(1), **options}
    method = gossip(
        task,
        sharpness_aware(as_learner(task, optimizer), rho),
        protocol._replace(num_exchanges=num_exchanges),
        graph,
        batch_size=batch_size,
        name="DFedSAM",
        **settled,
    )

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: PyTree, data: FederatedData
    ) -> tuple[PyTree, Info]:
        state, info = method.round(key, t, inputs, state, data)
        assert info.examples is not None
        return state, info._replace(examples=2 * info.examples)

    round_is = method.round_is
    if num_exchanges > 1:
        for one in ("one exchange", "an exchange"):
            round_is = round_is.replace(one, f"{num_exchanges} exchanges")
    return method._replace(round=round_fn, round_is=round_is)
