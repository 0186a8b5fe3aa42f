"""Each agent's model on the test sets of all agents, taken as one."""

import jax
import jax.numpy as jnp

from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO, map_agents
from p2pjax.training.samplers import whole_set
from p2pjax.types import Array, FederatedData, PyTree, Variables, num_agents


def on_pooled_test_set(
    task: Task,
    variables: Variables,
    data: FederatedData,
    *,
    is_same: bool = False,
    agent_loop: int = AUTO,
) -> dict[str, Array]:
    """Means of the task's metrics over all agents' test examples, `[N]` each.

    It takes N times as long as an evaluation on own test sets, unless all have the
    same model.

    Args:
      task: what the agents learn.
      variables: of all agents, leaves `[N, ...]`.
      data: of all agents.
      is_same: whether all agents have the same model.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> models = jax.vmap(task.init)(jax.random.split(jax.random.key(0), 4))
      >>> on_pooled_test_set(task, models, data)["accuracy"].shape
      (4,)
    """
    size = num_agents(data)
    test = jax.tree.map(jnp.asarray, (data.test.examples, data.test.size))

    def one_agent(_: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        variables, (examples, number) = inputs
        return (), task.evaluate(variables, whole_set(examples, number))

    def of_others(shift: Array | int) -> PyTree:
        """Sums of each agent's model on the test set so many places further."""
        at = (jnp.arange(size, dtype=jnp.int32) + shift) % size
        others = jax.tree.map(lambda leaf: leaf[at], test)
        return map_agents(one_agent, agent_loop)((), (variables, others))[1]

    if is_same:
        sums = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf.sum(0), leaf.shape), of_others(0)
        )
    else:
        sums = jax.lax.fori_loop(
            1,
            size,
            lambda shift, sums: jax.tree.map(jnp.add, sums, of_others(shift)),
            of_others(0),
        )
    return {name: total / weight for name, (total, weight) in sums.items()}
