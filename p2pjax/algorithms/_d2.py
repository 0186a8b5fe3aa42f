"""D2: decentralized training that differences between the agents' data do not bias.

Tang et al. (2018), "D2: Decentralized training over decentralized data". Needs an
undirected graph, and a mixing matrix whose smallest eigenvalue is above -1/3.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.engines.stepwise import (
    CommunicationResult,
    ExchangeFn,
    GossipProtocol,
    MixingWeights,
    peer_ids,
    prepare_weights,
)
from p2pjax.exchange.mixing import is_peer
from p2pjax.graphs import analysis, mixing_matrices
from p2pjax.graphs.topology import Topology
from p2pjax.types import Key, Peers, PyTree

LOWEST = -1 / 3 + 1e-5  # eigenvalues of float32 weights are exact to about 1e-6


def d2_protocol(
    weigh: MixingWeights = mixing_matrices.metropolis_hastings,
) -> GossipProtocol:
    """`x' = W (2 x - x_old + u - u_old)` with the updates u of the learner.

    With the stepped models h = x + u this is `W (h + x - h_old)`, so one model is all
    that has to be remembered. Batch-norm statistics, which must not be extrapolated,
    are mixed plainly. Where the smallest eigenvalue of W is not above -1/3 the lazy
    matrix (W + I) / 2 takes its place, with a warning; directed graphs run as they are,
    with a warning.

    Args:
      weigh: the mixing matrix W of a graph, symmetric and doubly stochastic.
    """

    def wire_fn(graphs: Topology) -> Peers:
        peers = prepare_weights(weigh)(graphs)
        if analysis.warn_if_directed(graphs, "D2"):
            return peers
        return _lazy_where_needed(peers)

    def init_fn(message: PyTree) -> PyTree:
        return jax.tree.map(jnp.copy, message["params"])  # no correction at first

    def communicate_fn(
        key: Key,
        peers: Peers,
        before: PyTree,
        after: PyTree,
        stepped: PyTree,
        exchange: ExchangeFn,
    ) -> CommunicationResult:
        del key
        corrected = jax.tree.map(
            lambda new, now, old: new + (now - old),
            after["params"],
            before["params"],
            stepped,
        )
        message = exchange({**after, "params": corrected}, after, peers)
        used = is_peer(peers)
        return CommunicationResult(message, after["params"], used, used)

    return GossipProtocol(wire_fn, peer_ids, init_fn, communicate_fn)


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
