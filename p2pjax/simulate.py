"""The simulation: a scan of rounds under one jit, evaluated every few rounds."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.algorithms.base import Algorithm
from p2pjax.data import World, whole_set
from p2pjax.sharding import place
from p2pjax.task_groups import Group, of_task
from p2pjax.tasks import Task
from p2pjax.training import IN_PLACE, VMAP, map_agents
from p2pjax.types import Array, Info, InputError, Key, PyTree, Variables

# (models of all agents, world) -> named values, [N] per agent or any other shape
Evaluate = Callable[[Variables, World], dict[str, Array]]


class Snapshot(NamedTuple):
    """Where a simulation stands after an evaluation."""

    num_rounds: int  # done so far
    state: PyTree  # valid until the next snapshot is asked for: it is donated
    metrics: dict[str, np.ndarray]
    info: Info  # of every round since the last snapshot, leaves [rounds, N]


def simulate(
    key: Key,
    algorithm: Algorithm,
    world: World,
    num_rounds: int,
    *,
    eval_every: int,
    evaluate: Evaluate,
    first_round: int = 0,
    state: PyTree | None = None,
) -> Iterator[Snapshot]:
    """Runs an algorithm and yields after every evaluation.

    The rounds between two evaluations are one compiled scan with donated state. Calls
    with the same `algorithm` and `evaluate` objects and the same shapes share their
    compiled program. Keys of a round depend on `key` and the round's number only, so
    `eval_every` changes nothing but what is reported, and a run that goes on from the
    `state` it had before `first_round` ends as if it had never stopped.
    """
    if num_rounds < 1 or eval_every < 1:
        raise InputError(
            f"Need at least one round and eval_every of 1 or more, got {num_rounds} "
            f"rounds and eval_every {eval_every}."
        )
    _, key_plan, key_rounds = jax.random.split(key, 3)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key_plan)))
    inputs = algorithm.plan(rng, world, num_rounds)
    world = place(world)
    state = initial_state(key, algorithm, world) if state is None else state
    for start in range(first_round, num_rounds, eval_every):
        stop = min(start + eval_every, num_rounds)
        rounds = np.arange(start, stop, dtype=np.int32)
        chunk = jax.tree.map(lambda leaf: leaf[start:stop], inputs)  # noqa: B023
        state, info, metrics = _advance(
            key_rounds, rounds, chunk, state, world, algorithm, evaluate
        )
        yield Snapshot(stop, state, *jax.tree.map(np.asarray, (metrics, info)))


def initial_state(key: Key, algorithm: Algorithm, world: World) -> PyTree:
    """The state in which `simulate` starts."""
    key_init, _, _ = jax.random.split(key, 3)
    return place(_init(key_init, place(world), algorithm))


@partial(jax.jit, static_argnames=("algorithm",))
def _init(key: Key, world: World, algorithm: Algorithm) -> PyTree:
    return algorithm.init(key, world)


@partial(jax.jit, static_argnames=("algorithm", "evaluate"), donate_argnames=("state",))
def _advance(
    key: Key,
    rounds: Array,
    inputs: PyTree,
    state: PyTree,
    world: World,
    algorithm: Algorithm,
    evaluate: Evaluate,
) -> tuple[PyTree, Info, dict[str, Array]]:
    def one_round(state: PyTree, scanned: PyTree) -> tuple[PyTree, Info]:
        t, inputs = scanned
        return algorithm.round(jax.random.fold_in(key, t), t, inputs, state, world)

    state, info = jax.lax.scan(one_round, state, (rounds, inputs))
    return state, info, evaluate(algorithm.models(state), world)


def on_test_sets(task: Task, agent_loop: int = IN_PLACE) -> Evaluate:
    """Means of the task's metrics over every agent's own test set, `[N]` each."""

    def evaluate_fn(models: Variables, world: World) -> dict[str, Array]:
        def one_agent(_: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
            variables, examples, size = inputs
            sums = task.evaluate(variables, whole_set(examples, size))
            return (), {name: total / weight for name, (total, weight) in sums.items()}

        inputs = (models, world.test.examples, world.test.size)
        return map_agents(one_agent, agent_loop)((), inputs)[1]

    return evaluate_fn


def on_test_sets_of_groups(
    groups: Sequence[Group], scores: Sequence[str], agent_loop: int = IN_PLACE
) -> Evaluate:
    """Every agent's score and loss on its own test set, `[N]` each.

    The score is called `accuracy`, whatever it is; NaN if it is not defined.

    Args:
      groups: who has which task.
      scores: the metric of each task that is its score.
      agent_loop: `VMAP` takes all agents of a task in one batch, any other number one
        after the other.
    """

    def evaluate_fn(models: Variables, world: World) -> dict[str, Array]:
        values = []
        for number, group in enumerate(groups):

            def one_agent(
                at: Array, number: int = number, group: Group = group
            ) -> dict[str, Array]:
                variables, test = of_task(
                    lambda leaf, first: jnp.asarray(leaf)[at - first],
                    (models, world.test),
                    number,
                    group.start,
                )
                batch = whole_set(test.examples, test.size)
                sums = group.task.evaluate(variables, batch)
                means = {name: total / weight for name, (total, weight) in sums.items()}
                return {"accuracy": means[scores[number]], "loss": means["loss"]}

            agents = jnp.arange(group.start, group.stop, dtype=jnp.int32)
            if agent_loop == VMAP:
                values.append(jax.vmap(one_agent)(agents))
            else:
                values.append(jax.lax.map(one_agent, agents))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *values)

    return evaluate_fn
