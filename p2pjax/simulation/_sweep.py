"""One compiled program for many hyperparameters."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from p2pjax.simulation._history import History
from p2pjax.simulation._simulate import initial_state, prepare, snapshots
from p2pjax.types import Algorithm, Evaluate, FederatedData, InputError, Key, PyTree


class SweepRun(NamedTuple):
    """A run of a sweep."""

    hyperparameters: dict[str, float]
    run: int  # number of its key
    history: History


def sweep(
    keys: Key,
    method: Algorithm,
    data: FederatedData,
    hyperparameters: Mapping[str, Sequence[float]],
    num_rounds: int,
    *,
    eval_every: int = 1,
    evaluate: Evaluate | None = None,
) -> list[SweepRun]:
    """Runs a method with all combinations of hyperparameters, for each key.

    The optimizer has to be made by `optax.inject_hyperparams`, which keeps them in its
    state. There they are written, so all runs share one compiled program and go one
    after the other.

    Args:
      keys: of the runs, one or `[S]`.
      method: whose optimizer has injected hyperparameters.
      data: of all agents.
      hyperparameters: values of each name, such as `{"learning_rate": [0.1, 0.3]}`.
      num_rounds: of each run.
      eval_every: rounds between two evaluations.
      evaluate: what to measure; `method.evaluate` if not given.

    Returns:
      A run for each combination and key, in this order.

    Example:
      >>> import jax, optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> sgd = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
      >>> method = pj.local_only(task, sgd, batch_size=32)
      >>> rates = {"learning_rate": [0.01, 0.1]}
      >>> runs = pj.sweep(jax.random.key(0), method, data, rates, num_rounds=2)
      >>> [run.hyperparameters["learning_rate"] for run in runs]
      [0.01, 0.1]
    """
    evaluate = method.evaluate if evaluate is None else evaluate
    names = list(hyperparameters)
    if not names or not all(len(values) for values in hyperparameters.values()):
        raise InputError(
            "Need values of one hyperparameter or more to sweep over, got "
            f"{dict(hyperparameters)}."
        )
    runs = []
    for values in itertools.product(*hyperparameters.values()):
        chosen = dict(zip(names, map(float, values), strict=True))
        for number, key in enumerate(keys.reshape(-1)):
            start = prepare(key, method, data, num_rounds)
            state = initial_state(key, method, data)
            found = snapshots(
                start,
                method,
                num_rounds,
                eval_every=eval_every,
                evaluate=evaluate,
                state=with_hyperparameters(state, chosen),
            )
            runs.append(SweepRun(chosen, number, History(found)))
    return runs


def with_hyperparameters(state: PyTree, values: Mapping[str, float]) -> PyTree:
    """A state with other injected hyperparameters, in all optimizers that have them.

    Args:
      state: of a method.
      values: by name.
    """
    known: set[str] = set()
    scheduled: set[str] = set()

    def write(node: PyTree) -> PyTree:
        if not _is_injected(node):
            return node
        known.update(node.hyperparams)
        scheduled.update(getattr(node, "hyperparams_states", {}) or {})
        new = {
            name: jnp.full_like(old, values[name]) if name in values else old
            for name, old in node.hyperparams.items()
        }
        inner = jax.tree.map(write, node.inner_state, is_leaf=_is_injected)
        return node._replace(hyperparams=new, inner_state=inner)

    state = jax.tree.map(write, state, is_leaf=_is_injected)
    for name in values:
        if name in scheduled:
            raise InputError(
                f"Need a constant {name} to sweep over, got a schedule: give "
                "optax.inject_hyperparams a number."
            )
        if name not in known:
            raise InputError(
                "Need hyperparameters that the optimizer keeps in its state, "
                f"{', '.join(sorted(known)) or 'and it keeps none'}, got '{name}': "
                "make it by optax.inject_hyperparams."
            )
    return state


def _is_injected(node: PyTree) -> bool:
    return hasattr(node, "hyperparams") and hasattr(node, "inner_state")
