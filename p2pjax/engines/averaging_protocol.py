"""The protocol of D-PSGD, which several methods share: the mean of neighbours' models.

Lian et al. (2017), "Can decentralized algorithms outperform centralized algorithms?",
https://arxiv.org/abs/1705.09056. Agents with different data keep disagreeing unless the
learning rate goes to zero; where the matrix is not doubly stochastic, some agents count
more than others.
"""

from functools import partial

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
from p2pjax.exchange.attacks.placement import attached_weights
from p2pjax.exchange.channel_checks import MODELS, SPARSE
from p2pjax.exchange.mixing import is_peer
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.topology import Topology, check_undirected
from p2pjax.types import Array, InputError, Key, Peers, PyTree

MIX_FIRST = (
    "Need D-PSGD that adapts first for an attack on what was learned, got mix_first: "
    "what it sends is the model before the step; use mix_first=False."
)


def neighbor_averaging(
    mixing_weights: MixingWeights = mixing_matrices.uniform_receive,
    *,
    mix_first: bool = False,
    num_attached: int = 0,
) -> GossipProtocol:
    """Adapt-then-combine: `x <- W (x + update(x))`.

    What a lost message would have counted is counted for the receiver's own model.

    Args:
      mixing_weights: the mixing matrix W of a graph.
      mix_first: combine-then-adapt: `x <- W x + update(x)`, as in the paper. What an
        agent sends does not wait for its step. Batch-norm statistics are mixed after
        the step in both orders.
      num_attached: attackers beside each agent, `attacks.attached`; the matrix is then
        that of Metropolis-Hastings with them counted, whatever `mixing_weights` says.

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
        models = combine(peers, arrived)
        if mix_first:
            models["params"] = jax.tree.map(
                lambda mixed, old, new: mixed + (new - old),
                models["params"],
                step.before["params"],
                step.after["params"],
            )
        return models, state

    def prepare_fn(graphs: Topology | Peers) -> Peers:
        if not num_attached:
            return prepare_weights(mixing_weights)(graphs)
        if isinstance(graphs, Peers):
            raise InputError(
                "Need a graph without weights of its own for attached attackers, who "
                "have none in it, got one with weights: give who is linked to whom."
            )
        check_undirected(graphs)
        weights = partial(attached_weights, num_attached=num_attached)
        return prepare_weights(weights)(graphs)

    return GossipProtocol(
        prepare_fn,
        peer_ids,
        remembers_nothing,
        send_fn,
        receive_fn,
        needs_before=mix_first,
        formats=MODELS if mix_first else MODELS + SPARSE,
        takes_noise=True,
        takes_stale=not mix_first,
        rule_refusal="",
        update_attack_refusal=MIX_FIRST if mix_first else "",
        num_attached=num_attached,
    )
