"""Training under a penalty by the curvature of the others' losses, as FedCurv has it.

Shoham et al. (2019), "Overcoming forgetting in federated learning on non-IID data",
https://arxiv.org/abs/1910.07796.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.exchange import shared
from p2pjax.exchange.channel import Channel
from p2pjax.exchange.mixing import Combine
from p2pjax.exchange.owner_classes import MixPlan
from p2pjax.exchange.pipeline import Route, make_exchange, send
from p2pjax.exchange.shared import sharing_plan
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import map_agents
from p2pjax.training.curvature import Curvature
from p2pjax.training.learner import (
    Learner,
    Penalty,
    StepContext,
    check_penalty_weight,
)
from p2pjax.training.local_training import identical_models, own_steps
from p2pjax.training.local_updates import LocalUpdates, steps_of
from p2pjax.training.samplers import examples_between
from p2pjax.types import (
    Array,
    FederatedData,
    Key,
    Models,
    PyTree,
    Variables,
    num_agents,
)


class Received(NamedTuple):
    """What each agent sent last, as it reached the others."""

    params: PyTree  # leaves [N, ...]
    curvature: PyTree  # leaves [N, ...]


class FedCurvState(NamedTuple):
    """Averaged models, what learners remember, and what each agent sent last."""

    variables: Variables  # leaves [N, ...]
    opt_state: PyTree  # leaves [N, ...]; never leaves its agent
    sent: PyTree  # parameters w before the averaging, leaves [N, ...]
    curvature: PyTree  # h at them, leaves [N, ...]; zeros before the first message
    received: Received | tuple[()] = ()  # () if both arrive as they are, or none is


def penalty_of_others(
    penalty_weight: float,
    sent: PyTree,
    curvature: PyTree,
    plan: MixPlan,
    others: Combine,
) -> Penalty:
    """What every agent's loss gains, of what the others sent; none in local leaves.

    Args:
      penalty_weight: of the penalty.
      sent: parameters w, leaves `[N, ...]`.
      curvature: h, leaves `[N, ...]`.
      plan: of `{"params": w}`.
      others: sums of the others' columns.
    """

    def summed(tree: PyTree) -> PyTree:
        zeros = {"params": jax.tree.map(jnp.zeros_like, tree)}
        exchange = make_exchange(plan)
        return exchange.combine({"params": tree}, zeros, lambda owner: others, None)[
            "params"
        ]

    bends = summed(curvature)
    pulls = summed(jax.tree.map(jnp.multiply, curvature, sent))
    return Penalty(
        # A total without one's own share may be rounded below zero.
        jax.tree.map(lambda u: 2 * penalty_weight * jnp.maximum(u, 0), bends),
        jax.tree.map(lambda v: 2 * penalty_weight * v, pulls),
    )


class Work(NamedTuple):
    """What agents did in a round."""

    examples: Array  # [N]
    steps: Array  # [N]


# (key, round number, who trains [N], state, data, sum over others)
#   -> (state with own models, losses [N], work)
TrainFn = Callable[
    [Key, Array, Array, FedCurvState, FederatedData, Combine],
    tuple[FedCurvState, Array, Work],
]


def penalised_training(
    learner: Learner,
    curvature: Curvature,
    penalty_weight: float,
    batch_size: int,
    updates: LocalUpdates,
    local: Sequence[str],
    agent_loop: int,
) -> TrainFn:
    """Local training under the penalty of what the others sent last.

    Args:
      learner: how agents learn.
      curvature: of an agent's loss at its model.
      penalty_weight: 0 or more; 0 computes no curvature.
      batch_size: B.
      updates: of an agent in a round.
      local: regular expressions of leaves that are not sent.
      agent_loop: see `agent_loop.map_agents`.
    """
    check_penalty_weight(penalty_weight)
    take = own_steps(learner, batch_size, agent_loop)

    def measured(
        key: Key,
        is_chosen: Array,
        variables: Variables,
        old: PyTree,
        data: FederatedData,
    ) -> PyTree:
        """The chosen agents' curvature at their models; the others' last one."""

        def one_agent(old: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
            key, is_chosen, variables, (examples, size, _) = inputs
            new = curvature(key, variables, examples, jnp.where(is_chosen, size, 0))
            return where(is_chosen, new, old), ()

        keys = jax.random.split(key, num_agents(data))
        inputs = (keys, is_chosen, variables, data.train)
        return map_agents(one_agent, agent_loop)(old, inputs)[0]

    def train(
        key: Key,
        t: Array,
        is_chosen: Array,
        state: FedCurvState,
        data: FederatedData,
        others: Combine,
    ) -> tuple[FedCurvState, Array, Work]:
        context, key_train = StepContext(), key
        if penalty_weight:
            key_train, key_measure = jax.random.split(key)
            plan = sharing_plan(state.variables._replace(stats={}), local)
            known = state.received or Received(state.sent, state.curvature)
            penalty = penalty_of_others(penalty_weight, *known, plan, others)
            context = StepContext(penalty=penalty)
        num_steps = steps_of(updates, data.train.size, batch_size)
        first = t * num_steps
        variables, opt_state, loss = take(
            key_train,
            first,
            is_chosen.astype(jnp.int32) * num_steps,
            state.variables,
            state.opt_state,
            data.train,
            context,
        )
        bends = state.curvature
        if penalty_weight:
            bends = measured(key_measure, is_chosen, variables, bends, data)
        sent = jax.vmap(where)(is_chosen, variables.params, state.sent)
        examples = examples_between(
            first, first + num_steps, data.train.size, batch_size
        )
        work = Work(
            jnp.where(is_chosen, examples, 0),
            jnp.where(is_chosen, num_steps, 0).astype(jnp.float32),
        )
        state = FedCurvState(variables, opt_state, sent, bends, state.received)
        return state, loss, work

    return train


def communicate(
    key: Key,
    t: Array,
    state: FedCurvState,
    senders: Array,
    route: Route,
    local: Sequence[str],
    channel: Channel,
) -> FedCurvState:
    """The state after models and curvatures were sent, and models averaged.

    Args:
      key: of the round.
      t: its number.
      state: after training.
      senders: `[N]` who sends.
      route: along which models are averaged.
      local: regular expressions of leaves that are not sent.
      channel: what happens to messages on their way.
    """
    exchange = make_exchange(sharing_plan(state.variables, local), channel)
    own = shared.shared_leaves(state.variables)
    messages = send(exchange, key, t, own)
    mixed = exchange.combine(messages, own, route, None)
    variables = shared.with_shared_leaves(state.variables, mixed)
    received = state.received
    if isinstance(received, Received):
        only_params = state.variables._replace(stats={})
        exchange = make_exchange(sharing_plan(only_params, local), channel)
        key = jax.random.fold_in(key, 5)  # not that of the models
        bends = send(exchange, key, t, {"params": state.curvature})["params"]
        sent = Received(messages["params"], bends)
        received = jax.vmap(where)(senders, sent, received)
    return state._replace(variables=variables, received=received)


def initial_state(
    task: Task,
    learner: Learner,
    penalty_weight: float,
    local: Sequence[str],
    channel: Channel,
) -> Callable[[Key, FederatedData], FedCurvState]:
    """All agents with the same model, no curvature yet.

    Args:
      task: what each agent learns.
      learner: how.
      penalty_weight: 0 sends no curvature.
      local: regular expressions of leaves that are not sent.
      channel: what happens to messages on their way.
    """

    def init_fn(key: Key, data: FederatedData) -> FedCurvState:
        variables = identical_models(key, task, num_agents(data))
        zeros = jax.tree.map(jnp.zeros_like, variables.params)
        opt_state = jax.vmap(learner.init)(variables)
        sent = jax.tree.map(jnp.copy, variables.params)
        state = FedCurvState(variables, opt_state, sent, zeros)
        exchange = make_exchange(sharing_plan(variables, local), channel)
        if not penalty_weight or not exchange.changes_messages:
            return state
        return state._replace(received=Received(*jax.tree.map(jnp.copy, (sent, zeros))))

    return init_fn


def trained_and_averaged(
    report_trained: bool,
) -> Callable[[FedCurvState], Models]:
    """An `Algorithm.models`: what was sent, and its mean."""

    def models_fn(state: FedCurvState) -> Models:
        averaged = state.variables
        trained = averaged._replace(params=state.sent)
        return Models(trained if report_trained else averaged, trained, averaged)

    return models_fn


def where(condition: Array, one: PyTree, other: PyTree) -> PyTree:
    """One tree or the other."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
