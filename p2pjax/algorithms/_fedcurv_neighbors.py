"""FedCurv without a server: agents are penalised by their neighbours' curvature.

After Shoham et al. (2019), https://arxiv.org/abs/1910.07796; see `_fedcurv`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.assembly import assemble
from p2pjax.engines.curvature_penalty import (
    FedCurvState,
    communicate,
    initial_state,
    penalised_training,
    trained_and_averaged,
)
from p2pjax.exchange import mixing, shared
from p2pjax.exchange.channel import PERFECT, Channel, check_channel, lost_to_self
from p2pjax.exchange.mixing import is_peer
from p2pjax.exchange.pipeline import make_exchange
from p2pjax.exchange.shared import Local, message_size, sharing_plan
from p2pjax.graphs import mixing_matrices, schedule
from p2pjax.graphs.conversion import GraphLike, as_topology
from p2pjax.graphs.topology import Topology
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.curvature import Curvature, fisher
from p2pjax.training.learner import (
    Learner,
    as_learner,
)
from p2pjax.training.local_updates import LocalUpdates, epochs
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    Key,
    Links,
    num_agents,
)


def fedcurv_neighbors(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    graph: GraphLike,
    *,
    batch_size: int,
    penalty_weight: float,
    curvature: Curvature | None = None,
    local_updates: LocalUpdates = epochs(1),
    rewire_every: int | None = None,
    report_trained: bool = False,
    local_patterns: Local = shared.FULL,
    channel: Channel = PERFECT,
    agent_loop: int = AUTO,
) -> Algorithm:
    """FedCurv without a server: agents hear, and are penalised by, their neighbours.

    After Shoham et al. (2019), https://arxiv.org/abs/1910.07796. Models are averaged by
    the plain mean of what arrives and one's own. In a graph that changes, the penalty
    is of those who send now, with what they had a round ago.

    Args:
      task: what each agent learns.
      optimizer: of optax; each agent has its own state of it.
      graph: who receives from whom, `[N, D]`: see `graphs.as_graph`.
      batch_size: B.
      penalty_weight: 0 or more; 0 computes and sends no curvature.
      curvature: `curvature.fisher(task)` if None, or `curvature.hessian(task)`.
      local_updates: in a round, `epochs(e)` or `steps(k)`.
      rewire_every: rounds after which the next graph comes; None keeps the first.
      report_trained: report models as they are sent, not their means.
      local_patterns: leaves that are not sent, see `exchange.shared`; they are not
        penalised.
      channel: what happens to messages on their way.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> ring = pj.graphs.ring(4)
      >>> method = pj.fedcurv_neighbors(
      ...     task, optax.sgd(0.1), ring, batch_size=32, penalty_weight=1.0)
      >>> method.round_is
      '1 local epoch of each agent and one exchange'
    """
    check_channel(channel, "FedCurv")
    graph = as_topology(graph)
    schedule.check_rewiring(graph, rewire_every)
    local = shared.local_paths(task, local_patterns)
    learner = as_learner(task, optimizer)
    train = penalised_training(
        learner,
        fisher(task) if curvature is None else curvature,
        penalty_weight,
        batch_size,
        local_updates,
        local,
        agent_loop,
    )

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> Topology:
        graphs, of_round = schedule.graphs_of_rounds(
            rng, graph, rewire_every, num_agents(data), num_rounds
        )
        return jax.tree.map(lambda leaf: np.asarray(leaf)[of_round], graphs)

    def round_fn(
        key: Key, t: Array, now: Topology, state: FedCurvState, data: FederatedData
    ) -> tuple[FedCurvState, Info]:
        plan = sharing_plan(state.variables, local)
        exchange = make_exchange(plan, channel)
        peers = mixing_matrices.uniform_receive(now)
        sent = is_peer(peers)  # [N, 1 + D]
        arrived = exchange.arrive(jax.random.fold_in(key, 1), t, sent)
        heard = now
        if arrived is not sent:
            peers = lost_to_self(peers, arrived)
            heard = now._replace(mask=jnp.asarray(now.mask) & arrived[:, 1:])
        all_agents = jnp.ones(num_agents(data), bool)
        neighbors = mixing.sum_of_neighbors(heard)
        state, loss, work = train(key, t, all_agents, state, data, neighbors)
        state = communicate(
            key, t, state, all_agents, lambda owner: peers, local, channel
        )
        used = now.mask.astype(jnp.float32)
        arrived = heard.mask.astype(jnp.float32)
        sent = jnp.zeros_like(loss).at[now.neighbor].add(used)
        info = Info(
            loss,
            sent,
            arrived.sum(1),
            sent * ((2 if penalty_weight else 1) * message_size(plan)),
            links=Links(jnp.asarray(now.neighbor), arrived),
            examples=work.examples,
            steps=work.steps,
        )
        return state, info

    return assemble(
        task,
        initial_state(task, learner, penalty_weight, local, channel),
        plan_fn,
        round_fn,
        trained_and_averaged(report_trained),
        round_is=f"{local_updates.described} of each agent and one exchange",
        agent_loop=agent_loop,
    )
