"""The agents' models on their own test sets."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from p2pjax.asynchronous.task_groups import Group, of_task
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO, VMAP, map_agents, resolve_agent_loop
from p2pjax.training.samplers import whole_set
from p2pjax.types import Array, FederatedData, PyTree, Variables

# (models of all agents, world) -> named values, [N] per agent or any other shape
Evaluate = Callable[[Variables, FederatedData], dict[str, Array]]


def on_test_sets(task: Task, agent_loop: int = AUTO) -> Evaluate:
    """Means of the task's metrics over every agent's own test set, `[N]` each."""

    def evaluate_fn(models: Variables, data: FederatedData) -> dict[str, Array]:
        def one_agent(_: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
            variables, examples, size = inputs
            sums = task.evaluate(variables, whole_set(examples, size))
            return (), {name: total / weight for name, (total, weight) in sums.items()}

        inputs = (models, data.test.examples, data.test.size)
        return map_agents(one_agent, agent_loop)((), inputs)[1]

    return evaluate_fn


def on_test_sets_of_groups(
    groups: Sequence[Group], scores: Sequence[str], agent_loop: int = AUTO
) -> Evaluate:
    """Every agent's score and loss on its own test set, `[N]` each.

    The score is called `accuracy`, whatever it is; NaN if it is not defined.

    Args:
      groups: who has which task.
      scores: the metric of each task that is its score.
      agent_loop: `VMAP` takes all agents of a task in one batch, any other number one
        after the other.
    """

    def evaluate_fn(models: Variables, data: FederatedData) -> dict[str, Array]:
        values = []
        for number, group in enumerate(groups):

            def one_agent(
                at: Array, number: int = number, group: Group = group
            ) -> dict[str, Array]:
                variables, test = of_task(
                    lambda leaf, first: jnp.asarray(leaf)[at - first],
                    (models, data.test),
                    number,
                    group.start,
                )
                batch = whole_set(test.examples, test.size)
                sums = group.task.evaluate(variables, batch)
                means = {name: total / weight for name, (total, weight) in sums.items()}
                return {"accuracy": means[scores[number]], "loss": means["loss"]}

            agents = jnp.arange(group.start, group.stop, dtype=jnp.int32)
            if resolve_agent_loop(agent_loop, models) == VMAP:
                values.append(jax.vmap(one_agent)(agents))
            else:
                values.append(jax.lax.map(one_agent, agents))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *values)

    return evaluate_fn
