"""A method of its four functions, with what all methods have in common."""

from collections.abc import Callable

import numpy as np

from p2pjax.datasets.checking import check_data
from p2pjax.evaluation.attacked import of_honest_agents
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.exchange.attacks import Attack
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    Key,
    Models,
    PyTree,
)


def assemble(
    task: Task,
    init: Callable[[Key, FederatedData], PyTree],
    plan: Callable[[np.random.Generator, FederatedData, int], PyTree],
    round_fn: Callable[[Key, Array, PyTree, PyTree, FederatedData], tuple],
    models: Callable[[PyTree], Models],
    *,
    round_is: str,
    agent_loop: int = AUTO,
    attack: Attack | None = None,
) -> Algorithm:
    """The method; it checks data and network at its start, evaluates on test sets.

    Args:
      task: what each agent learns.
      init: see `Algorithm`.
      plan: see `Algorithm`.
      round_fn: see `Algorithm.round`.
      models: see `Algorithm`.
      round_is: what happens in a round, in a sentence.
      agent_loop: of the evaluation, see `agent_loop.map_agents`.
      attack: whose agents are not judged, and whose success is told if it has triggers.
    """

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        check_data(data)
        task.check_labels(data)
        task.check()
        return plan(rng, data, num_rounds)

    def typed_round(
        key: Key, t: Array, inputs: PyTree, state: PyTree, data: FederatedData
    ) -> tuple[PyTree, Info]:
        return round_fn(key, t, inputs, state, data)

    evaluate = before_and_after(task, agent_loop)
    if attack is not None:
        evaluate = of_honest_agents(evaluate, task, attack, agent_loop)
    return Algorithm(init, plan_fn, typed_round, models, evaluate, round_is)
