"""Complete local training, then a sum of the models that need not be a mean.

A. Ioste and M. Finger, "Establishing the parameters of a decentralized neural machine
learning model". Hosts train completely, a coordinator combines their parameters by
`sum_h alpha_h w_h` and returns the result, from which they train again. With factors
close to 1 that is the sum of the models: H times their mean.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange import mixing, shared
from p2pjax.exchange.factors import Factors, relative_sizes
from p2pjax.exchange.shared import message_size, sharing_plan
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.early_stopping import LocalTraining, held_out_loss
from p2pjax.training.local_training import identical_models
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    PyTree,
    Variables,
    num_agents,
)


class GlobalStopping(NamedTuple):
    """When the coordinator ends it: the hosts' held-out loss no longer falls."""

    patience: int = 5  # rounds without a gain
    min_gain: float = 1e-3


class CombinationState(NamedTuple):
    """The combined model in every host's row, and how long it has not improved."""

    variables: Variables  # leaves [N, ...]
    best: PyTree  # parameters of the best combination, leaves [1, ...]; () without stop
    best_loss: Array  # []
    stale: Array  # [] rounds since the best


def combination(
    task: Task,
    training: LocalTraining,
    factors: Factors | None,
    *,
    stop: GlobalStopping | None = None,
    agent_loop: int = AUTO,
) -> Algorithm:
    """A round: everybody trains, the coordinator combines, everybody has the result.

    Only parameters are combined; running statistics stay with their host. After the
    coordinator has stopped, everybody has the best combination, and further rounds
    neither train nor send. A host receives and sends one message per round.

    Args:
      task: what every host learns.
      training: complete (`until_converged`) or a few passes (`for_epochs`).
      factors: how much a host counts, of its relative size; None never combines.
      stop: when the coordinator stops; None goes on.
      agent_loop: see `agent_loop.map_agents`.
    """
    if stop is not None and (stop.patience < 1 or factors is None):
        raise InputError(
            "Need a patience of one round or more and factors to stop combining, got "
            f"patience={stop.patience} and {'no' if factors is None else 'given'} "
            "factors."
        )

    def init_fn(key: Key, data: FederatedData) -> CombinationState:
        variables = identical_models(key, task, num_agents(data))
        best = () if stop is None else _first_row(variables.params)
        worst = jnp.full((), jnp.inf, jnp.float32)
        return CombinationState(variables, best, worst, jnp.zeros((), jnp.int32))

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> tuple[()]:
        del rng, num_rounds
        without = np.flatnonzero(np.asarray(data.valid.size) == 0).tolist()
        if without and (training.holds_out or stop is not None):
            raise InputError(
                "Need held-out examples of every agent to see when to stop, got none "
                f"of agents {without}: hold some out (partition.hold_out)."
            )
        return ()

    def round_fn(
        key: Key,
        t: Array,
        inputs: PyTree,
        state: CombinationState,
        data: FederatedData,
    ) -> tuple[CombinationState, Info]:
        del inputs
        is_on = jnp.ones((), bool) if stop is None else state.stale < stop.patience
        active = jnp.broadcast_to(is_on, (num_agents(data),))
        variables, loss, epochs = training.train(key, t, active, state.variables, data)
        messages = active.astype(jnp.float32)
        if factors is None:
            none = jnp.zeros_like(messages)
            info = Info(loss, none, none, none, epochs=epochs)
            return state._replace(variables=variables), info
        plan = sharing_plan(variables, shared.SILO_BN)
        alpha = factors(relative_sizes(data))
        combined = mixing.mix(
            shared.shared_leaves(variables), plan, lambda _: mixing.by_factors(alpha)
        )["params"]
        payload = messages * message_size(plan)
        info = Info(loss, messages, messages, payload, delivered=payload, epochs=epochs)
        combined = _where(is_on, combined, state.variables.params)
        state = state._replace(variables=variables._replace(params=combined))
        return state if stop is None else _judged(state, is_on, data), info

    def _judged(state: CombinationState, is_on: Array, data: FederatedData) -> PyTree:
        assert stop is not None
        params = state.variables.params
        loss = held_out_loss(task, state.variables, data, agent_loop)
        is_better = loss < state.best_loss - stop.min_gain
        best = _where(is_better, _first_row(params), state.best)
        stale = jnp.where(is_better, 0, state.stale + is_on.astype(jnp.int32))
        is_over = stale >= stop.patience
        return CombinationState(
            state.variables._replace(params=_where(is_over, best, params)),
            best,
            jnp.where(is_better, loss, state.best_loss),
            stale,
        )

    return Algorithm(init_fn, plan_fn, round_fn, lambda state: state.variables)


def _first_row(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[:1], tree)


def _where(condition: Array, one: PyTree, other: PyTree) -> PyTree:
    def choose(a: Array, b: Array) -> Array:
        return jnp.where(condition, jnp.broadcast_to(a, b.shape), b)

    return jax.tree.map(choose, one, other)
