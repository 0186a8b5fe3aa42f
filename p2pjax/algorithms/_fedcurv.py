"""FedCurv: clients keep away from what the others' losses bend sharply along.

Shoham et al. (2019), "Overcoming forgetting in federated learning on non-IID data", as
in the slides of T. Leleu and C. Cerisara (2020). A client minimises

    L_s(w) + strength * sum over others j of (w - w_j)^T diag(h_j) (w - w_j)

with the models w_j and curvatures h_j that the others sent last; nobody sends examples.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.engines.server import check_clients, chosen_clients, server_info
from p2pjax.exchange import mixing, shared
from p2pjax.exchange.mixing import Combine
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.shared import message_size, sharing_plan, where_shared
from p2pjax.graphs import mixing_matrices, schedule
from p2pjax.graphs.topology import Graphs, Topology
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO, map_agents
from p2pjax.training.curvature import Curvature
from p2pjax.training.learner import Learner, Penalty, StepContext, check_penalty_weight
from p2pjax.training.local_training import identical_models, local_epochs
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    Key,
    Links,
    PyTree,
    Variables,
    num_agents,
)


class FedCurvState(NamedTuple):
    """Averaged models, what learners remember, and what everybody sent last."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    sent: PyTree  # parameters w before the averaging, leaves [N, ...]
    curvature: PyTree  # h at them, leaves [N, ...]; zeros before the first message


def fedcurv(
    task: Task,
    learner: Learner,
    curvature: Curvature,
    *,
    strength: float,
    batch_size: int,
    num_clients: int | None,
    num_epochs: int = 1,
    before_averaging: bool = False,
    local: Sequence[str] = shared.FULL,
    agent_loop: int = AUTO,
) -> Algorithm:
    """FedAvg whose clients are penalised; without strength it is FedAvg.

    A client sends its model and its curvature. It receives the mean model and the sums
    of all h and of all h w, and takes its own share off them. Of clients that were not
    chosen the server keeps what they sent last.

    Args:
      task: what every agent learns.
      learner: how.
      curvature: `curvature.fisher(task)` or `curvature.hessian(task)`.
      strength: of the penalty, 0 or more; 0 computes and sends no curvature.
      batch_size: B.
      num_clients: agents chosen in a round, uniformly and without replacement; None
        for all.
      num_epochs: passes of a chosen client over its data.
      before_averaging: evaluate the clients' own models, not the mean.
      local: leaves that are not sent, see `exchange`; they are not penalised.
      agent_loop: see `agent_loop.map_agents`. With VMAP the gradients of a chunk of
        examples are in memory for all agents at once.
    """
    check_penalty_weight(strength)
    check_clients(num_clients, num_epochs)
    train = _penalised_training(
        learner, curvature, strength, batch_size, num_epochs, local, agent_loop
    )

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> np.ndarray:
        return chosen_clients(rng, data, num_clients, num_rounds)

    def round_fn(
        key: Key, t: Array, is_chosen: Array, state: FedCurvState, data: FederatedData
    ) -> tuple[FedCurvState, Info]:
        state, plan, loss = train(key, t, is_chosen, state, data, mixing.sum_of_others)
        weight = jnp.where(is_chosen, data.train.size, 0).astype(jnp.float32)
        state = _mixed(state, plan, lambda owner: mixing.by_group_mean(owner, weight))
        parts_up, parts_down = (2, 3) if strength else (1, 1)
        size = message_size(plan)
        up, down = parts_up * size, parts_down * size
        return state, server_info(loss, is_chosen, up, down, weight * num_epochs)

    return Algorithm(_init(task, learner), plan_fn, round_fn, _models(before_averaging))


def fedcurv_neighbors(
    task: Task,
    learner: Learner,
    curvature: Curvature,
    graph: Graphs,
    *,
    strength: float,
    batch_size: int,
    num_epochs: int = 1,
    rewire_every: int | None = None,
    before_averaging: bool = False,
    local: Sequence[str] = shared.FULL,
    agent_loop: int = AUTO,
) -> Algorithm:
    """FedCurv without a server: everybody hears, and is penalised by, its neighbours.

    Models are averaged by the plain mean of what arrives and one's own. In a graph that
    changes, the penalty is of those who send now, with what they had a round ago.

    Args:
      task: what every agent learns.
      learner: how.
      curvature: `curvature.fisher(task)` or `curvature.hessian(task)`.
      graph: who receives from whom, see `gossip.gossip`.
      strength: of the penalty, 0 or more; 0 computes and sends no curvature.
      batch_size: B.
      num_epochs: passes over one's data in a round.
      rewire_every: rounds after which the next graph comes; None keeps the first.
      before_averaging: evaluate models as they are sent, not their means.
      local: leaves that are not sent, see `exchange`; they are not penalised.
      agent_loop: see `agent_loop.map_agents`.
    """
    check_penalty_weight(strength)
    check_clients(None, num_epochs)
    schedule.check_rewiring(graph, rewire_every)
    train = _penalised_training(
        learner, curvature, strength, batch_size, num_epochs, local, agent_loop
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
        everybody = jnp.ones(num_agents(data), bool)
        neighbors = mixing.sum_of_neighbors(now)
        state, plan, loss = train(key, t, everybody, state, data, neighbors)
        peers = mixing_matrices.uniform_receive(now)
        state = _mixed(state, plan, lambda owner: mixing.fastest_combine(peers, owner))
        arrived = now.mask.astype(jnp.float32)
        sent = jnp.zeros_like(loss).at[now.neighbor].add(arrived)
        payload = sent * ((2 if strength else 1) * message_size(plan))
        links = Links(jnp.asarray(now.neighbor), arrived)
        return state, Info(loss, sent, arrived.sum(1), payload, links=links)

    return Algorithm(_init(task, learner), plan_fn, round_fn, _models(before_averaging))


def penalty_of_others(
    strength: float, sent: PyTree, curvature: PyTree, plan: MixPlan, others: Combine
) -> Penalty:
    """What every agent's loss gains, of what the others sent; none in local leaves.

    Args:
      strength: of the penalty.
      sent: parameters w, leaves `[N, ...]`.
      curvature: h, leaves `[N, ...]`.
      plan: of `{"params": w}`.
      others: sums of the others' columns.
    """

    def summed(tree: PyTree) -> PyTree:
        total = mixing.mix({"params": tree}, plan, lambda owner: others)
        zeros = {"params": jax.tree.map(jnp.zeros_like, tree)}
        return where_shared(plan, total, zeros)["params"]

    bends = summed(curvature)
    pulls = summed(jax.tree.map(jnp.multiply, curvature, sent))
    return Penalty(
        # A total without one's own share may round to less than nothing.
        jax.tree.map(lambda u: 2 * strength * jnp.maximum(u, 0), bends),
        jax.tree.map(lambda v: 2 * strength * v, pulls),
    )


# (key, round number, who trains [N], state, world, sum over others)
#   -> (state with own models, plan of messages, losses [N])
_Train = Callable[
    [Key, Array, Array, FedCurvState, FederatedData, Combine],
    tuple[FedCurvState, MixPlan, Array],
]


def _penalised_training(
    learner: Learner,
    curvature: Curvature,
    strength: float,
    batch_size: int,
    num_epochs: int,
    local: Sequence[str],
    agent_loop: int,
) -> _Train:
    train_epochs = local_epochs(learner, batch_size, agent_loop)

    def measured(
        key: Key,
        is_chosen: Array,
        variables: Variables,
        old: PyTree,
        data: FederatedData,
    ) -> PyTree:
        """The chosen agents' curvature at their models; the others' last one."""

        def one_agent(old: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
            key, is_chosen, variables, examples, size = inputs
            new = curvature(key, variables, examples, jnp.where(is_chosen, size, 0))
            return _where(is_chosen, new, old), ()

        keys = jax.random.split(key, num_agents(data))
        inputs = (keys, is_chosen, variables, *data.train)
        return map_agents(one_agent, agent_loop)(old, inputs)[0]

    def train(
        key: Key,
        t: Array,
        is_chosen: Array,
        state: FedCurvState,
        data: FederatedData,
        others: Combine,
    ) -> tuple[FedCurvState, MixPlan, Array]:
        extra, key_train = StepContext(), key
        if strength:
            key_train, key_measure = jax.random.split(key)
            plan = sharing_plan(state.variables._replace(stats={}), local)
            penalty = penalty_of_others(
                strength, state.sent, state.curvature, plan, others
            )
            extra = StepContext(penalty=penalty)
        variables, opt_state, loss = train_epochs(
            key_train,
            t * num_epochs,
            is_chosen.astype(jnp.int32) * num_epochs,
            state.variables,
            state.opt_state,
            data.train,
            extra,
        )
        bends = state.curvature
        if strength:
            bends = measured(key_measure, is_chosen, variables, bends, data)
        sent = jax.vmap(_where)(is_chosen, variables.params, state.sent)
        state = FedCurvState(variables, opt_state, sent, bends)
        return state, sharing_plan(variables, local), loss

    return train


def _mixed(
    state: FedCurvState, plan: MixPlan, combine: Callable[..., Combine]
) -> FedCurvState:
    message = mixing.mix(shared.shared_leaves(state.variables), plan, combine)
    return state._replace(variables=shared.with_shared_leaves(state.variables, message))


def _init(task: Task, learner: Learner) -> Callable[[Key, FederatedData], FedCurvState]:
    def init_fn(key: Key, data: FederatedData) -> FedCurvState:
        variables = identical_models(key, task, num_agents(data))
        zeros = jax.tree.map(jnp.zeros_like, variables.params)
        opt_state = jax.vmap(learner.init)(variables)
        return FedCurvState(variables, opt_state, variables.params, zeros)

    return init_fn


def _models(before_averaging: bool) -> Callable[[FedCurvState], Variables]:
    def models_fn(state: FedCurvState) -> Variables:
        if before_averaging:
            return state.variables._replace(params=state.sent)
        return state.variables

    return models_fn


def _where(condition: Array, one: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
