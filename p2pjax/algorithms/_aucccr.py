"""AUCCCR: groups that are worth it, found once from what models trained alone predict.

See `selection.aucccr`. Each agent trains alone for a few epochs; from the predictions
on common examples groups are found, in which agents then average with a few peers.
"""

from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p2pjax import sharding
from p2pjax.engines.adversity import attacked
from p2pjax.engines.options import PullOptions
from p2pjax.engines.pulling import pull
from p2pjax.exchange.attacks.attackers import byzantine_mask
from p2pjax.graphs import generators
from p2pjax.graphs.topology import Topology
from p2pjax.selection import aucccr as grouping
from p2pjax.selection import peer_evaluation, tables
from p2pjax.selection.aucccr import Value
from p2pjax.selection.peer_evaluation import Probe
from p2pjax.selection.sparse import sparse
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.learner import Learner, StepContext, as_learner
from p2pjax.training.local_training import identical_models, own_steps
from p2pjax.training.local_updates import epochs, steps_of
from p2pjax.training.poisoning import poisoned
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    InputError,
    PyTree,
    num_agents,
)


def aucccr(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    num_agents: int,
    degree: int = 3,
    num_epochs_alone: int = 5,
    num_probes: int = 100,
    value: Value = grouping.root_of_size(),
    **options: Unpack[PullOptions],
) -> Algorithm:
    """Average with peers of a group that was found before the first round.

    Bouchra Pilet, Frey, Taiani (2021), https://hal.science/hal-03181696. The groups are
    found when a run is prepared, and what that costs is not counted. Classes are
    compared by their mean predictions, so it is for a few classes.

    Args:
      task: what each agent learns, by classes (`Task.predict`).
      optimizer: of optax; each agent has its own state of it.
      batch_size: B.
      num_agents: N.
      degree: peers of each agent.
      num_epochs_alone: passes of each agent over its data before groups are found.
      num_probes: common examples, taken from the first agents' training data.
      value: of a group by its size, such as `selection.root_of_size(40)`.
      **options: see `PullOptions`, but for `rewire_every`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.rotated(2))
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.aucccr(task, optax.sgd(0.1), batch_size=32, num_agents=8)
      >>> method.round_is
      'average with the peers chosen last time, ...choose peers'
    """
    if task.predict is None:
        raise InputError(
            "AUCCCR compares predicted classes, and this task predicts none: use a "
            "classification task."
        )
    if num_epochs_alone < 1 or num_probes < 1:
        raise InputError(
            "Need one epoch alone or more and one probe or more, got "
            f"num_epochs_alone={num_epochs_alone} and num_probes={num_probes}."
        )
    predict = task.predict
    learner = as_learner(task, optimizer)
    agent_loop = options.get("agent_loop", AUTO)
    like_it = generators.directed_regular(num_agents, degree, seed=0)
    base = pull(
        task,
        learner,
        sparse(),
        like_it,
        batch_size=batch_size,
        name="AUCCCR",
        **options,
    )
    attack, context = options.get("attack"), StepContext()
    if attack is not None and attack.poison is not None:
        learner = poisoned(learner, attack.poison)
        is_byzantine = byzantine_mask(attack, num_agents)
        context = StepContext(is_byzantine=jnp.asarray(is_byzantine))
    train = own_steps(learner, batch_size, agent_loop)

    @jax.jit
    def predicted_alone(key: Array, data: FederatedData, examples: dict) -> Array:
        key_model, key_train = jax.random.split(key)
        variables = identical_models(key_model, task, num_agents)
        num_steps = steps_of(epochs(num_epochs_alone), data.train.size, batch_size)
        variables, _, _ = train(
            key_train,
            jnp.zeros_like(num_steps),
            num_steps,
            variables,
            jax.vmap(learner.init)(variables),
            data.train,
            context,
        )
        return peer_evaluation.predictions(
            Probe(predict, examples), variables, agent_loop
        )

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> PyTree:
        _check_size(data, num_agents)
        task.check()
        probes = _probes(data, num_probes)
        key = jax.random.key(int(rng.integers(2**31)))
        outputs = predicted_alone(key, sharding.place(data), probes)
        features = grouping.profiles(sharding.on_host(outputs), probes["y"])
        group = grouping.value_groups(rng, features, value)
        graph = tables.padded(grouping.group_graph(rng, group, degree), degree)
        graphs = Topology(
            *(np.repeat(np.asarray(leaf)[None], num_rounds, 0) for leaf in graph)
        )
        return attacked(attack, graphs, num_agents, num_rounds)

    return base._replace(plan=plan_fn)


def _check_size(data: FederatedData, size: int) -> None:
    if num_agents(data) != size:
        raise InputError(f"Need data of {size} agents, got {num_agents(data)}.")


def _probes(data: FederatedData, num_probes: int) -> dict[str, np.ndarray]:
    """Training examples of the first agents, `[Q, ...]`."""
    parts: list[dict[str, np.ndarray]] = []
    left = num_probes
    for agent, size in enumerate(np.asarray(data.train.size)):
        rows = min(int(size), left)
        parts.append(
            {
                name: np.asarray(leaf[agent, :rows])
                for name, leaf in data.train.examples.items()
            }
        )
        left -= rows
        if not left:
            break
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
