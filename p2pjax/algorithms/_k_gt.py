"""K-GT: gradient tracking with local steps, so that different data leave no bias.

Liu, Lin, Koloskova, Stich (2024), "Decentralized gradient tracking with local steps",
https://arxiv.org/abs/2301.01313.
"""

from typing import Any, Unpack

import jax
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
    remembers_nothing,
)
from p2pjax.engines.stepwise import gossip
from p2pjax.exchange.mixing import is_peer
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task
from p2pjax.training.gradient_learners import (
    Corrected,
    mean_gradient,
    with_correction,
    with_new_correction,
)
from p2pjax.training.learner import Learner, as_learner
from p2pjax.training.local_updates import epochs
from p2pjax.types import Algorithm, Array, InputError, Key, Peers, PyTree

REFUSAL = (
    "Need D-PSGD for {}, got K-GT: what agents track is a second message, of which the "
    "agents' corrections must go on to sum to zero."
)


def k_gt(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    communication_step: float = 1.0,
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """Gradient tracking with local steps (Liu et al. 2024).

    https://arxiv.org/abs/2301.01313. Each agent adds a correction c to its gradients,
    0 at first. With z the mean of its corrected gradients since the last exchange and y
    its model, `c <- c - z + W z` and `x <- W (x + communication_step * (y - x))`. A
    message is two models. Corrections are kept in units of gradients, so they are right
    whatever a schedule makes of the learning rate. Messages may not be lost.

    Args:
      task: what each agent learns.
      optimizer: of optax, SGD in the paper; it steps along corrected gradients.
      graph: who receives from whom, `[N, D]`, undirected: see `graphs.as_graph`.
      batch_size: B.
      communication_step: the paper's eta_s, more than 0: how much of what was learned
        is kept.
      mixing_weights: the mixing matrix of a graph, doubly stochastic.
      **options: see `GossipOptions`; `local_updates` is `epochs(1)` if not given.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.k_gt(task, optax.sgd(0.1), pj.graphs.ring(4), batch_size=32)
      >>> method.round_is
      '1 local epoch of each agent and one exchange'
    """
    settled: Any = {"local_updates": epochs(1), **options}
    return gossip(
        task,
        with_correction(as_learner(task, optimizer)),
        k_gt_protocol(communication_step, mixing_weights),
        graph,
        batch_size=batch_size,
        name="K-GT",
        **settled,
    )


def k_gt_protocol(
    communication_step: float = 1.0,
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
) -> GossipProtocol:
    """The exchange of `k_gt`, for learners of `gradient_learners.with_correction`.

    Args:
      communication_step: how much of what was learned is kept.
      mixing_weights: the mixing matrix of a graph, doubly stochastic.

    Example:
      >>> import p2pjax as pj
      >>> pj.protocols.k_gt().num_models  # a model and a gradient
      2
    """
    if not 0 < communication_step < float("inf"):
        raise InputError(
            f"Need a communication_step of more than 0, got {communication_step}."
        )

    def send_fn(key: Key, peers: Peers, step: LocalStep, state: PyTree) -> Outgoing:
        del key, state
        params = jax.tree.map(
            lambda x, y: x + communication_step * (y - x),
            step.before["params"],
            step.after["params"],
        )
        message = {**step.after, "params": params}
        return Outgoing(message, message, is_peer(peers))

    def receive_fn(
        peers: Peers,
        arrived: Array | None,
        outgoing: Outgoing,
        step: LocalStep,
        state: PyTree,
        combine: Combine,
    ) -> tuple[PyTree, PyTree]:
        del arrived, outgoing, state
        tracked = mean_gradient(step.opt_state)
        mixed = combine(peers, message={**step.after, "params": tracked})["params"]
        correction = jax.tree.map(
            lambda c, z, wz: c - z + wz, step.opt_state.correction, tracked, mixed
        )
        return combine(peers), correction

    def adjust_fn(opt_state: Corrected, correction: PyTree) -> tuple[Corrected, PyTree]:
        return with_new_correction(opt_state, correction), ()

    return GossipProtocol(
        prepare_weights(mixing_weights),
        peer_ids,
        remembers_nothing,
        send_fn,
        receive_fn,
        num_models=2,
        takes_losses=False,
        rule_refusal=REFUSAL.format("a robust rule"),
        message_attack_refusal=REFUSAL.format("an attack on messages"),
        adjust_learners=adjust_fn,
    )
