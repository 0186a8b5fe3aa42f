"""GoSGD: now and then an agent sends its model and half of its weight.

Blot et al. (2016), "Gossip training for deep learning", as Sajina (2025) runs it: an
agent that sends, sends to all its receivers one after the other.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.engines.stepwise import CommunicationResult, ExchangeFn, GossipProtocol
from p2pjax.exchange.push_sum import WEIGHT_FLOOR, push_sum_step
from p2pjax.graphs import topology
from p2pjax.graphs.topology import Topology
from p2pjax.types import Array, InputError, Key, Peers, PyTree


class TwoSidedGraph(NamedTuple):
    """A graph seen from both ends; `[G, ...]` for a sequence of graphs."""

    graph: Topology  # [N, D]: whom everybody receives from
    place: Array  # [N, D]: the receiver's place in its sender's list of receivers
    has_receiver: Array  # [N, L]: the lists, in increasing order, are of these lengths


def gosgd_protocol(
    probability: float = 0.1, *, per_edge: bool = False
) -> GossipProtocol:
    """After each step an agent may send to all its receivers in increasing order.

    Before each send it halves its weight and attaches the halved value; a receiver
    takes the weighted mean. All agents send the models they have after their step. The
    weights (memory, `[N]`, 1 / N at first) sum to one, and so the weighted mean of all
    models does not change.

    Args:
      probability: that an agent sends after a step.
      per_edge: whether each receiver is decided on its own, instead of all together;
        the mean number of messages is the same.
    """
    if not 0 <= probability <= 1:
        raise InputError(f"Need a probability from 0 to 1, got {probability}.")

    def init_fn(message: PyTree) -> Array:
        size = jax.tree.leaves(message)[0].shape[0]
        return jnp.full(size, 1 / size, jnp.float32)

    def communicate_fn(
        key: Key,
        wires: TwoSidedGraph,
        before: PyTree,
        after: PyTree,
        weight: Array,
        exchange: ExchangeFn,
    ) -> CommunicationResult:
        del before
        size, longest = wires.has_receiver.shape
        draws = jax.random.bernoulli(
            key, probability, (size, longest if per_edge else 1)
        )
        sends = wires.has_receiver & draws
        means, weight = push_sum_step(halving(wires, sends), weight)
        message = exchange(after, after, means)
        weight = jnp.maximum(weight / weight.sum(), WEIGHT_FLOOR)
        arrives = wires.graph.mask & sends[wires.graph.neighbor, wires.place]
        return CommunicationResult(message, weight, arrives, arrives)

    return GossipProtocol(
        prepare_graph,
        lambda wires: jnp.asarray(wires.graph.neighbor),
        init_fn,
        communicate_fn,
    )


def prepare_graph(graphs: Topology) -> TwoSidedGraph:
    """Both ends of a sequence of graphs `[G, N, D]`, on the host."""
    lists = topology.receivers(graphs)  # [G, N, L]
    place = np.zeros(graphs.mask.shape, np.int32)
    for number, (graph, out) in enumerate(
        zip(topology.unstack(graphs), topology.unstack(lists), strict=True)
    ):
        receiver, slot = np.nonzero(graph.mask)
        is_place = out.neighbor[graph.neighbor[receiver, slot]] == receiver[:, None]
        place[number, receiver, slot] = is_place.argmax(1)
    return TwoSidedGraph(graphs, place, lists.mask)


def halving(wires: TwoSidedGraph, sends: Array) -> Peers:
    """The column-stochastic matrix of all halvings of one step.

    The q-th receiver of an agent gets 2^-q, the agent keeps what the last one got.

    Args:
      wires: of one graph.
      sends: `[N, L]`, which of its receivers each agent sends to.
    """
    share = jnp.exp2(-jnp.cumsum(sends.astype(jnp.float32), axis=1))  # [N, L]
    sender = wires.graph.neighbor
    arrives = wires.graph.mask & sends[sender, wires.place]
    own = jnp.arange(sends.shape[0], dtype=jnp.int32)[:, None]
    ids = jnp.where(arrives, sender, own)
    weight = jnp.where(arrives, share[sender, wires.place], 0)
    return Peers(
        jnp.concatenate([own, ids], axis=1),
        jnp.concatenate([share[:, -1:], weight], axis=1),
    )
