"""The protocol of D2, exact diffusion and NIDS, which differ in their matrices.

Agents add to what they send how far the last mixing moved them, which is what is left
of their disagreement: with one fixed symmetric matrix they agree on a minimum of the
sum of losses, although each has its own data.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.engines.protocol import (
    Combine,
    GossipProtocol,
    LocalStep,
    Outgoing,
    peer_ids,
    rescaled,
    with_params,
    zero_params,
)
from p2pjax.exchange.mixing import is_peer
from p2pjax.graphs.topology import Topology
from p2pjax.types import Array, Key, Peers, PyTree


class Unmixed(NamedTuple):
    """A correction, and whether the first exchange is still to come."""

    correction: PyTree  # leaves [N, ...]
    is_first: Array  # [N] bool


def diffusion(
    prepare_graph: Callable[[Topology | Peers], Peers],
    name: str,
    *,
    mix_first_step: bool = True,
) -> GossipProtocol:
    """`x' = W (x + u + c)`, `c' = x' - (x + u)`, with the updates u of the learner.

    That is `x' = W (2 x - x_old + u - u_old)`. The correction c, 0 at first, is in
    units of the learning rate and sums to 0 over agents. Batch-norm statistics, which
    must not be extrapolated, are mixed plainly.

    Args:
      prepare_graph: graphs -> matrices W.
      name: of the method, for messages.
      mix_first_step: False: no message is sent after the first step (NIDS).

    >>> from p2pjax.engines.protocol import prepare_weights
    >>> from p2pjax.graphs import metropolis_hastings
    >>> diffusion(prepare_weights(metropolis_hastings), "D2").num_models
    1
    """

    def init_fn(message: PyTree) -> PyTree:
        zeros = zero_params(message)
        if mix_first_step:
            return zeros
        size = jax.tree.leaves(zeros)[0].shape[0]
        return Unmixed(zeros, jnp.ones(size, bool))

    def used(peers: Peers, state: PyTree) -> Peers:
        """The matrix, or the identity where the first step is not mixed."""
        if mix_first_step:
            return peers
        own = jnp.zeros_like(peers.weight).at[:, 0].set(1)
        return Peers(peers.ids, jnp.where(state.is_first[:, None], own, peers.weight))

    def send_fn(key: Key, peers: Peers, step: LocalStep, state: PyTree) -> Outgoing:
        del key
        correction = state if mix_first_step else state.correction
        params = jax.tree.map(jnp.add, step.after["params"], correction)
        sent = is_peer(peers)
        if not mix_first_step:
            sent &= ~state.is_first[:, None]
        return Outgoing(with_params(step, params), step.after, sent)

    def receive_fn(
        peers: Peers,
        arrived: Array | None,
        outgoing: Outgoing,
        step: LocalStep,
        state: PyTree,
        combine: Combine,
    ) -> tuple[PyTree, PyTree]:
        del arrived, outgoing
        models = combine(used(peers, state))
        correction = jax.tree.map(jnp.subtract, models["params"], step.after["params"])
        if mix_first_step:
            return models, correction
        return models, Unmixed(correction, jnp.zeros_like(state.is_first))

    def rescale_fn(state: PyTree, factor: Array) -> PyTree:
        if mix_first_step:
            return rescaled(state, factor)
        return state._replace(correction=rescaled(state.correction, factor))

    return GossipProtocol(
        prepare_graph,
        peer_ids,
        init_fn,
        send_fn,
        receive_fn,
        takes_losses=False,
        takes_noise=True,
        rule_refusal=f"Need D-PSGD for a robust rule, got {name}: its correction "
        "assumes one fixed symmetric matrix.",
        rescale=rescale_fn,
    )
