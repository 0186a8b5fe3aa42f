"""Stochastic gradient push: D-PSGD for directed graphs, corrected by push-sum.

Assran et al. (2019), "Stochastic gradient push for distributed deep learning",
https://arxiv.org/abs/1811.10792. Agents split what they send, so nothing is counted
twice; a scalar that travels along tells every receiver how much has arrived.
"""

from typing import Unpack

import jax
import jax.numpy as jnp
import optax

from p2pjax.engines.options import GossipOptions
from p2pjax.engines.protocol import (
    Combine,
    GossipProtocol,
    LocalStep,
    MixingWeights,
    Outgoing,
    peer_ids,
    prepare_weights,
)
from p2pjax.engines.stepwise import gossip
from p2pjax.exchange.channel import without_lost
from p2pjax.exchange.compression import FLOAT_BITS
from p2pjax.exchange.mixing import is_peer
from p2pjax.exchange.push_sum import push_sum_refusal, push_sum_step
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm, Array, Key, Peers, PyTree

LOSS_WARNING = (
    "SGP loses weight with every lost message, and its steps grow as one over the "
    "weight left, until training diverges: lower the learning rate as the weights "
    "(Info.weight) fall, stop in time, or use dpsgd, which counts the receiver's own "
    "model for a lost one."
)


def sgp(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    mixing_weights: MixingWeights = mixing_matrices.uniform_send,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Stochastic gradient push (Assran et al. 2019, https://arxiv.org/abs/1811.10792).

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who receives from whom, `[N, D]`, may be directed: see `graphs.as_graph`.
      batch_size: B.
      mixing_weights: the column-stochastic matrix of a graph.
      **options: see `GossipOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> ring = pj.graphs.ring(4, directed=True)
      >>> method = pj.sgp(task, optax.sgd(0.1), ring, batch_size=32)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    return gossip(
        task,
        optimizer,
        sgp_protocol(mixing_weights),
        graph,
        batch_size=batch_size,
        name="SGP",
        **options,
    )


def sgp_protocol(
    mixing_weights: MixingWeights = mixing_matrices.uniform_send,
) -> GossipProtocol:
    """`x <- A (x + update(z))`, `w <- A w`, `z = x / w`.

    The state holds the de-biased models z, which are trained and evaluated, and the
    weights w (the protocol's state, `[N]`, 1 at first); `x = w z` exists on the way
    only. Batch-norm statistics are mixed as de-biased values. The weights sum to N;
    what is lost takes its part of the sum along, which shows how much has gone.

    Args:
      mixing_weights: the column-stochastic matrix A of a graph.

    Example:
      >>> sgp_protocol().init({"params": jnp.zeros((4, 3))}).tolist()  # weights
      [1.0, 1.0, 1.0, 1.0]
    """

    def init_fn(message: PyTree) -> Array:
        return jnp.ones(jax.tree.leaves(message)[0].shape[0])

    def send_fn(key: Key, peers: Peers, step: LocalStep, weight: Array) -> Outgoing:
        del key

        def biased(z: Array, stepped: Array) -> Array:
            """(x + update) / w, which is what push-sum averages."""
            own = weight.astype(z.dtype).reshape((-1,) + (1,) * (z.ndim - 1))
            return z + (stepped - z) / own

        params = jax.tree.map(biased, step.before["params"], step.after["params"])
        message = {**step.after, "params": params}
        return Outgoing(message, step.after, is_peer(peers))

    def receive_fn(
        peers: Peers,
        arrived: Array | None,
        outgoing: Outgoing,
        step: LocalStep,
        weight: Array,
        combine: Combine,
    ) -> tuple[PyTree, Array]:
        del outgoing, step
        means, weight = push_sum_step(without_lost(peers, arrived), weight)
        return combine(means), weight

    return GossipProtocol(
        prepare_weights(mixing_weights, push_sum=True),
        peer_ids,
        init_fn,
        send_fn,
        receive_fn,
        weight=lambda weight: weight,
        loss_warning=LOSS_WARNING,
        formats=("half",),
        rule_refusal=push_sum_refusal("SGP"),
        weight_bits=FLOAT_BITS,
    )
