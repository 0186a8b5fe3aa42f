"""D-PSGD: everybody takes a step, then the mean of its neighbours' models and its own.

Lian et al. (2017), "Can decentralized algorithms outperform centralized algorithms?".
Agents with different data keep disagreeing unless the learning rate goes to zero;
where the matrix is not doubly stochastic, some count more than others.
"""

import jax

from p2pjax.engines.stepwise import (
    CommunicationResult,
    ExchangeFn,
    GossipProtocol,
    MixingWeights,
    peer_ids,
    prepare_weights,
)
from p2pjax.exchange.mixing import is_peer
from p2pjax.graphs import mixing_matrices
from p2pjax.types import Key, Peers, PyTree


def neighbor_averaging(
    weigh: MixingWeights = mixing_matrices.uniform_receive, *, mix_first: bool = False
) -> GossipProtocol:
    """Adapt then combine: `x <- W (x + update(x))`.

    Args:
      weigh: the mixing matrix W of a graph.
      mix_first: combine, then adapt: `x <- W x + update(x)`, as in the paper. What an
        agent sends does not wait for its step. Batch-norm statistics are mixed after
        the step in both orders.
    """

    def communicate_fn(
        key: Key,
        peers: Peers,
        before: PyTree,
        after: PyTree,
        memory: PyTree,
        exchange: ExchangeFn,
    ) -> CommunicationResult:
        del key
        if mix_first:
            outgoing = {**after, "params": before["params"]}
            message = exchange(outgoing, outgoing, peers)
            message["params"] = jax.tree.map(
                lambda mixed, old, new: mixed + (new - old),
                message["params"],
                before["params"],
                after["params"],
            )
        else:
            message = exchange(after, after, peers)
        used = is_peer(peers)
        return CommunicationResult(message, memory, used, used)

    return GossipProtocol(
        prepare_weights(weigh), peer_ids, lambda message: (), communicate_fn
    )
