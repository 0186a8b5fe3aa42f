"""The agents' models on their own test sets."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from p2pjax.asynchronous.task_groups import Group, of_task
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO, VMAP, map_agents, resolve_agent_loop
from p2pjax.training.samplers import whole_set
from p2pjax.types import (
    Array,
    Evaluate,
    FederatedData,
    Models,
    PyTree,
    Ratio,
    Variables,
)

DIVERGED = "diverged"  # 1 for agents whose model or predictions are not finite
SCORES = ("accuracy", "f1")  # metrics that are also told before and after averaging


def on_test_sets(task: Task, agent_loop: int = AUTO) -> Evaluate:
    """Means of the task's metrics over each agent's own test set, `[N]` each.

    `diverged` is 1 for agents whose model or whose loss is not finite, else 0.

    Args:
      task: what the agents learn.
      agent_loop: see `agent_loop.map_agents`.

    Returns:
      A function of `Models` and `FederatedData`, for `evaluate` of `simulate`.

    Example:
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> keys = jax.random.split(jax.random.key(0), 4)
      >>> models = pj.Models(jax.eval_shape(jax.vmap(task.init), keys))
      >>> jax.tree.map(jnp.shape, jax.eval_shape(on_test_sets(task), models, data))
      {'accuracy': (4,), 'diverged': (4,), 'loss': (4,)}
    """
    score = _scored(task, agent_loop)
    return lambda models, data: score(models.reported, data)


def before_and_after(task: Task, agent_loop: int = AUTO) -> Evaluate:
    """As `on_test_sets`, with the scores before and after averaging where both exist.

    `accuracy` is that of the models that the method reports; `accuracy_before` and
    `accuracy_after` are those of trained and of averaged models.

    Args:
      task: what the agents learn.
      agent_loop: see `agent_loop.map_agents`.

    Returns:
      A function of `Models` and `FederatedData`, for `evaluate` of `simulate`.

    Example:
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> keys = jax.random.split(jax.random.key(0), 4)
      >>> models = jax.eval_shape(jax.vmap(task.init), keys)
      >>> both = pj.Models(models, trained=models, averaged=models)
      >>> sorted(jax.eval_shape(before_and_after(task), both, data))
      ['accuracy', 'accuracy_after', 'accuracy_before', 'diverged', 'loss']
    """
    return _with_before_and_after(_scored(task, agent_loop), SCORES)


def _scored(
    task: Task, agent_loop: int
) -> Callable[[Variables, FederatedData], dict[str, Array]]:
    def score(variables: Variables, data: FederatedData) -> dict[str, Array]:
        def one_agent(_: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
            variables, examples, size = inputs
            sums = task.evaluate(variables, whole_set(examples, size))
            means = {name: total / weight for name, (total, weight) in sums.items()}
            return (), means | {DIVERGED: _has_diverged(variables, sums)}

        inputs = (variables, data.test.examples, data.test.size)
        return map_agents(one_agent, agent_loop)((), inputs)[1]

    return score


def _has_diverged(variables: Variables, sums: Mapping[str, Ratio]) -> Array:
    """1 if ONE agent's model, or its loss, is not finite, else 0."""
    known = [leaf for leaf in jax.tree.leaves(variables) if _is_float(leaf)]
    if "loss" in sums:
        known.append(sums["loss"].total)
    found = [jnp.isfinite(leaf).all() for leaf in known]
    is_finite = jnp.stack(found).all() if found else jnp.ones((), bool)
    return (~is_finite).astype(jnp.float32)


def _is_float(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def on_test_sets_of_groups(
    groups: Sequence[Group], scores: Sequence[str], agent_loop: int = AUTO
) -> Evaluate:
    """Each agent's `score` and `loss` on its own test set, `[N]` each.

    Tasks have different scores, such as an accuracy or F1; each is there under its own
    name too, NaN for agents whose task does not have it. A score that is not defined,
    as F1 without entities, is NaN. All scores are also told before and after averaging
    where there are such models, as `score_before` and `score_after`.

    Args:
      groups: who has which task.
      scores: the metric of each task that is its score.
      agent_loop: `VMAP` takes all agents of a task in one batch, any other number one
        after the other.
    """
    names = sorted(set(scores))

    def score(variables: Variables, data: FederatedData) -> dict[str, Array]:
        values = []
        for number, group in enumerate(groups):

            def one_agent(
                at: Array, number: int = number, group: Group = group
            ) -> dict[str, Array]:
                own, test = of_task(
                    lambda leaf, first: jnp.asarray(leaf)[at - first],
                    (variables, data.test),
                    number,
                    group.start,
                )
                batch = whole_set(test.examples, test.size)
                sums = group.task.evaluate(own, batch)
                means = {name: total / weight for name, (total, weight) in sums.items()}
                none = jnp.full_like(means["loss"], jnp.nan)
                named = {name: means.get(name, none) for name in names}
                named[DIVERGED] = _has_diverged(own, sums)
                return named | {"score": means[scores[number]], "loss": means["loss"]}

            agents = jnp.arange(group.start, group.stop, dtype=jnp.int32)
            if resolve_agent_loop(agent_loop, variables) == VMAP:
                values.append(jax.vmap(one_agent)(agents))
            else:
                values.append(jax.lax.map(one_agent, agents))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *values)

    return _with_before_and_after(score, (*names, "score"))


def _with_before_and_after(
    score: Callable[[Variables, FederatedData], dict[str, Array]], names: Sequence[str]
) -> Evaluate:
    """Scores of the reported models; some of them also of trained and averaged ones."""

    def evaluate_fn(models: Models, data: FederatedData) -> dict[str, Array]:
        values = score(models.reported, data)
        for when, some in (("before", models.trained), ("after", models.averaged)):
            if some is not None:
                found = values if some is models.reported else score(some, data)
                values = values | {
                    f"{name}_{when}": found[name] for name in names if name in found
                }
        return values if models.observed is None else values | dict(models.observed)

    return evaluate_fn
