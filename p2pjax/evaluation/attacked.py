"""Scores where some agents attack: of honest agents only."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.evaluation.test_sets import DIVERGED, SCORES, on_test_sets
from p2pjax.exchange.attacks import Attack
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.types import Array, Evaluate, FederatedData, Models


def of_honest_agents(
    evaluate: Evaluate, task: Task, attack: Attack, agent_loop: int = AUTO
) -> Evaluate:
    """The same values, NaN for Byzantine agents: take means over `is_judged`.

    Where the attack has a trigger, `attack_success` is the share of triggered test
    examples of other classes that become the attacker's class, `[N]`.

    Args:
      evaluate: of all agents.
      task: what the agents learn.
      attack: whose agents are not judged.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> attack = pj.attacks.backdoor((0,))
      >>> evaluate = of_honest_agents(on_test_sets(task), task, attack)
      >>> keys = jax.random.split(jax.random.key(0), 4)
      >>> byzantine = jnp.array([True, False, False, False])
      >>> models = pj.Models(jax.vmap(task.init)(keys), is_byzantine=byzantine)
      >>> values = jax.jit(evaluate)(models, data)
      >>> sorted(values), jnp.isnan(values["accuracy"]).tolist()
      (['accuracy', 'attack_success', 'diverged', 'loss'], [True, False, False, False])
    """
    triggered = attack.triggered
    on_triggered = on_test_sets(task, agent_loop)

    def success(models: Models, data: FederatedData) -> dict[str, Array]:
        assert triggered is not None
        examples = dict(data.test.examples)
        size = next(iter(examples.values())).shape[1]
        valid = jnp.arange(size)[None] < jnp.asarray(data.test.size)[:, None]
        marked = jax.vmap(lambda batch: dict(triggered(batch)))(
            {**examples, "valid": valid}
        )
        values = on_triggered(
            models._replace(trained=None, averaged=None),
            data._replace(test=data.test._replace(examples=marked)),
        )
        found = next(name for name in SCORES if name in values)
        return {"attack_success": values[found]}

    def evaluate_fn(models: Models, data: FederatedData) -> dict[str, Array]:
        values = evaluate(models, data)
        if triggered is not None:
            values = values | success(models, data)
        if models.is_byzantine is None:
            return values
        is_byzantine = jnp.asarray(models.is_byzantine)

        def of_honest(value: Array) -> Array:
            if value.shape[:1] != is_byzantine.shape:  # of all agents together
                return value
            axes = (-1,) + (1,) * (value.ndim - 1)
            return jnp.where(is_byzantine.reshape(axes), jnp.nan, value)

        return jax.tree.map(of_honest, values)

    return evaluate_fn


def is_judged(metrics: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Agents that are honest, by the values of an evaluation, `[N]` or `[S, N]` bool.

    Nothing is known of Byzantine agents, not even whether they have diverged; of agents
    that have, that is known. None where `diverged` was not evaluated.

    Args:
      metrics: values of an evaluation, on the host.

    Example:
      >>> values = {"loss": np.array([1.0, np.nan, np.nan])}
      >>> is_judged(values | {"diverged": np.array([0.0, 1.0, np.nan])}).tolist()
      [True, True, False]
    """
    diverged = metrics.get(DIVERGED)
    return None if diverged is None else ~np.isnan(np.asarray(diverged, float))
