"""Agents that learn nothing but which of their labels is the commonest."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.engine.config import agent_loop
from experiments.engine.jobs import Program
from experiments.fedcurv.config import Config
from p2pjax.evaluation.test_sets import before_and_after
from p2pjax.tasks._classification import classification
from p2pjax.tasks.network import Network
from p2pjax.tasks.task import Task
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    Key,
    Models,
    Variables,
    num_agents,
)


def program(config: Config, shape: tuple[int, ...], num_classes: int) -> Program:
    """Always the commonest label of an agent's own training examples.

    Its row is what accuracies must be above to say that anything was learned.

    Args:
      config: of the experiment.
      shape: of an example.
      num_classes: k.
    """
    constant = Network(
        lambda key: jnp.zeros(num_classes),
        lambda logits, x: jnp.broadcast_to(logits, (x.shape[0], num_classes)),
    )
    task: Task = classification(constant, shape, per_class=True)

    def init_fn(key: Key, data: FederatedData) -> Variables:
        del key
        y, size = jnp.asarray(data.train.examples["y"]), jnp.asarray(data.train.size)
        is_real = jnp.arange(y.shape[1])[None] < size[:, None]  # [N, M]
        counts = jnp.where(is_real[..., None], jax.nn.one_hot(y, num_classes), 0)
        return Variables(jnp.log1p(counts.sum(1)), {})  # [N, k]

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> tuple[()]:
        del rng, data, num_rounds
        return ()

    def round_fn(
        key: Key, t: Array, inputs: tuple, state: Variables, data: FederatedData
    ) -> tuple[Variables, Info]:
        del key, t, inputs
        none = jnp.zeros(num_agents(data), jnp.float32)
        return state, Info(none, none, none, none, examples=none, steps=none)

    evaluate = before_and_after(task, agent_loop(config, task))
    algorithm = Algorithm(
        init_fn, plan_fn, round_fn, Models, evaluate, "nothing: labels were counted"
    )
    return Program(algorithm, evaluate)
