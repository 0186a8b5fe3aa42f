"""Stochastic gradient push: D-PSGD for directed graphs, corrected by push-sum.

Assran et al. (2019), "Stochastic gradient push for distributed deep learning". Agents
split what they send, so nothing is counted twice; a scalar that travels along tells
every receiver how much has arrived.
"""

import jax
import jax.numpy as jnp

from p2pjax.engines.stepwise import (
    CommunicationResult,
    ExchangeFn,
    GossipProtocol,
    MixingWeights,
    peer_ids,
    prepare_weights,
)
from p2pjax.exchange.mixing import is_peer
from p2pjax.exchange.push_sum import push_sum_step
from p2pjax.graphs import mixing_matrices
from p2pjax.types import Array, InputError, Key, Peers, PyTree


def sgp_protocol(
    weigh: MixingWeights = mixing_matrices.uniform_send,
    *,
    loss_probability: float = 0.0,
) -> GossipProtocol:
    """`x <- A (x + update(z))`, `w <- A w`, `z = x / w`.

    The state holds the de-biased models z, which are trained and evaluated, and the
    weights w (its memory, `[N]`, 1 at first); `x = w z` exists on the way only.
    Batch-norm statistics are mixed as de-biased values. The weights sum to N.

    Args:
      weigh: the column-stochastic matrix A of a graph.
      loss_probability: of each message; what is lost takes its part of the weights'
        sum along, which shows how much has gone.
    """
    if not 0 <= loss_probability < 1:
        raise InputError(
            f"Need a loss_probability from 0 to below 1, got {loss_probability}."
        )

    def init_fn(message: PyTree) -> Array:
        return jnp.ones(jax.tree.leaves(message)[0].shape[0], jnp.float32)

    def communicate_fn(
        key: Key,
        peers: Peers,
        before: PyTree,
        after: PyTree,
        weight: Array,
        exchange: ExchangeFn,
    ) -> CommunicationResult:
        sent = arrived = is_peer(peers)
        arriving = peers
        if loss_probability:
            is_lost = sent & jax.random.bernoulli(key, loss_probability, sent.shape)
            arriving, arrived = _without(peers, is_lost), sent & ~is_lost

        def biased(z: Array, stepped: Array) -> Array:
            """(x + update) / w, which is what push-sum averages."""
            own = weight.astype(z.dtype).reshape((-1,) + (1,) * (z.ndim - 1))
            return z + (stepped - z) / own

        params = jax.tree.map(biased, before["params"], after["params"])
        means, weight = push_sum_step(arriving, weight)
        message = exchange({**after, "params": params}, after, means)
        return CommunicationResult(message, weight, sent, arrived)

    return GossipProtocol(
        prepare_weights(weigh), peer_ids, init_fn, communicate_fn, lambda weight: weight
    )


def _without(peers: Peers, is_lost: Array) -> Peers:
    """Lost messages do not count; their slots point at the receiver itself."""
    ids = jnp.where(is_lost, peers.ids[:, :1], peers.ids)
    return Peers(ids, jnp.where(is_lost, 0, peers.weight))
