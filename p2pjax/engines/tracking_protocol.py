"""The protocol of gradient tracking: agents follow their estimate of the mean update.

Each agent remembers a correction c of its own updates u, so that u + c comes to be the
mean of all agents' updates, and sends u + c along with its model. Di Lorenzo, Scutari
(2016), "NEXT: in-network nonconvex optimization", https://arxiv.org/abs/1602.00591;
Nedic, Olshevsky, Shi (2017), "Achieving geometric convergence for distributed
optimization over time-varying graphs", https://arxiv.org/abs/1607.03218 (DIGing).
"""

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from p2pjax.engines.prepared_matrices import prepare_doubly_stochastic
from p2pjax.engines.protocol import (
    Combine,
    GossipProtocol,
    LocalStep,
    MixingWeights,
    Outgoing,
    peer_ids,
    rescaled,
    updates_of,
    with_params,
    zero_params,
)
from p2pjax.exchange.mixing import is_peer
from p2pjax.graphs import mixing_matrices
from p2pjax.types import Array, InputError, Key, Peers, PyTree

Order = Literal["combine_then_adapt", "semi_adapt_then_combine", "adapt_then_combine"]


class Tracked(NamedTuple):
    """What agents remember that mix trackers before they use them."""

    tracker: PyTree  # leaves [N, ...]: estimates of the mean update
    update: PyTree  # leaves [N, ...]: their last own updates
    is_first: Array  # [N] bool: whether the first exchange is still to come


def tracking(
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    *,
    order: Order = "semi_adapt_then_combine",
    name: str = "Gradient tracking",
) -> GossipProtocol:
    """`x' = W x + u + c` or `W (x + u + c)`, and `c' = W (c + u) - u`.

    The third order, adapt-then-combine, mixes twice: `s' = W (s + u - u_old)`, where s
    is u at first, and `x' = W (x + s')`. With gradients g and a learning rate, these
    are the textbook's with the tracker y: u = -rate g and u + c = s = -rate y. The
    corrections sum to 0 over agents. Batch-norm statistics are mixed plainly.

    Args:
      mixing_weights: the mixing matrix W of a graph, doubly stochastic.
      order: `combine_then_adapt`, `semi_adapt_then_combine` or `adapt_then_combine`.
      name: of the method, for messages.

    >>> tracking().num_models, tracking(order="adapt_then_combine").num_models
    (2, 1)
    """
    if order not in get_args(Order):
        raise InputError(
            f"Need an order among {', '.join(get_args(Order))}, got {order}."
        )
    mix_first = order == "combine_then_adapt"

    def send_fn(key: Key, peers: Peers, step: LocalStep, state: PyTree) -> Outgoing:
        del key
        message = with_params(step, step.before["params"])
        if not mix_first:
            params = jax.tree.map(jnp.add, step.after["params"], state)
            message = with_params(step, params)
        return Outgoing(message, message, is_peer(peers))

    def receive_fn(
        peers: Peers,
        arrived: Array | None,
        outgoing: Outgoing,
        step: LocalStep,
        state: PyTree,
        combine: Combine,
    ) -> tuple[PyTree, PyTree]:
        del arrived, outgoing
        update = updates_of(step)
        tracker = jax.tree.map(jnp.add, state, update)
        mixed = combine(peers, message=with_params(step, tracker))["params"]
        models = combine(peers)
        if mix_first:
            models["params"] = jax.tree.map(jnp.add, models["params"], tracker)
        return models, jax.tree.map(jnp.subtract, mixed, update)

    protocol = GossipProtocol(
        prepare_doubly_stochastic(mixing_weights, name),
        peer_ids,
        zero_params,
        send_fn,
        receive_fn,
        num_models=2,
        takes_losses=False,
        rule_refusal=f"Need D-PSGD for a robust rule, got {name}: its corrections "
        "assume a doubly stochastic matrix.",
        message_attack_refusal="Need a method that sends models and nothing else for "
        f"an attack on messages, got {name}, which also sends trackers: use D-PSGD, or "
        "an attack on data such as label_flip.",
        rescale=rescaled,
    )
    if order != "adapt_then_combine":
        return protocol
    return protocol._replace(
        init=_init_tracked,
        send=_send_twice,
        receive=_receive_twice,
        num_models=1,
        rescale=_rescale_tracked,
    )


def _init_tracked(message: PyTree) -> Tracked:
    size = jax.tree.leaves(message)[0].shape[0]
    return Tracked(zero_params(message), zero_params(message), jnp.ones(size, bool))


def _rescale_tracked(state: Tracked, factor: Array) -> Tracked:
    tracker, update = rescaled((state.tracker, state.update), factor)
    return state._replace(tracker=tracker, update=update)


def _send_twice(key: Key, peers: Peers, step: LocalStep, state: Tracked) -> Outgoing:
    """A message of the tracker, but for the first time, and one of the model."""
    del key
    num_messages = jnp.where(state.is_first[:, None], 1, 2)
    return Outgoing(step.after, step.after, jnp.where(is_peer(peers), num_messages, 0))


def _receive_twice(
    peers: Peers,
    arrived: Array | None,
    outgoing: Outgoing,
    step: LocalStep,
    state: Tracked,
    combine: Combine,
) -> tuple[PyTree, Tracked]:
    del arrived, outgoing
    update, is_first = updates_of(step), state.is_first

    def if_first(first: Array, later: Array) -> Array:
        return jnp.where(
            is_first.reshape((-1,) + (1,) * (first.ndim - 1)), first, later
        )

    tracker = jax.tree.map(
        lambda s, u, old: s + (u - old), state.tracker, update, state.update
    )
    mixed = combine(peers, message=with_params(step, tracker))["params"]
    tracker = jax.tree.map(if_first, update, mixed)
    params = jax.tree.map(jnp.add, step.before["params"], tracker)
    models = combine(peers, message=with_params(step, params))
    return models, Tracked(tracker, update, jnp.zeros_like(is_first))
