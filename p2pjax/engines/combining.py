"""Hosts train, and a coordinator takes a sum of their models that need not be a mean.

A. Ioste and M. Finger, "Establishing the parameters of a decentralized neural machine
learning model": the parameters are combined by `sum_h alpha_h w_h` and returned, and
the hosts train again from there. With factors close to 1 that is the sum of the models:
H times their mean.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.engines.assembly import assemble
from p2pjax.exchange import mixing, shared
from p2pjax.exchange.factors import Factors, relative_sizes
from p2pjax.exchange.pipeline import make_exchange, send
from p2pjax.exchange.shared import message_size, sharing_plan
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.early_stopping import LocalTraining, held_out_loss
from p2pjax.training.local_training import identical_models
from p2pjax.training.samplers import steps_per_epoch
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    Models,
    PyTree,
    Variables,
    num_agents,
)


class GlobalStopping(NamedTuple):
    """When the coordinator ends it: the hosts' held-out loss no longer falls.

    Example:
      >>> GlobalStopping(patience=3)
      GlobalStopping(patience=3, min_gain=0.001)
    """

    patience: int = 5  # rounds without a gain
    min_gain: float = 1e-3


class CombinationState(NamedTuple):
    """The combined model in every host's row, and how long it has not improved."""

    variables: Variables  # leaves [N, ...]
    best: PyTree  # parameters of the best combination, leaves [1, ...]; () without stop
    best_loss: Array  # []
    stale: Array  # [] rounds since the best


def combined_rounds(
    task: Task,
    training: LocalTraining,
    factors: Factors | None,
    *,
    stop: GlobalStopping | None = None,
    shared_init: bool = True,
    agent_loop: int = AUTO,
) -> Algorithm:
    """A round: all hosts train, the coordinator combines, all hosts have the result.

    Only parameters are combined; running statistics stay with their host. After the
    coordinator has stopped, all hosts have the best combination, and further rounds
    neither train nor send. A host receives and sends one message per round.

    Args:
      task: what each host learns.
      training: complete (`until_converged`) or a few passes (`for_epochs`).
      factors: how much a host counts, of its relative size; None never combines.
      stop: when the coordinator stops; None goes on.
      shared_init: whether all hosts start from the same weights.
      agent_loop: see `agent_loop.map_agents`.
    """
    if stop is not None and (stop.patience < 1 or factors is None):
        raise InputError(
            "Need a patience of one round or more and factors to stop combining, got "
            f"patience={stop.patience} and {'no' if factors is None else 'given'} "
            "factors."
        )

    def init_fn(key: Key, data: FederatedData) -> CombinationState:
        size = num_agents(data)
        if shared_init:
            variables = identical_models(key, task, size)
        else:
            variables = jax.vmap(task.init)(jax.random.split(key, size))
        best = (
            () if stop is None else jax.tree.map(jnp.copy, _first_row(variables.params))
        )
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
                f"of agents {without}: hold some out (valid_fraction=0.1)."
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
        sizes = jnp.asarray(data.train.size)
        num_steps = epochs * steps_per_epoch(sizes, training.batch_size)
        none = jnp.zeros_like(messages)
        info = Info(
            loss,
            none,
            none,
            none,
            examples=(epochs * sizes).astype(jnp.float32),
            epochs=epochs,
            steps=num_steps.astype(jnp.float32),
        )
        if factors is None:
            return state._replace(variables=variables), info
        only_params = variables._replace(stats={})
        plan = sharing_plan(only_params, shared.FULL)
        alpha = factors(relative_sizes(data))
        message = shared.shared_leaves(only_params)
        exchange = make_exchange(plan)
        combined = exchange.combine(
            send(exchange, key, t, message),
            message,
            lambda _: mixing.by_factors(alpha),
            None,
        )["params"]
        payload = messages * message_size(plan)
        info = info._replace(
            sent=messages,
            received=messages,
            payload=payload,
            delivered=payload,
            served=messages,
        )
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

    def models_fn(state: CombinationState) -> Models:
        if factors is None:
            return Models(state.variables)
        return Models(state.variables, averaged=state.variables)

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is=f"{training.described} of each host"
        + ("" if factors is None else ", then the coordinator's sum"),
        agent_loop=agent_loop,
    )


def _first_row(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[:1], tree)


def _where(condition: Array, one: PyTree, other: PyTree) -> PyTree:
    def choose(a: Array, b: Array) -> Array:
        return jnp.where(condition, jnp.broadcast_to(a, b.shape), b)

    return jax.tree.map(choose, one, other)
