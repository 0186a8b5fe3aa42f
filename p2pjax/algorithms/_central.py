"""One model that learns from all agents' data: the baseline without any privacy."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax.engines.assembly import assemble
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner, StepContext, as_learner
from p2pjax.training.local_training import identical_models
from p2pjax.training.samplers import (
    Draw,
    check_batch_size,
    steps_per_epoch,
    take_batch,
)
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    Key,
    Models,
    PyTree,
    Split,
    Variables,
    num_agents,
)


class CentralState(NamedTuple):
    """The only model and what its learner remembers."""

    variables: Variables  # leaves [1, ...]
    opt_state: PyTree  # leaves [1, ...]
    agents: Array  # [N] their numbers: on whose test sets the model is evaluated


def central(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
) -> Algorithm:
    """Centralized training on the union of all agents' data.

    A round is one pass over it, in a new order.

    Args:
      task: what is learned.
      optimizer: of optax.
      batch_size: B.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.central(task, optax.sgd(0.1), batch_size=32)
      >>> method.round_is
      "one pass over the union of all agents' data"
    """
    check_batch_size(batch_size)
    learner = as_learner(task, optimizer)

    def init_fn(key: Key, data: FederatedData) -> CentralState:
        variables = identical_models(key, task, 1)
        opt_state = jax.vmap(learner.init)(variables)
        agents = jnp.arange(num_agents(data), dtype=jnp.int32)
        return CentralState(variables, opt_state, agents)

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> tuple[()]:
        del rng, data, num_rounds
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
            variables, opt_state, total = carry
            places = step * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
            rows = order[places % jnp.maximum(num_examples, 1)]
            batch = take_batch(pool, Draw(rows, places < num_examples))
            variables, opt_state, loss = learner.step(
                jax.random.fold_in(key_steps, step),
                variables,
                opt_state,
                batch,
                StepContext(num_examples=num_examples),
            )
            return variables, opt_state, total + loss.astype(total.dtype)

        one_model = jax.tree.map(
            lambda leaf: leaf[0], (state.variables, state.opt_state)
        )
        *one_model, total = jax.lax.fori_loop(
            0, num_steps, one_step, (*one_model, jnp.zeros((), jnp.float32))
        )
        size = num_agents(data)
        loss = total / jnp.maximum(num_steps, 1).astype(jnp.float32)
        none = jnp.zeros(size, jnp.float32)
        info = Info(
            jnp.broadcast_to(loss, (size,)),
            none,
            none,
            none,
            examples=data.train.size.astype(jnp.float32),
            # The steps of the one model, as each agent's share of them.
            steps=jnp.broadcast_to(num_steps.astype(jnp.float32) / size, (size,)),
        )
        variables, opt_state = jax.tree.map(lambda leaf: leaf[None], tuple(one_model))
        return CentralState(variables, opt_state, state.agents), info

    def models_fn(state: CentralState) -> Models:
        size = state.agents.shape[0]
        return Models(
            jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape[1:])),
                state.variables,
            )
        )

    return assemble(
        task,
        init_fn,
        plan_fn,
        round_fn,
        models_fn,
        round_is="one pass over the union of all agents' data",
    )


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
