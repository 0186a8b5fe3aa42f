"""EXTRA: exact first-order decentralized optimization.

Shi, Ling, Wu, Yin (2015), "EXTRA: an exact first-order algorithm for decentralized
consensus optimization", https://arxiv.org/abs/1404.6264.
"""

from typing import Unpack

import jax
import optax

from p2pjax.engines.options import GossipOptions
from p2pjax.engines.prepared_matrices import prepare_symmetric
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
from p2pjax.engines.stepwise import gossip
from p2pjax.exchange.mixing import is_peer
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm, Array, Key, Peers, PyTree


def extra(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """EXTRA (Shi et al. 2015, https://arxiv.org/abs/1404.6264).

    Agents agree on a minimum of the mean loss with full gradients, one local step and
    a constant rate. They send models before the step, which therefore need not wait
    for it. Lost messages are refused; its theory needs one graph that stays. What
    agents remember follows the learning rate where `optax.inject_hyperparams` keeps it
    in the optimizer's state, else it is constant; hidden schedules are refused.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who receives from whom, `[N, D]`, undirected: see `graphs.as_graph`.
      batch_size: B.
      mixing_weights: the mixing matrix of a graph, symmetric and doubly stochastic.
      **options: see `GossipOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.extra(task, optax.sgd(0.1), pj.graphs.ring(4), batch_size=32)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    return gossip(
        task,
        optimizer,
        extra_protocol(mixing_weights),
        graph,
        batch_size=batch_size,
        name="EXTRA",
        **options,
    )


def extra_protocol(
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
) -> GossipProtocol:
    """`x' = W x + u + c`, `c' = c + (W x - x) / 2`, with the updates u of the learner.

    That is `x' = x + W x - (I + W) / 2 x_old + u - u_old`. The correction c is 0 at
    first, in units of the learning rate, and sums to 0 over agents. Batch-norm
    statistics are mixed plainly, after the step.

    Args:
      mixing_weights: the mixing matrix W of a graph, symmetric and doubly stochastic.

    Example:
      >>> extra_protocol().takes_losses
      False
    """

    def send_fn(key: Key, peers: Peers, step: LocalStep, state: PyTree) -> Outgoing:
        del key, state
        message = with_params(step, step.before["params"])
        return Outgoing(message, message, is_peer(peers))

    def receive_fn(
        peers: Peers,
        arrived: Array | None,
        outgoing: Outgoing,
        step: LocalStep,
        correction: PyTree,
        combine: Combine,
    ) -> tuple[PyTree, PyTree]:
        del arrived, outgoing
        models, before = combine(peers), step.before["params"]
        mixed, update = models["params"], updates_of(step)
        models["params"] = jax.tree.map(
            lambda wx, u, c: wx + (u + c), mixed, update, correction
        )
        return models, jax.tree.map(
            lambda c, wx, x: c + (wx - x) / 2, correction, mixed, before
        )

    return GossipProtocol(
        prepare_symmetric(mixing_weights, "EXTRA"),
        peer_ids,
        zero_params,
        send_fn,
        receive_fn,
        takes_losses=False,
        rule_refusal="Need D-PSGD for a robust rule, got EXTRA: its correction assumes "
        "one fixed symmetric matrix.",
        update_attack_refusal="Need D-PSGD that adapts first for an attack on what was "
        "learned, got EXTRA: what it sends is the model before the step.",
        rescale=rescaled,
    )
