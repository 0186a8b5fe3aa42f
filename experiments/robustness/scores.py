"""How models are judged: those of honest agents, all on the same examples."""

import jax
import jax.numpy as jnp

from p2pjax.evaluation.attacked import of_honest_agents
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.exchange.attacks import Attack
from p2pjax.tasks.task import Task
from p2pjax.training.samplers import whole_set
from p2pjax.types import Array, Evaluate, FederatedData, Models, PyTree, Split

COLUMNS = (  # beside those of all experiments
    "worst_accuracy",
    "disagreement",
    "attack_success",
    "valid_accuracy",
    "from_attackers",
    "rejected",
    "mean_of_all",
    "mean_of_clique_1",
    "mean_of_clique_2",
)


def pooled(split: Split, num_honest: int, num_agents: int) -> Split:
    """The parts of all honest agents together, for each of some agents.

    Args:
      split: parts of one size, leaves `[N, M, ...]`.
      num_honest: whose parts count, the first ones.
      num_agents: that get them.
    """

    def together(leaf: Array) -> jax.Array:
        leaf = jnp.asarray(leaf)[:num_honest]
        whole = leaf.reshape(1, -1, *leaf.shape[2:])
        return jnp.broadcast_to(whole, (num_agents, *whole.shape[1:]))

    examples = {name: together(leaf) for name, leaf in split.examples.items()}
    size = next(iter(examples.values())).shape[1]
    return Split(examples, jnp.full(num_agents, size, jnp.int32))


def of_agents(
    task: Task,
    num_honest: int,
    agent_loop: int,
    attack: Attack | None = None,
    *,
    validates: bool = False,
) -> Evaluate:
    """Scores `[N]` on all test examples, and of honest agents together.

    `worst_accuracy` is of the worst honest agent, `disagreement` the mean squared
    distance of honest models from their mean.

    Args:
      task: what agents learn.
      num_honest: the first agents, who hold the test examples.
      agent_loop: see `agent_loop.map_agents`.
      attack: whose agents are not judged.
      validates: whether there is also a `valid_accuracy`.
    """
    evaluate = before_and_after(task, agent_loop)
    if attack is not None:
        evaluate = of_honest_agents(evaluate, task, attack, agent_loop)

    def evaluate_fn(models: Models, data: FederatedData) -> dict[str, Array]:
        size = len(data.cluster)
        test = pooled(data.test, num_honest, size)
        values = dict(evaluate(models, data._replace(test=test)))
        if validates:
            valid = pooled(data.valid, num_honest, size)
            found = evaluate(models, data._replace(test=valid))
            values["valid_accuracy"] = found["accuracy"]
        values["worst_accuracy"] = jnp.nanmin(values["accuracy"])
        values["disagreement"] = disagreement(models.reported.params, num_honest)
        return values

    return evaluate_fn


def with_means(evaluate: Evaluate, task: Task, num_agents: int) -> Evaluate:
    """Also accuracies of the mean of all models, and of those of each clique.

    Args:
      evaluate: of the agents.
      task: what they learn.
      num_agents: N; the first half is one clique.
    """
    half = num_agents // 2
    groups = {
        "mean_of_all": slice(None),
        "mean_of_clique_1": slice(half),
        "mean_of_clique_2": slice(half, None),
    }

    def evaluate_fn(models: Models, data: FederatedData) -> dict[str, Array]:
        test = pooled(data.test, num_agents, 1)
        batch = whole_set({k: v[0] for k, v in test.examples.items()}, test.size[0])
        values = dict(evaluate(models, data))
        for name, own in groups.items():
            mean = jax.tree.map(lambda leaf: leaf[own].mean(0), models.reported)  # noqa: B023
            total, weight = task.evaluate(mean, batch)["accuracy"]
            values[name] = total / weight
        return values

    return evaluate_fn


def disagreement(params: PyTree, num_honest: int) -> jax.Array:
    """Mean squared distance of honest agents' models from their mean, `[]`.

    Args:
      params: leaves `[N, ...]`, those of honest agents first.
      num_honest: how many these are.
    """
    honest = [leaf[:num_honest] for leaf in jax.tree.leaves(params)]
    squares = [jnp.square(own - own.mean(0, keepdims=True)).sum() for own in honest]
    return jnp.stack(squares).sum() / num_honest
