"""Quasi-global momentum: momentum along what a model did, mixing included.

Lin, Karimireddy, Stich, Jaggi (2021), "Quasi-global momentum: accelerating
decentralized deep learning on heterogeneous data", https://arxiv.org/abs/2102.04761.
"""

from typing import Unpack

import jax
import optax

from p2pjax.engines.options import GossipOptions
from p2pjax.engines.protocol import (
    Combine,
    GossipProtocol,
    LocalStep,
    MixingWeights,
    Outgoing,
    check_momentum,
    peer_ids,
    prepare_weights,
    rescaled,
    updates_of,
    with_params,
    zero_params,
)
from p2pjax.engines.stepwise import gossip
from p2pjax.exchange.channel_checks import MODELS, SPARSE
from p2pjax.exchange.mixing import is_peer
from p2pjax.graphs import mixing_matrices
from p2pjax.graphs.conversion import GraphLike
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner, as_learner
from p2pjax.training.rates import check_plain
from p2pjax.types import Algorithm, Array, Key, Peers, PyTree


def qg_dsgdm(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    momentum: float = 0.9,
    decay: float | None = None,
    nesterov: bool = False,
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    **options: Unpack[GossipOptions],
) -> Algorithm:
    """D-PSGD with quasi-global momentum (Lin et al. 2021).

    https://arxiv.org/abs/2102.04761. Momentum of one's own gradients (`dpsgd` with
    `optax.sgd(rate, momentum)`) makes agents with different data disagree more; this
    one does not. With more local steps it counts once, after them. It follows the
    learning rate where `optax.inject_hyperparams` keeps it in the optimizer's state,
    else the rate is constant; schedules hidden in the optimizer are refused.

    Args:
      task: what each agent learns.
      optimizer: of optax, SGD without momentum of its own.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      momentum: of a step, from 0, which is D-PSGD, to less than 1.
      decay: of what is remembered of past steps, the paper's mu; `momentum` if None.
      nesterov: look ahead, QG-DSGDm-N.
      mixing_weights: the mixing matrix of a graph, doubly stochastic to keep the mean.
      **options: see `GossipOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.qg_dsgdm(task, optax.sgd(0.1), pj.graphs.ring(4), batch_size=32)
      >>> method.round_is
      'a network epoch: ..., with an exchange after 1 local step of each'
    """
    check_plain(task, as_learner(task, optimizer), "QG-DSGDm")
    return gossip(
        task,
        optimizer,
        qg_dsgdm_protocol(mixing_weights, momentum, decay, nesterov=nesterov),
        graph,
        batch_size=batch_size,
        name="QG-DSGDm",
        **options,
    )


def qg_dsgdm_protocol(
    mixing_weights: MixingWeights = mixing_matrices.metropolis_hastings,
    momentum: float = 0.9,
    decay: float | None = None,
    *,
    nesterov: bool = False,
) -> GossipProtocol:
    """`x' = W (x + u + b M)`, `M' = d M + (1 - d) (x' - x)`, M being 0 at first.

    With Nesterov's `x' = W (x + (1 + b) u + b**2 M)`. M is minus the learning rate
    times the paper's momentum. Batch-norm statistics are mixed plainly.

    Args:
      mixing_weights: the mixing matrix W of a graph.
      momentum: b.
      decay: d; `momentum` if None.
      nesterov: look ahead.

    Example:
      >>> qg_dsgdm_protocol().num_models  # momentum does not travel
      1
    """
    decay = momentum if decay is None else decay
    check_momentum(momentum, "momentum", "QG-DSGDm")
    check_momentum(decay, "decay", "QG-DSGDm")
    ahead, past = (1 + momentum, momentum**2) if nesterov else (1.0, momentum)

    def send_fn(key: Key, peers: Peers, step: LocalStep, memory: PyTree) -> Outgoing:
        del key
        params = jax.tree.map(
            lambda x, u, m: x + (ahead * u + past * m),
            step.before["params"],
            updates_of(step),
            memory,
        )
        message = with_params(step, params)
        return Outgoing(message, message, is_peer(peers))

    def receive_fn(
        peers: Peers,
        arrived: Array | None,
        outgoing: Outgoing,
        step: LocalStep,
        memory: PyTree,
        combine: Combine,
    ) -> tuple[PyTree, PyTree]:
        del outgoing
        models = combine(peers, arrived)
        return models, jax.tree.map(
            lambda m, new, old: decay * m + (1 - decay) * (new - old),
            memory,
            models["params"],
            step.before["params"],
        )

    return GossipProtocol(
        prepare_weights(mixing_weights),
        peer_ids,
        zero_params,
        send_fn,
        receive_fn,
        formats=MODELS + SPARSE,
        takes_noise=True,
        takes_stale=True,
        rule_refusal="",
        rescale=rescaled,
    )
