"""FedCurv: clients keep away from what the others' losses bend sharply along.

Shoham et al. (2019), "Overcoming forgetting in federated learning on non-IID data",
https://arxiv.org/abs/1910.07796, as in the slides of T. Leleu and C. Cerisara (2020). A
client minimises

    L_s(w) + penalty_weight * sum over others j of (w - w_j)^T diag(h_j) (w - w_j)

with the models w_j and curvatures h_j that the others sent last; no examples are sent.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.assembly import assemble
from p2pjax.engines.clients import (
    check_clients,
    chosen_clients,
    participants,
    server_info,
)
from p2pjax.engines.curvature_penalty import (
    FedCurvState,
    communicate,
    initial_state,
    penalised_training,
    trained_and_averaged,
    where,
)
from p2pjax.exchange import mixing, shared
from p2pjax.exchange.channel import PERFECT, Channel, check_channel
from p2pjax.exchange.pipeline import Members, make_exchange
from p2pjax.exchange.shared import Local, message_size, sharing_plan, where_shared
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
)


def fedcurv(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    penalty_weight: float,
    curvature: Curvature | None = None,
    num_clients: int | None = None,
    local_updates: LocalUpdates = epochs(1),
    own_curvature: bool = False,
    report_trained: bool = False,
    local_patterns: Local = shared.FULL,
    channel: Channel = PERFECT,
    agent_loop: int = AUTO,
) -> Algorithm:
    """FedAvg whose clients are penalised; without a penalty weight it is FedAvg.

    Shoham et al. (2019), https://arxiv.org/abs/1910.07796. A client sends its model and
    its curvature. It receives the mean model and the sums of all h and of all h w, and
    takes its own share off them. Of clients that were not chosen the server keeps what
    they sent last.

    Args:
      task: what each agent learns.
      optimizer: of optax; each client keeps its own state of it.
      batch_size: B.
      penalty_weight: 0 or more; 0 computes and sends no curvature.
      curvature: `curvature.fisher(task)` if None, or `curvature.hessian(task)`.
      num_clients: agents chosen in a round, uniformly and without replacement; None
        for all.
      local_updates: of a chosen client, `epochs(e)` or `steps(k)`.
      own_curvature: each client is held to its own last model by its own curvature,
        as tasks in a row are by elastic weight consolidation (Kirkpatrick et al. 2017,
        https://arxiv.org/abs/1612.00796), and not to those of the others; curvature is
        then not sent.
      report_trained: report the clients' own models, not the mean.
      local_patterns: leaves that are not sent, see `exchange.shared`; they are not
        penalised.
      channel: what happens to messages on their way.
      agent_loop: see `agent_loop.map_agents`. With VMAP the gradients of a chunk of
        examples are in memory for all agents at once.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.fedcurv(task, optax.sgd(0.1), batch_size=32, penalty_weight=1.0)
      >>> method.round_is
      "1 local epoch of each chosen client, ...mean and sums of curvatures"
    """
    check_clients(num_clients)
    check_channel(channel, "FedCurv")
    local = shared.local_paths(task, local_patterns)
    learner = as_learner(task, optimizer)
    sends_curvature = bool(penalty_weight) and not own_curvature
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
    ) -> np.ndarray:
        return chosen_clients(rng, data, num_clients, num_rounds)

    def round_fn(
        key: Key, t: Array, is_chosen: Array, state: FedCurvState, data: FederatedData
    ) -> tuple[FedCurvState, Info]:
        plan = sharing_plan(state.variables, local)
        exchange = make_exchange(plan, channel)
        trains, counts = participants(exchange, key, t, is_chosen)
        before = state
        held_to = _itself if own_curvature else mixing.sum_of_others
        state, loss, work = train(key, t, trains, state, data, held_to)
        trained = shared.shared_leaves(state.variables)
        weight = jnp.where(counts, data.train.size, 0).astype(jnp.float32)
        state = communicate(
            key, t, state, trains, lambda owner: Members(weight), local, channel
        )
        if channel.loss_probability:  # of what did not arrive the server knows nothing
            kept = where_shared(plan, shared.shared_leaves(before.variables), trained)
            mean = shared.shared_leaves(state.variables)
            mean = where(weight.sum() > 0, mean, kept)
            keep, known = jax.vmap(where), trains if own_curvature else counts
            state = FedCurvState(
                shared.with_shared_leaves(state.variables, mean),
                state.opt_state,
                keep(known, state.sent, before.sent),
                keep(known, state.curvature, before.curvature),
                keep(known, state.received, before.received),
            )
        parts_up, parts_down = (2, 3) if sends_curvature else (1, 1)
        size = message_size(plan)
        info = server_info(
            loss, is_chosen, parts_up * size, parts_down * size, work.examples, trains
        )
        return state, info._replace(steps=work.steps)

    return assemble(
        task,
        initial_state(
            task, learner, penalty_weight if sends_curvature else 0.0, local, channel
        ),
        plan_fn,
        round_fn,
        trained_and_averaged(report_trained),
        round_is=f"{local_updates.described} of each chosen client, then the server's "
        + ("mean" if own_curvature else "mean and sums of curvatures"),
        agent_loop=agent_loop,
    )


def _itself(block: Array) -> Array:
    """No other agent's columns: a client's own."""
    return block
