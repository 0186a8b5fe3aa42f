"""Five agents with quadratic losses in three dimensions, in float64.

The problem of the published iterates: `f_i = ||A_i x - b_i||^2 / 2`, full gradients, a
ring of five agents with a chord.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import p2pjax as pj
from p2pjax.datasets import stacking
from p2pjax.training.agent_loop import VMAP
from p2pjax.types import Algorithm, FederatedData, Key, PyTree, Ratio, Variables

FOLDER = Path(__file__).parents[2] / "tests" / "vectors"


def vectors(name: str) -> dict[str, Any]:
    """Published numbers, by the name of their file.

    Args:
      name: such as "step_baselines".

    Example:
      >>> sorted(vectors("step_baselines"))[0]
      'methods'
    """
    return json.loads((FOLDER / f"{name}.json").read_text())


PROBLEM = vectors("step_baselines")["problem"]
A, B = np.array(PROBLEM["A"], float), np.array(PROBLEM["b"], float)
START = np.array(PROBLEM["x0"], float)  # [5, 3], of which all rows are equal
DISTINCT = np.array(PROBLEM["x0_distinct"], float)
EDGES = [tuple(edge) for edge in PROBLEM["edges"]]
MATRIX = np.array(PROBLEM["W_metropolis"])
RATE = PROBLEM["eta"]
SIZE = len(A)
NUM_ROUNDS = 10
SAID = "quadratics, 5 agents, 3 dimensions"


def task(parts: tuple[int, ...] = (3,)) -> pj.Task:
    """Half the squared distance; the coordinates are leaves of these lengths.

    Args:
      parts: lengths that sum to 3.

    Example:
      >>> sorted(task((2, 1)).init(jax.random.key(0)).params)
      ['x0', 'x1']
    """
    names = [f"x{number}" for number in range(len(parts))]

    def loss_fn(
        variables: Variables, batch: PyTree, key: Key | None
    ) -> tuple[jax.Array, PyTree]:
        del key
        x = jnp.concatenate([variables.params[name] for name in names])
        valid = batch["valid"].astype(x.dtype)
        rest = jnp.einsum("eij,j->ei", batch["a"], x) - batch["b"]
        losses = jnp.square(rest).sum(1) / 2
        return (losses * valid).sum() / jnp.maximum(valid.sum(), 1), variables.stats

    def evaluate_fn(variables: Variables, batch: PyTree) -> dict[str, Ratio]:
        return {"loss": Ratio(loss_fn(variables, batch, None)[0], jnp.ones(()))}

    def init_fn(key: Key) -> Variables:
        del key
        cut = np.split(START[0], np.cumsum(parts)[:-1])
        return Variables(
            {n: jnp.asarray(c) for n, c in zip(names, cut, strict=True)}, {}
        )

    return pj.Task(init_fn, loss_fn, evaluate_fn)


def world(times: int = 1) -> FederatedData:
    """So many examples of each agent, each of which is its whole problem.

    Args:
      times: examples of each agent.

    Example:
      >>> world().train.size.tolist()
      [1, 1, 1, 1, 1]
    """
    agents = [
        {"a": np.tile(a, (times, 1, 1)), "b": np.tile(b, (times, 1))}
        for a, b in zip(A, B, strict=True)
    ]
    split = stacking.stack_agents(agents)
    return FederatedData(split, split, split, np.zeros(SIZE, np.int32))


def method(name: str, *args: Any, rate: float = RATE, **options: Any) -> Algorithm:
    """The method of this name on the quadratics, with plain SGD if not said otherwise.

    Args:
      name: one of `pj.METHODS`.
      *args: after task and optimizer, such as a graph.
      rate: of SGD.
      **options: of the method, or another `optimizer` or `task`.

    Example:
      >>> method("local_only").round_is
      '1 local epoch of each agent'
    """
    optimizer = options.pop("optimizer", optax.sgd(rate))
    learned = options.pop("task", None) or task()
    options = {"batch_size": 1, "agent_loop": VMAP} | options
    return getattr(pj, name)(learned, optimizer, *args, **options)


def rounds(
    algorithm: Algorithm,
    num_rounds: int = NUM_ROUNDS,
    *,
    start: np.ndarray | None = None,
    inputs: PyTree = None,
    data: FederatedData | None = None,
    begin: Callable[[Any], Any] | None = None,
) -> list[Any]:
    """States after each round.

    Args:
      algorithm: of this world.
      num_rounds: R.
      start: `[5, 3]` models that agents begin with; None for the task's own.
      inputs: those of its plan, leaves `[R, ...]`; None plans them.
      data: of the agents; None is `world()`.
      begin: changes the first state.

    Example:
      >>> len(rounds(method("local_only"), 2))
      2
    """
    data = jax.tree.map(jnp.asarray, world() if data is None else data)
    if inputs is None:
        inputs = algorithm.plan(np.random.default_rng(0), data, num_rounds)
    state = algorithm.init(jax.random.key(0), data)
    if start is not None:
        state = state._replace(variables=Variables({"x0": jnp.asarray(start)}, {}))
    if begin is not None:
        state = begin(state)
    step = jax.jit(
        algorithm.round, compiler_options={"xla_backend_optimization_level": 0}
    )
    found = []
    for t in range(num_rounds):
        one = jax.tree.map(lambda leaf, t=t: jnp.asarray(leaf[t]), inputs)
        key = jax.random.fold_in(jax.random.key(1), t)
        state, _ = step(key, jnp.int32(t), one, state, data)
        found.append(state)
    return found


def iterates(algorithm: Algorithm, num_rounds: int = NUM_ROUNDS, **given: Any) -> Any:
    """Models after each round, `[R, 5, 3]`.

    Args:
      algorithm: of this world.
      num_rounds: R.
      **given: see `rounds`.

    Example:
      >>> iterates(method("local_only"), 2).shape
      (2, 5, 3)
    """
    found = rounds(algorithm, num_rounds, **given)
    return np.stack(
        [np.asarray(algorithm.models(state).reported.params["x0"]) for state in found]
    )
