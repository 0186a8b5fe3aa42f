"""GoSGD: now and then an agent sends its model and half of its weight.

Blot et al. (2016), "Gossip training for deep learning",
https://arxiv.org/abs/1611.09726, as Sajina (2025) runs it: an agent that sends, sends
to all its receivers one after the other.
"""

from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.options import GossipOptions
from p2pjax.engines.protocol import Combine, GossipProtocol, LocalStep, Outgoing
from p2pjax.engines.stepwise import gossip
from p2pjax.exchange.channel import without_lost
from p2pjax.exchange.compression import FLOAT_BITS
from p2pjax.exchange.push_sum import (
    WEIGHT_FLOOR,
    push_sum_refusal,
    push_sum_step,
)
from p2pjax.graphs import topology
from p2pjax.graphs.conversion import GraphLike
from p2pjax.graphs.topology import Topology
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm, Array, InputError, Key, Peers, PyTree


def gosgd(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    probability: float = 0.1,
    per_edge: bool = False,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Gossip SGD (Blot et al. 2016, https://arxiv.org/abs/1611.09726).

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      probability: that an agent sends after local training.
      per_edge: whether each receiver is decided on its own.
      **options: see `GossipOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.gosgd(task, optax.sgd(0.1), pj.graphs.ring(4), batch_size=32)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    protocol = gosgd_protocol(probability, per_edge=per_edge)
    return gossip(
        task,
        optimizer,
        protocol,
        graph,
        batch_size=batch_size,
        name="GoSGD",
        **options,
    )


class TwoSidedGraph(NamedTuple):
    """A graph seen from both ends; `[G, ...]` for a sequence of graphs."""

    graph: Topology  # [N, D]: whom each agent receives from
    place: Array  # [N, D]: the receiver's place in its sender's list of receivers
    has_receiver: Array  # [N, L]: the lists, in increasing order, are of these lengths


def gosgd_protocol(
    probability: float = 0.1, *, per_edge: bool = False
) -> GossipProtocol:
    """After each step an agent may send to all its receivers in increasing order.

    Before each send it halves its weight and attaches the halved value; a receiver
    takes the weighted mean. All agents send the models they have after their step. The
    weights (the protocol's state, `[N]`, 1 / N at first) sum to one, and so the
    weighted mean of all models does not change.

    Args:
      probability: that an agent sends after a step.
      per_edge: whether each receiver is decided on its own, instead of all together;
        the mean number of messages is the same.

    Example:
      >>> gosgd_protocol().init({"params": jnp.zeros((4, 3))}).tolist()  # weights
      [0.25, 0.25, 0.25, 0.25]
    """
    if not 0 <= probability <= 1:
        raise InputError(f"Need a probability from 0 to 1, got {probability}.")

    def init_fn(message: PyTree) -> Array:
        size = jax.tree.leaves(message)[0].shape[0]
        return jnp.full(size, 1 / size, float)

    def send_fn(
        key: Key, graph: TwoSidedGraph, step: LocalStep, weight: Array
    ) -> Outgoing:
        del weight
        size, longest = graph.has_receiver.shape
        draws = jax.random.bernoulli(
            key, probability, (size, longest if per_edge else 1)
        )
        sends = graph.has_receiver & draws
        sent = graph.graph.mask & sends[graph.graph.neighbor, graph.place]
        return Outgoing(step.after, step.after, sent, sends)

    def receive_fn(
        graph: TwoSidedGraph,
        arrived: Array | None,
        outgoing: Outgoing,
        step: LocalStep,
        weight: Array,
        combine: Combine,
    ) -> tuple[PyTree, Array]:
        del step
        peers = halving(graph, outgoing.route)
        if arrived is not None:  # slot 0 is the agent itself
            own = jnp.ones((len(weight), 1), bool)
            peers = without_lost(peers, jnp.concatenate([own, arrived], axis=1))
        means, weight = push_sum_step(peers, weight)
        models = combine(means)
        return models, jnp.maximum(weight / weight.sum(), WEIGHT_FLOOR)

    return GossipProtocol(
        prepare_graph,
        lambda graph: jnp.asarray(graph.graph.neighbor),
        init_fn,
        send_fn,
        receive_fn,
        needs_before=False,
        formats=("half",),
        rule_refusal=push_sum_refusal("GoSGD"),
        weight_bits=FLOAT_BITS,
    )


def prepare_graph(graphs: Topology | Peers) -> TwoSidedGraph:
    """Both ends of a sequence of graphs `[G, N, D]`, on the host."""
    if isinstance(graphs, Peers):
        raise InputError(
            "GoSGD halves weights of its own, so it needs a graph without weights, got "
            "a mixing matrix."
        )
    lists = topology.receivers(graphs)  # [G, N, L]
    place = np.zeros(graphs.mask.shape, np.int32)
    for number, (graph, out) in enumerate(
        zip(topology.unstack(graphs), topology.unstack(lists), strict=True)
    ):
        receiver, slot = np.nonzero(graph.mask)
        is_place = out.neighbor[graph.neighbor[receiver, slot]] == receiver[:, None]
        place[number, receiver, slot] = is_place.argmax(1)
    return TwoSidedGraph(graphs, place, lists.mask)


def halving(graph: TwoSidedGraph, sends: Array) -> Peers:
    """The column-stochastic matrix of all halvings of one step.

    The q-th receiver of an agent gets 2^-q, the agent keeps what the last one got.

    Args:
      graph: one graph.
      sends: `[N, L]`, which of its receivers each agent sends to.
    """
    share = jnp.exp2(-jnp.cumsum(sends.astype(float), axis=1))  # [N, L]
    sender = graph.graph.neighbor
    arrives = graph.graph.mask & sends[sender, graph.place]
    own = jnp.arange(sends.shape[0], dtype=jnp.int32)[:, None]
    ids = jnp.where(arrives, sender, own)
    weight = jnp.where(arrives, share[sender, graph.place], 0)
    return Peers(
        jnp.concatenate([own, ids], axis=1),
        jnp.concatenate([share[:, -1:], weight], axis=1),
    )
