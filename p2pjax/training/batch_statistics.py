"""Batch-norm statistics of given parameters, anew from the agents' own data."""

import jax
import jax.numpy as jnp

from p2pjax.paths import is_inside, leaves_with_paths
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.training.learner import Learner, StepContext
from p2pjax.training.local_training import own_steps
from p2pjax.training.samplers import steps_per_epoch
from p2pjax.types import Array, Batch, InputError, Key, PyTree, Split, Variables

STATISTICS = "batch_stats"
RUNNING_MEANS = ("mean", "var")  # what statistics of a layer are called
SLOWEST = 1e-6  # part of a running mean that a batch must have


def recomputed_statistics(
    task: Task,
    key: Key,
    variables: Variables,
    data: Split,
    batch_size: int,
    agent_loop: int,
) -> Variables:
    """Models whose batch norms have the means of one pass over the agents' own data.

    Running means remember what came before; these do not. A layer moves its running
    mean r to `m r + (1 - m) b` with the statistic b of a batch, so two forward passes,
    with r = 0 and r = 1, tell b. Only running means `mean` and `var` are such.

    Args:
      task: what each agent learns; `Task.norm` says which layers normalise.
      key: of what is random in training mode.
      variables: leaves `[N, ...]`.
      data: training data of all agents.
      batch_size: B.
      agent_loop: see `agent_loop.map_agents`.
    """
    if not has_statistics(task, variables):
        return variables

    def statistics_of(
        key: Key, variables: Variables, batch: Batch, value: float
    ) -> PyTree:
        """What the layers have after a batch, of which all was `value` before."""
        before = jax.tree.map(
            lambda leaf: (
                jnp.full_like(leaf, value)
                if jnp.issubdtype(leaf.dtype, jnp.floating)
                else leaf
            ),
            variables.stats[STATISTICS],
        )
        stats = {**variables.stats, STATISTICS: before}
        return task.loss(variables._replace(stats=stats), batch, key)[1][STATISTICS]

    def step_fn(
        key: Key,
        variables: Variables,
        total: PyTree,
        batch: Batch,
        context: StepContext,
    ) -> tuple[Variables, PyTree, Array]:
        del context
        zero, one = (statistics_of(key, variables, batch, v) for v in (0.0, 1.0))

        def of_batch(total: Array, old: Array, low: Array, high: Array) -> Array:
            part = 1 - (high - low)  # 1 - m
            moves = part > SLOWEST
            return total + jnp.where(moves, low / jnp.where(moves, part, 1), old)

        return (
            variables,
            _over_norms(task, of_batch, total, variables.stats[STATISTICS], zero, one),
            jnp.zeros(()),
        )

    def zeros(variables: Variables) -> PyTree:
        return jax.tree.map(jnp.zeros_like, variables.stats[STATISTICS])

    learner = Learner(zeros, step_fn)
    sizes = jnp.asarray(data.size)
    num_steps = steps_per_epoch(sizes, batch_size)
    train = own_steps(learner, batch_size, agent_loop)
    _, total, _ = train(
        key, jnp.zeros_like(num_steps), num_steps, variables, zeros(variables), data
    )

    def mean(total: Array, old: Array) -> Array:
        number = num_steps.astype(total.dtype)
        number = number.reshape((-1,) + (1,) * (total.ndim - 1))
        return jnp.where(number > 0, total / jnp.maximum(number, 1), old)

    old = variables.stats[STATISTICS]
    found = _over_norms(task, mean, total, old, keep=old)
    return variables._replace(stats={**variables.stats, STATISTICS: found})


def has_statistics(task: Task, variables: Variables) -> bool:
    """Whether normalisation layers have statistics.

    Args:
      task: whose network it is.
      variables: of one agent or of all.
    """
    paths = leaves_with_paths(variables.stats.get(STATISTICS, {}))
    return any(_is_norm(task, path, leaf) for path, leaf in paths)


def check_statistics(task: Task) -> None:
    """Refuses networks with statistics that cannot be computed anew.

    Args:
      task: whose network it is.
    """
    paths = leaves_with_paths(shapes_of(task).stats.get(STATISTICS, {}))
    others = [path for path, leaf in paths if not _is_norm(task, path, leaf)]
    if others:
        raise InputError(
            "Need batch statistics that are the `mean` and `var` of batch norms, to "
            f"compute them anew for merged models, got {', '.join(others)}: use "
            "another normalisation."
        )


def _is_norm(task: Task, path: str, leaf: Array) -> bool:
    return (
        is_inside(path, task.norm)
        and path.rpartition("/")[2] in RUNNING_MEANS
        and jnp.issubdtype(leaf.dtype, jnp.floating)
    )


def _over_norms(task: Task, fn, first: PyTree, *others: PyTree, keep=None) -> PyTree:
    """`fn` of statistics of normalisations; else leaves of `keep`, or the first."""
    paths = [path for path, _ in leaves_with_paths(first)]
    columns = [jax.tree.leaves(tree) for tree in (first, *others)]
    kept = jax.tree.leaves(first if keep is None else keep)
    found = [
        fn(*leaves) if _is_norm(task, path, leaves[0]) else old
        for path, old, *leaves in zip(paths, kept, *columns, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(first), found)
