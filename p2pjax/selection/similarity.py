"""How alike two agents are: measures for the selections that compare peers.

By the loss of a model on the other's data; by the directions in which models moved
(Li et al. 2022, "Towards effective clustered federated learning: a peer-to-peer
framework with adaptive neighbor matching"); or by what models say about a few common
examples, which is much less to send than a model.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.graphs.topology import Topology
from p2pjax.selection.base import PeerView
from p2pjax.types import Array, InputError, PyTree

LOSS_FLOOR = 1e-6  # so that a perfect model is not infinitely similar


class Similarity(NamedTuple):
    """A measure; the higher, the more alike."""

    init: Callable[[PeerView], PyTree]  # what it remembers of the start
    # (memory, view, who compares with whom) -> [N, C]; -inf where it cannot say
    measure: Callable[[PyTree, PeerView, Topology], Array]
    payload: Callable[[PeerView], float]  # what a peer sends for it, in models
    sends_model: bool  # whether the peer's model is part of that


def negative_loss() -> Similarity:
    """Minus the mean loss of the peer's model on the agent's training data.

    Example:
      >>> import p2pjax as pj
      >>> similarity = pj.selection.negative_loss()
      >>> similarity.sends_model  # a peer sends its model, which can be averaged too
      True
    """

    def measure_fn(memory: PyTree, view: PeerView, table: Topology) -> Array:
        del memory
        return -view.cross_loss(table, view.train)

    return Similarity(lambda view: (), measure_fn, lambda view: 1.0, True)


def inverse_loss() -> Similarity:
    """One over the mean loss of the peer's model on the agent's training data.

    Example:
      >>> import p2pjax as pj
      >>> pj.selection.inverse_loss().sends_model
      True
    """

    def measure_fn(memory: PyTree, view: PeerView, table: Topology) -> Array:
        del memory
        losses = view.cross_loss(table, view.train)
        inverse = 1 / jnp.maximum(losses, LOSS_FLOOR)
        return jnp.where(jnp.isinf(losses), -jnp.inf, inverse)

    return Similarity(lambda view: (), measure_fn, lambda view: 1.0, True)


def update_cosine(share: float = 0.5) -> Similarity:
    """Cosines of what two agents learned: in this round, and since the start.

    Li et al. (2022), https://arxiv.org/abs/2203.12285.
    Statistics such as those of batch norm do not count. A peer sends its model and
    what it learned in this round; with the start, which all know, that is all.

    Args:
      share: weight of this round; the rest is for everything since the start.

    Example:
      >>> import p2pjax as pj
      >>> pj.selection.update_cosine().payload(None)  # models: its own, and its update
      2.0
    """
    if not 0 <= share <= 1:
        raise InputError(f"Need a share of this round from 0 to 1, got {share}.")

    def init_fn(view: PeerView) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[:1], view.params)

    def measure_fn(start: PyTree, view: PeerView, table: Topology) -> Array:
        table = view.heard(table)
        now, ever = view.cosines(view.before, table), view.cosines(start, table)
        cosine = share * now + (1 - share) * ever
        return jnp.where(table.mask & ~jnp.isnan(cosine), cosine, -jnp.inf)

    return Similarity(init_fn, measure_fn, lambda view: 2.0, True)


def agreement() -> Similarity:
    """How much two models' predictions for the probe overlap, from 0 to 1.

    The Bhattacharyya coefficient of the predicted distributions, `sum_y sqrt(p q)`,
    averaged over the examples of `Probe`. Peers send predictions; models only to be
    averaged.

    It tells models apart that were trained alone. Models that have been averaged across
    clusters say much the same: on rotated digits, 16 agents, it then hardly finds out
    who sees them turned, where losses and updates do.

    Example:
      >>> import p2pjax as pj
      >>> pj.selection.agreement().sends_model  # predictions are all that is sent
      False
    """

    def roots(view: PeerView) -> Array:
        outputs = view.predictions()  # [N, Q, k]
        roots = jnp.sqrt(jnp.maximum(outputs, 0)) / outputs.shape[1] ** 0.5
        return roots.reshape(roots.shape[0], -1)

    def measure_fn(memory: PyTree, view: PeerView, table: Topology) -> Array:
        del memory
        root, table = roots(view), view.heard(table)
        slots = jnp.asarray(table.neighbor).T
        overlap = jax.lax.map(lambda peer: (root * root[peer]).sum(1), slots).T
        return jnp.where(table.mask & ~jnp.isnan(overlap), overlap, -jnp.inf)

    def payload_fn(view: PeerView) -> float:
        _, *shape = jax.eval_shape(view.predictions).shape
        return shape[0] * shape[1] / view.model_size

    return Similarity(lambda view: (), measure_fn, payload_fn, False)
