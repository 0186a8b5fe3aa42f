"""D2: decentralized training that differences between the agents' data do not bias.

Tang et al. (2018), "D2: Decentralized training over decentralized data",
https://arxiv.org/abs/1803.07068. Needs an undirected graph, and a mixing matrix whose
smallest eigenvalue is above -1/3.
"""

import warnings
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.diffusion_protocol import diffusion
from p2pjax.engines.options import GossipOptions
from p2pjax.engines.protocol import GossipProtocol, MixingWeights, prepare_weights
from p2pjax.engines.stepwise import gossip
from p2pjax.graphs import analysis, mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.graphs.topology import Topology
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm, Peers

LOWEST = -1 / 3 + 1e-5  # eigenvalues of float32 weights are exact to about 1e-6


def d2(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Decentralized training with variance reduction across agents (Tang et al. 2018).

    https://arxiv.org/abs/1803.07068. It corrects with what was sent before, so messages
    may not be lost. What it remembers follows the learning rate where
    `optax.inject_hyperparams` keeps it in the optimizer's state, else it is constant.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who receives from whom, `[N, D]`, undirected: see `graphs.as_graph`.
      batch_size: B.
      mixing_weights: the mixing matrix of a graph, symmetric and doubly stochastic.
      **options: see `GossipOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.d2(task, optax.sgd(0.1), pj.graphs.complete(4), batch_size=32)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    return gossip(
        task,
        optimizer,
        d2_protocol(mixing_weights),
        graph,
        batch_size=batch_size,
        name="D2",
        **options,
    )


def d2_protocol(
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
) -> GossipProtocol:
    """`x' = W (2 x - x_old + u - u_old)` with the updates u of the learner.

    See `engines.diffusion_protocol`. Where the smallest eigenvalue of W is not above
    -1/3 the lazy matrix (W + I) / 2 takes its place, with a warning; directed graphs
    run as they are, with a warning.

    Args:
      mixing_weights: the mixing matrix W of a graph, symmetric and doubly stochastic.

    Example:
      >>> d2_protocol().takes_losses  # what is lost now would be missed by the next
      False
    """

    def prepare_fn(graphs: Topology | Peers) -> Peers:
        if isinstance(graphs, Topology) and analysis.warn_if_directed(graphs, "D2"):
            return jax.vmap(mixing_weights)(jax.tree.map(jnp.asarray, graphs))
        return _lazy_where_needed(prepare_weights(mixing_weights)(graphs))

    return diffusion(prepare_fn, "D2")


def _lazy_where_needed(peers: Peers) -> Peers:
    """Replaces the matrices of a sequence `[G, N, K]` that D2 cannot use."""
    lowest = np.array(
        [
            analysis.smallest_eigenvalue(Peers(*one))
            for one in zip(peers.ids, peers.weight, strict=True)
        ]
    )
    is_lazy = lowest <= LOWEST
    if not is_lazy.any():
        return peers
    warnings.warn(
        "D2 needs a smallest eigenvalue above -1/3 and the graph's weights have "
        f"{lowest.min():.3f}: it uses the lazy matrix (W + I) / 2 for "
        f"{is_lazy.sum()} of {len(is_lazy)} graphs.",
        stacklevel=2,
    )
    chosen = np.where(
        is_lazy[:, None, None], mixing_matrices.lazy(peers).weight, peers.weight
    )
    return Peers(peers.ids, chosen)
