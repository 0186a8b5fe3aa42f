"""Training of all agents on their own data, for steps or for whole epochs."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax

from p2pjax.tasks.task import Task
from p2pjax.training import samplers
from p2pjax.training.agent_loop import map_agents
from p2pjax.training.learner import Learner, StepContext
from p2pjax.training.samplers import Sampler, take_batch
from p2pjax.types import Array, InputError, Key, PyTree, Split, Variables


def own_steps(
    learner: Learner, batches: int | Sampler, agent_loop: int
) -> Callable[..., tuple[Variables, PyTree, Array]]:
    """Training of all agents for numbers of steps of their own.

    Args:
      learner: how agents learn.
      batches: B of passes over all examples, each in a new order, or a sampler.
      agent_loop: see `agent_loop.map_agents`.

    Returns:
      `train(key, first_step, num_steps, variables, opt_state, data, context)` with the
      steps done before and those to do now, `[N]` each, which go through passes over
      the agent's data, one after the other. It returns variables, optimizer states and
      mean losses `[N]`. An agent that has nothing to do costs nothing in a looping
      `agent_loop`. Leaves of `context` are `[N, ...]`.
    """

    def train(
        key: Key,
        first_step: Array,
        num_steps: Array,
        variables: Variables,
        opt_state: PyTree,
        agents: Split,
        context: StepContext = StepContext(),
    ) -> tuple[Variables, PyTree, Array]:
        largest = next(iter(agents.examples.values())).shape[1]
        sampler = (
            batches
            if isinstance(batches, Sampler)
            else samplers.shuffled_epochs(batches, largest)
        )

        def one_agent(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
            key, examples, size, first_step, num_steps, context = inputs
            return take_steps(
                learner,
                sampler,
                key,
                examples,
                size,
                context,
                carry,
                first_step,
                num_steps,
            )

        keys = jax.random.split(key, agents.size.shape[0])
        context = context._replace(order_seed=agents.order_seed)
        own = (keys, agents.examples, agents.size, first_step, num_steps, context)
        carry, losses = map_agents(one_agent, agent_loop)((variables, opt_state), own)
        return *carry, losses

    return train


def identical_models(key: Key, task: Task, size: int) -> Variables:
    """The same initial model for all agents, leaves `[size, ...]`."""
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))), task.init(key)
    )


def local_training(
    learner: Learner, sampler: Sampler, num_steps: int, agent_loop: int
) -> Callable[..., tuple[Variables, PyTree, Array]]:
    """Training of all agents on their own data.

    Args:
      learner: how agents learn.
      sampler: which examples a batch has.
      num_steps: of each agent.
      agent_loop: see `agent_loop.map_agents`.

    Returns:
      `train(key, first_step, variables, opt_state, data, context)`, which lets each
      agent take `num_steps` steps and returns variables, optimizer states and mean
      losses `[N]`. `first_step` counts the steps taken before; leaves of `context` are
      `[N, ...]`.
    """

    def train(
        key: Key,
        first_step: Array,
        variables: Variables,
        opt_state: PyTree,
        data: Split,
        context: StepContext = StepContext(),
    ) -> tuple[Variables, PyTree, Array]:
        def one_agent(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
            key, examples, size, context = inputs
            return take_steps(
                learner,
                sampler,
                key,
                examples,
                size,
                context,
                carry,
                first_step,
                num_steps,
            )

        keys = jax.random.split(key, data.size.shape[0])
        context = context._replace(order_seed=data.order_seed)
        carry, losses = map_agents(one_agent, agent_loop)(
            (variables, opt_state), (keys, data.examples, data.size, context)
        )
        return *carry, losses

    return train


def with_gradient(
    learner: Learner, sampler: Sampler, agent_loop: int
) -> Callable[..., tuple]:
    """One step of all agents that also tells gradients and updates.

    Returns:
      A function as `local_training` returns, whose results are variables, optimizer
      states, losses `[N]`, gradients and the optimizer's updates, leaves `[N, ...]`.
    """
    if learner.gradient is None or learner.update is None:
        raise InputError(
            "Need a learner that descends along a gradient, as optimizers of optax do, "
            "for a method that reads gradients."
        )
    gradient_fn, update_fn = learner.gradient, learner.update

    def train(
        key: Key,
        step: Array,
        variables: Variables,
        opt_state: PyTree,
        data: Split,
        context: StepContext = StepContext(),
    ) -> tuple:
        def one_agent(carry: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
            variables, opt_state = carry
            key, examples, size, context = inputs
            context = context._replace(num_examples=size)
            key_sample, key_step = jax.random.split(jax.random.fold_in(key, 0))
            draw = sampler(key_sample, step, size, context.order_seed)
            batch = take_batch(examples, draw)
            loss, stats, gradient = gradient_fn(key_step, variables, batch, context)
            updates, opt_state = update_fn(variables, gradient, opt_state, context)
            params = optax.apply_updates(variables.params, updates)
            loss = loss.astype(jnp.float32)
            return (Variables(params, stats), opt_state), (loss, gradient, updates)

        keys = jax.random.split(key, data.size.shape[0])
        context = context._replace(order_seed=data.order_seed)
        carry, outputs = map_agents(one_agent, agent_loop)(
            (variables, opt_state), (keys, data.examples, data.size, context)
        )
        return *carry, *outputs

    return train


def take_steps(
    learner: Learner,
    sampler: Sampler,
    key: Key,
    examples: Mapping[str, Array],
    size: Array,
    context: StepContext,
    carry: tuple[Variables, PyTree],
    first_step: Array,
    num_steps: Array | int,
) -> tuple[tuple[Variables, PyTree], Array]:
    """`num_steps` steps of ONE agent, as many as its own data asks for if traced.

    Args:
      learner: how the agent learns.
      sampler: which examples a batch has.
      key: of the steps.
      examples: leaves `[M, ...]`.
      size: of them that are real.
      context: what else a step depends on.
      carry: variables and optimizer state.
      first_step: steps taken before.
      num_steps: to take now.

    Returns:
      Variables and optimizer state, and the mean loss.
    """

    def one_step(step: Array, state: PyTree) -> PyTree:
        (variables, opt_state), total, order = state
        key_sample, key_step = jax.random.split(jax.random.fold_in(key, step))
        number = first_step + step
        if jax.tree.leaves(order):
            order = jax.lax.cond(
                sampler.begins(number, size) & (step > 0),
                lambda: sampler.order(number, size, context.order_seed),
                lambda: order,
            )
        draw = sampler.draw(key_sample, number, size, order)
        variables, opt_state, loss = learner.step(
            key_step, variables, opt_state, take_batch(examples, draw), context
        )
        return (variables, opt_state), total + loss.astype(total.dtype), order

    order = sampler.order(first_step, size, context.order_seed)
    start = carry, jnp.zeros((), jnp.float32), order
    context = context._replace(num_examples=size)
    # A loop even for one step: where XLA:CPU unrolls it, it copies the optimizer states
    # of all agents once per agent (ten times slower with Adam).
    num_steps = jax.lax.optimization_barrier(jnp.asarray(num_steps, jnp.int32))
    carry, total, _ = jax.lax.fori_loop(0, num_steps, one_step, start)
    return carry, total / jnp.maximum(num_steps, 1).astype(jnp.float32)
