"""Training of all agents on their own data, for steps or for whole epochs."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from p2pjax.tasks.task import Task
from p2pjax.training import samplers
from p2pjax.training.agent_loop import map_agents
from p2pjax.training.learner import Learner, StepContext
from p2pjax.training.samplers import Sampler, take_batch
from p2pjax.types import Array, Key, PyTree, Split, Variables


def local_epochs(
    learner: Learner, batch_size: int, agent_loop: int
) -> Callable[..., tuple[Variables, PyTree, Array]]:
    """Training of all agents for whole passes over their own data.

    Returns:
      `train(key, first_epoch, num_epochs, variables, opt_state, data, extra)` with the
      passes done before, and those to do now `[N]`. It returns variables, optimizer
      states and mean losses `[N]`. Who has nothing to do costs nothing in a looping
      `agent_loop`. Leaves of `extra` are `[N, ...]`.
    """
    take = own_steps(learner, batch_size, agent_loop)

    def train(
        key: Key,
        first_epoch: Array,
        num_epochs: Array,
        variables: Variables,
        opt_state: PyTree,
        agents: Split,
        extra: StepContext = StepContext(),
    ) -> tuple[Variables, PyTree, Array]:
        steps = samplers.steps_per_epoch(jnp.asarray(agents.size), batch_size)
        return take(
            key,
            first_epoch * steps,
            num_epochs * steps,
            variables,
            opt_state,
            agents,
            extra,
        )

    return train


def own_steps(
    learner: Learner, batch_size: int, agent_loop: int
) -> Callable[..., tuple[Variables, PyTree, Array]]:
    """Training of all agents for numbers of steps of their own.

    Returns:
      `train(key, first_step, num_steps, variables, opt_state, data, extra)` with the
      steps done before and those to do now, `[N]` each, else as `local_epochs`. The
      steps go through passes over the agent's data, one after the other.
    """

    def train(
        key: Key,
        first_step: Array,
        num_steps: Array,
        variables: Variables,
        opt_state: PyTree,
        agents: Split,
        extra: StepContext = StepContext(),
    ) -> tuple[Variables, PyTree, Array]:
        largest = next(iter(agents.examples.values())).shape[1]
        sampler = samplers.shuffled_epochs(batch_size, largest)

        def one_agent(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
            key, examples, size, first_step, num_steps, extra = inputs
            return take_steps(
                learner,
                sampler,
                key,
                examples,
                size,
                extra,
                carry,
                first_step,
                num_steps,
            )

        keys = jax.random.split(key, agents.size.shape[0])
        own = (keys, agents.examples, agents.size, first_step, num_steps, extra)
        carry, losses = map_agents(one_agent, agent_loop)((variables, opt_state), own)
        return *carry, losses

    return train


def identical_models(key: Key, task: Task, size: int) -> Variables:
    """The same initial model for everybody, leaves `[size, ...]`."""
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))), task.init(key)
    )


def local_training(
    learner: Learner, sampler: Sampler, num_steps: int, agent_loop: int
) -> Callable[..., tuple[Variables, PyTree, Array]]:
    """Training of all agents on their own data.

    Returns:
      `train(key, first_step, variables, opt_state, data, extra)`, which lets every
      agent take `num_steps` steps and returns variables, optimizer states and mean
      losses `[N]`. `first_step` counts the steps taken before; leaves of `extra` are
      `[N, ...]`.
    """

    def train(
        key: Key,
        first_step: Array,
        variables: Variables,
        opt_state: PyTree,
        data: Split,
        extra: StepContext = StepContext(),
    ) -> tuple[Variables, PyTree, Array]:
        def one_agent(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
            key, examples, size, extra = inputs
            return take_steps(
                learner,
                sampler,
                key,
                examples,
                size,
                extra,
                carry,
                first_step,
                num_steps,
            )

        keys = jax.random.split(key, data.size.shape[0])
        carry, losses = map_agents(one_agent, agent_loop)(
            (variables, opt_state), (keys, data.examples, data.size, extra)
        )
        return *carry, losses

    return train


def take_steps(
    learner: Learner,
    sampler: Sampler,
    key: Key,
    examples: Mapping[str, Array],
    size: Array,
    extra: StepContext,
    carry: tuple[Variables, PyTree],
    first_step: Array,
    num_steps: Array | int,
) -> tuple[tuple[Variables, PyTree], Array]:
    """`num_steps` steps of ONE agent, as many as its own data asks for if traced.

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
                lambda: sampler.order(number, size),
                lambda: order,
            )
        draw = sampler.draw(key_sample, number, size, order)
        variables, opt_state, loss = learner.step(
            key_step, variables, opt_state, take_batch(examples, draw), extra
        )
        return (variables, opt_state), total + loss.astype(total.dtype), order

    order = sampler.order(first_step, size)
    start = carry, jnp.zeros((), jnp.float32), order
    extra = extra._replace(num_examples=size)
    # A loop even for one step: where XLA:CPU unrolls it, it copies the optimizer states
    # of all agents once per agent (ten times slower with Adam).
    num_steps = jax.lax.optimization_barrier(jnp.asarray(num_steps, jnp.int32))
    carry, total, _ = jax.lax.fori_loop(0, num_steps, one_step, start)
    return carry, total / jnp.maximum(num_steps, 1).astype(jnp.float32)
