"""One global merge: all agents take the exact mean of their models, once or seldom.

Zhu et al. (2026) find that decentralized training with little communication keeps
models mergeable: their mean is far better than the models are.
"""

import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.evaluation.pooled import on_pooled_test_set
from p2pjax.evaluation.test_sets import SCORES
from p2pjax.tasks.task import Task
from p2pjax.training.agent_loop import AUTO
from p2pjax.training.batch_statistics import (
    check_statistics,
    has_statistics,
    recomputed_statistics,
)
from p2pjax.training.samplers import check_batch_size
from p2pjax.types import (
    Algorithm,
    Array,
    FederatedData,
    Info,
    InputError,
    Key,
    Models,
    PyTree,
    Variables,
    num_agents,
)

# What else a state may hold that still has to do with models before the merge.
_WAITING = ("pending", "decoded", "before", "merging", "reference", "received", "best")


class MergeInputs(NamedTuple):
    """Of every round; leaves `[R, ...]`."""

    inputs: PyTree  # of the method
    merges: Array  # [R] bool: whether all agents merge after the round


def global_merge(
    method: Algorithm,
    task: Task,
    *,
    rounds: Sequence[int] | None = None,
    batch_size: int = 32,
    cost: Literal["all_reduce", "broadcast"] = "all_reduce",
    score_merge: bool = True,
    agent_loop: int = AUTO,
) -> Algorithm:
    """The method, after which all agents take the exact mean of their parameters.

    After Zhu et al. (2026). All agents count the same, push-sum weights aside. Batch
    norms then get statistics of one pass over the agents' own training data: they are
    not averaged. Every evaluation also tells `pooled_accuracy`, of each agent's model
    on the test examples of all agents, `merged_accuracy`, what it would be if they
    merged now, and `merge_gain`, the difference; `[N]` each, of all scores of a task.

    Args:
      method: any whose state is the agents' models, without attackers.
      task: the same as the method's.
      rounds: after which agents merge, counted from 1; None for the last one, () for
        never, where only the scores are wanted.
      batch_size: B, of the passes for batch norm.
      cost: "all_reduce" counts 2 (N - 1) messages of an N-th of a model for each agent,
        as in a ring; "broadcast" N - 1 messages of a model.
      score_merge: whether to tell the scores above; their time grows with N squared.
      agent_loop: see `agent_loop.map_agents`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.dirichlet(0.3))
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.epidemic(task, optax.sgd(0.1), batch_size=32, num_peers=1)
      >>> pj.global_merge(method, task).round_is
      'a network epoch: ...; all agents take the mean after the last round'
    """
    check_batch_size(batch_size)
    check_statistics(task)
    if cost not in ("all_reduce", "broadcast"):
        raise InputError(f"Need a cost of all_reduce or broadcast, got {cost}.")
    if rounds is not None and any(
        not isinstance(number, int | np.integer) or number < 1 for number in rounds
    ):
        raise InputError(
            f"Need rounds counted from 1 after which agents merge, got {rounds}."
        )

    def merged(
        key: Key, variables: Variables, data: FederatedData, weight: Array | None = None
    ) -> Variables:
        def mean(leaf: Array) -> Array:
            if weight is None:
                return jnp.broadcast_to(leaf.mean(0), leaf.shape)
            share = (weight / weight.sum()).astype(leaf.dtype)
            return jnp.broadcast_to(jnp.tensordot(share, leaf, 1), leaf.shape)

        variables = variables._replace(params=jax.tree.map(mean, variables.params))
        return recomputed_statistics(
            task, key, variables, data.train, batch_size, agent_loop
        )

    def init_fn(key: Key, data: FederatedData) -> PyTree:
        state = method.init(key, data)
        _check_honest(jax.eval_shape(method.models, state))
        if rounds is None or len(rounds):
            _check_state(state, num_agents(data))
        return state

    def plan_fn(
        rng: np.random.Generator, data: FederatedData, num_rounds: int
    ) -> MergeInputs:
        at = [num_rounds] if rounds is None else list(rounds)
        if at and min(at) > num_rounds:
            warnings.warn(
                f"Agents never merge in {num_rounds} rounds: they would first after "
                f"round {min(at)}.",
                stacklevel=2,
            )
        merges = np.isin(np.arange(1, num_rounds + 1), at)
        return MergeInputs(method.plan(rng, data, num_rounds), merges)

    def round_fn(
        key: Key, t: Array, inputs: MergeInputs, state: PyTree, data: FederatedData
    ) -> tuple[PyTree, Info]:
        state, info = method.round(key, t, inputs.inputs, state, data)
        if rounds is not None and not len(rounds):
            return state, info

        def merge(variables: Variables) -> Variables:
            return merged(jax.random.fold_in(key, 2), variables, data, info.weight)

        variables = jax.lax.cond(
            inputs.merges, merge, lambda variables: variables, state.variables
        )
        return state._replace(variables=variables), _with_cost(
            info, inputs.merges, variables.params, cost
        )

    def evaluate_fn(models: Models, data: FederatedData) -> dict[str, Array]:
        values = method.evaluate(models, data)
        if not score_merge:
            return values
        reported = models.reported
        together = merged(jax.random.key(0), reported, data)
        is_same = not has_statistics(task, reported) and not reported.stats
        pooled, best = (
            on_pooled_test_set(
                task,
                some,
                data,
                is_same=is_same and some is together,
                agent_loop=agent_loop,
            )
            for some in (reported, together)
        )
        for name in pooled:
            values |= {f"pooled_{name}": pooled[name], f"merged_{name}": best[name]}
        score = next((name for name in SCORES if name in pooled), None)
        if score is not None:
            values |= {"merge_gain": best[score] - pooled[score]}
        return values

    when = "the last round" if rounds is None else f"rounds {tuple(rounds)}"
    is_never = rounds is not None and not len(rounds)
    return method._replace(
        init=init_fn,
        plan=plan_fn,
        round=round_fn,
        evaluate=evaluate_fn,
        round_is=method.round_is
        + ("" if is_never else f"; all agents take the mean after {when}"),
    )


def _with_cost(info: Info, merges: Array, params: PyTree, cost: str) -> Info:
    """What a round reports with the messages of the merge."""
    leaves = jax.tree.leaves(params)
    size = leaves[0].shape[0]
    number = sum(leaf[0].size for leaf in leaves)
    messages, numbers = size - 1, (size - 1) * number
    if cost == "all_reduce":
        messages, numbers = 2 * (size - 1), 2 * (size - 1) / size * number
    times = jnp.asarray(merges, jnp.float32)
    info = info._replace(
        sent=info.sent + times * messages,
        received=info.received + times * messages,
        payload=info.payload + times * numbers,
    )
    if info.bytes is not None:
        info = info._replace(bytes=info.bytes + times * 4 * numbers)
    return info


def _check_state(state: PyTree, size: int) -> None:
    variables = getattr(state, "variables", None)
    leaves = jax.tree.leaves(variables)
    if (
        not isinstance(variables, Variables)
        or not hasattr(state, "_replace")
        or any(leaf.shape[:1] != (size,) for leaf in leaves)
        or jax.tree.leaves(getattr(state, "versions", ()))  # of leaves, by cluster
    ):
        raise InputError(
            "Need a method whose state is one model of each agent to merge them, got "
            f"{type(state).__name__}: use rounds=() to score the mean only."
        )
    waiting = [name for name in _WAITING if jax.tree.leaves(getattr(state, name, ()))]
    if waiting:
        raise InputError(
            "Need a method that keeps nothing of the models before a merge, got one "
            f"with {', '.join(waiting)}: use score_before=False, no compression of "
            "what is kept, or rounds=() to score the mean only."
        )


def _check_honest(models: Models) -> None:
    if models.is_byzantine is not None:
        raise InputError(
            "Need honest agents for a global merge, whose mean anyone can spoil, got "
            "an attack: merge methods without one."
        )
