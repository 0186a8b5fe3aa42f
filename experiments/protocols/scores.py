"""How models are judged: on own and on all test examples, and their mean."""

import jax
import jax.numpy as jnp

from experiments.robustness.scores import disagreement
from p2pjax.evaluation.pooled import on_pooled_test_set
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.tasks.task import Task
from p2pjax.types import Array, Evaluate, FederatedData, Models, num_agents

COLUMNS = (  # beside those of all experiments
    "pooled_accuracy",
    "worst_pooled",
    "merged_accuracy",
    "disagreement",
    "learning_rate",
)


def of_agents(task: Task, agent_loop: int, *, pools: bool) -> Evaluate:
    """Scores of the agents' models, of each and of their mean.

    `accuracy` is on own test sets, also before and after averaging, `pooled_accuracy`
    on those of all agents together, `worst_pooled` that of the worst agent,
    `merged_accuracy` that of the mean of all models, `disagreement` the mean squared
    distance of models from it.

    Args:
      task: what agents learn.
      agent_loop: see `agent_loop.map_agents`.
      pools: whether to score on all agents' test sets, which takes N times as long.
    """
    own = before_and_after(task, agent_loop)

    def evaluate_fn(models: Models, data: FederatedData) -> dict[str, Array]:
        values = dict(own(models, data))
        variables, size = models.reported, num_agents(data)
        values["disagreement"] = disagreement(variables.params, size)
        if not pools:
            return values
        pooled = on_pooled_test_set(task, variables, data, agent_loop=agent_loop)
        mean = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf.mean(0), leaf.shape), variables
        )
        merged = on_pooled_test_set(
            task, mean, data, is_same=True, agent_loop=agent_loop
        )
        return values | {
            "pooled_accuracy": pooled["accuracy"],
            "worst_pooled": pooled["accuracy"].min(),
            "merged_accuracy": merged["accuracy"][0],
        }

    return evaluate_fn
