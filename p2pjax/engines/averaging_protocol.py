"""The protocol of D-PSGD, which several methods share: the mean of neighbours' models.

Lian et al. (2017), "Can decentralized algorithms outperform centralized algorithms?",
https://arxiv.org/abs/1705.09056. Agents with different data keep disagreeing unless the
learning rate goes to zero; where the matrix is not doubly stochastic, some agents count
more than others.
"""

import jax

from p2pjax.engines.protocol import (
    Combine,
    GossipProtocol,
    LocalStep,
    MixingWeights,
    Outgoing,
    peer_ids,
    prepare_weights,
    remembers_nothing,
)
from p2pjax.exchange.channel import lost_to_self
from p2pjax.exchange.channel_checks import MODELS, SPARSE
from p2pjax.exchange.mixing import is_peer
from p2pjax.graphs import mixing_matrices
from p2pjax.types import Array, Key, Peers, PyTree


def neighbor_averaging(
    mixing_weights: MixingWeights = mixing_matrices.uniform_receive,
    *,
    mix_first: bool = False,
) -> GossipProtocol:
    """Adapt-then-combine: `x <- W (x + update(x))`.

    What a lost message would have counted is counted for the receiver's own model.

    Args:
      mixing_weights: the mixing matrix W of a graph.
      mix_first: combine-then-adapt: `x <- W x + update(x)`, as in the paper. What an
        agent sends does not wait for its step. Batch-norm statistics are mixed after
        the step in both orders.

    >>> neighbor_averaging().num_models
    1
    """

    def send_fn(key: Key, peers: Peers, step: LocalStep, state: PyTree) -> Outgoing:
        del key, state
        message = step.after
        if mix_first:
            message = {**step.after, "params": step.before["params"]}
        return Outgoing(message, message, is_peer(peers))

    def receive_fn(
        peers: Peers,
        arrived: Array | None,
        outgoing: Outgoing,
        step: LocalStep,
        state: PyTree,
        combine: Combine,
    ) -> tuple[PyTree, PyTree]:
        del outgoing
        models = combine(lost_to_self(peers, arrived))
        if mix_first:
            models["params"] = jax.tree.map(
                lambda mixed, old, new: mixed + (new - old),
                models["params"],
                step.before["params"],
                step.after["params"],
            )
        return models, state

    return GossipProtocol(
        prepare_weights(mixing_weights),
        peer_ids,
        remembers_nothing,
        send_fn,
        receive_fn,
        needs_before=mix_first,
        formats=MODELS if mix_first else MODELS + SPARSE,
        takes_noise=True,
        takes_stale=not mix_first,
        rule_refusal="",
    )
