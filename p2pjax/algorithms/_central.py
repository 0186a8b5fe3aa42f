"""One model that learns from everybody's data: the reference without any privacy."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner, StepContext
from p2pjax.training.local_training import identical_models
from p2pjax.training.samplers import Draw, steps_per_epoch, take_batch
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    PyTree,
    Split,
    Variables,
)


class CentralState(NamedTuple):
    """The only model and what its learner remembers."""

    variables: Variables  # leaves [1, ...]
    opt_state: PyTree  # leaves [1, ...]


def central(
    task: Task, learner: Learner, num_agents: int, *, batch_size: int
) -> Algorithm:
    """A round is one pass over the union of all data, in a new order.

    Args:
      task: what is learned.
      learner: how.
      num_agents: N, on whose test sets the model is evaluated.
      batch_size: B.
    """
    if num_agents < 1 or batch_size < 1:
        raise InputError(
            f"Need one agent or more and a batch size of 1 or more, got {num_agents} "
            f"and {batch_size}."
        )

    def init_fn(key: Key, data: FederatedData) -> CentralState:
        del data
        variables = identical_models(key, task, 1)
        return CentralState(variables, jax.vmap(learner.init)(variables))

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> tuple[()]:
        del rng, num_rounds
        if data.train.size.shape[0] != num_agents:
            raise InputError(
                f"Need data of {num_agents} agents, got {data.train.size.shape[0]}."
            )
        return ()

    def round_fn(
        key: Key, t: Array, inputs: PyTree, state: CentralState, data: FederatedData
    ) -> tuple[CentralState, Info]:
        del t, inputs
        key_order, key_steps = jax.random.split(key)
        pool = {name: _flat(leaf) for name, leaf in data.train.examples.items()}
        order = _shuffled(key_order, data.train)
        num_examples = data.train.size.sum()
        num_steps = steps_per_epoch(num_examples, batch_size)

        def one_step(step: Array, carry: PyTree) -> PyTree:
            (variables, opt_state), total = carry
            places = step * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
            valid = places < num_examples
            batch = take_batch(pool, Draw(order[jnp.where(valid, places, 0)], valid))
            variables, opt_state, loss = learner.step(
                jax.random.fold_in(key_steps, step),
                variables,
                opt_state,
                batch,
                StepContext(num_examples=num_examples),
            )
            state = CentralState(variables, opt_state)
            return state, total + loss.astype(total.dtype)

        one_model = jax.tree.map(lambda leaf: leaf[0], state)
        one_model, total = jax.lax.fori_loop(
            0, num_steps, one_step, (one_model, jnp.zeros((), jnp.float32))
        )
        loss = total / jnp.maximum(num_steps, 1).astype(jnp.float32)
        none = jnp.zeros(num_agents, jnp.float32)
        info = Info(
            jnp.broadcast_to(loss, (num_agents,)),
            none,
            none,
            none,
            examples=data.train.size.astype(jnp.float32),
        )
        return jax.tree.map(lambda leaf: leaf[None], one_model), info

    def models_fn(state: CentralState) -> Variables:
        return jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (num_agents, *leaf.shape[1:])),
            state.variables,
        )

    return Algorithm(init_fn, plan_fn, round_fn, models_fn)


def _flat(leaf: Array) -> Array:
    """`[N, M, ...]` -> `[N * M, ...]`."""
    leaf = jnp.asarray(leaf)
    return leaf.reshape(-1, *leaf.shape[2:])


def _shuffled(key: Key, agents: Split) -> Array:
    """Positions of all real examples in the pool, in a random order, then padding."""
    size = jnp.asarray(agents.size)
    longest = next(iter(agents.examples.values())).shape[1]
    is_real = jnp.arange(longest)[None] < size[:, None]  # [N, M]
    draws = jax.random.uniform(key, is_real.shape)
    return jnp.argsort(jnp.where(is_real, draws, 2.0).reshape(-1))
