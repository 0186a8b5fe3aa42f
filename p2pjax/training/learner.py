"""How ONE agent learns from a batch.

Nothing here assumes gradients: `gradient_descent` is one learner among others.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from p2pjax.paths import is_inside, leaves_with_paths
from p2pjax.tasks.task import Task
from p2pjax.types import Array, Batch, InputError, Key, PyTree, Variables


class Penalty(NamedTuple):
    """Adds `sum(curvature * w**2 / 2 - pull * w)` to the loss of parameters w.

    Up to a constant that is `sum(curvature * (w - anchor)**2) / 2` where the pull is
    curvature times anchor; sums of such penalties are one again. Both trees are those
    of the parameters, a leaf may be one number for all.
    """

    curvature: PyTree
    pull: PyTree


class StepContext(NamedTuple):
    """What else a step of one agent may depend on; None where unused."""

    update_scale: Array | None = None  # factor of this agent's updates
    frozen: Mapping[str, Array] | None = None  # groups of the parameters that stay
    penalty: Penalty | None = None  # part of what is minimised, not of the loss told
    num_examples: Array | None = None  # that it learns from; the agent loop says so
    order_seed: Array | None = None  # of the order of its batches, likewise
    is_byzantine: Array | None = None  # whether it learns from poisoned batches
    rates: PyTree = None  # factors of its updates, a tree as the parameters
    present: PyTree | None = None  # bool, parameters that it has; others stay


class Learner(NamedTuple):
    """Local learning of ONE agent.

    A learner that descends along a gradient also gives its two halves, for methods that
    exchange gradients or ask for them; others leave them None.

    Example:
      >>> import p2pjax as pj
      >>> def step(key, variables, state, batch, context):
      ...     return variables, state, jnp.zeros(())  # learns nothing
      >>> idle = pj.Learner(lambda variables: (), step)
      >>> task = pj.classification(pj.nn.MLP((4, 2)), (3,))
      >>> pj.local_only(task, idle, batch_size=8).round_is
      '1 local epoch of each agent'
    """

    init: Callable[[Variables], PyTree]
    step: Callable[
        [Key, Variables, PyTree, Batch, StepContext], tuple[Variables, PyTree, Array]
    ]
    # (key, variables, batch, context) -> (loss, new statistics, gradient)
    gradient: Callable[..., tuple[Array, PyTree, PyTree]] | None = None
    # (variables, gradient, optimizer state, context) -> (updates, optimizer state)
    update: Callable[..., tuple[PyTree, PyTree]] | None = None


# Parameters -> the name of each leaf's group, a tree of strings of the same structure.
LabelFn = Callable[[PyTree], PyTree]


def as_learner(
    task: Task,
    optimizer: Learner | optax.GradientTransformation,
    labels: LabelFn | None = None,
) -> Learner:
    """The learner itself, or gradient descent with an optimizer of optax.

    Args:
      task: what the agent learns.
      optimizer: of optax, or a learner.
      labels: see `gradient_descent`.

    >>> import optax
    >>> from p2pjax.nn.mlp import MLP
    >>> from p2pjax.tasks._classification import classification
    >>> from p2pjax.tasks.losses import softmax_cross_entropy
    >>> task = classification(MLP((4, 2)), (3,), softmax_cross_entropy)
    >>> learner = as_learner(task, optax.sgd(0.1))
    """
    if isinstance(optimizer, Learner):
        return optimizer
    if callable(getattr(optimizer, "init", None)) and callable(
        getattr(optimizer, "update", None)
    ):
        return gradient_descent(task, optimizer, labels)
    raise InputError(
        "Need an optimizer of optax, such as optax.sgd(0.1), or a Learner, got "
        f"{type(optimizer).__name__}."
    )


def gradient_descent(
    task: Task,
    optimizer: optax.GradientTransformation,
    labels: LabelFn | None = None,
) -> Learner:
    """One optimizer step on the mean loss of the batch.

    Args:
      task: what the agent learns.
      optimizer: of optax, taken as it is; it may promote dtypes.
      labels: names groups of parameters, each of which then has an optimizer state of
        its own. A group in `StepContext.frozen` changes neither its values nor what
        the optimizer remembers of it; what the loss itself keeps up to date, such as
        batch-norm statistics, goes on. None: one group, which cannot be frozen.

    Returns:
      A `Learner`, with its gradient and its update.

    Example:
      >>> import p2pjax as pj
      >>> task = pj.classification(pj.nn.MLP((4, 2)), (3,))
      >>> learner = pj.gradient_descent(task, optax.sgd(0.1, momentum=0.9))
      >>> models = jax.eval_shape(task.init, jax.random.key(0))
      >>> state = jax.eval_shape(learner.init, models)
      >>> sum(leaf.size for leaf in jax.tree.leaves(state))  # a momentum per parameter
      26
    """
    if labels is not None:
        optimizer = per_group_state(optimizer, labels)

    def init_fn(variables: Variables) -> PyTree:
        return initial_opt_state(optimizer, variables.params)

    def gradient_fn(
        key: Key, variables: Variables, batch: Batch, context: StepContext
    ) -> tuple[Array, PyTree, PyTree]:
        def loss_of(params: PyTree) -> tuple[Array, PyTree]:
            return task.loss(variables._replace(params=params), batch, key)

        (loss, stats), gradient = jax.value_and_grad(loss_of, has_aux=True)(
            variables.params
        )
        if context.penalty is not None:
            gradient = jax.tree.map(
                lambda g, w, curvature, pull: g + (curvature * w - pull),
                gradient,
                variables.params,
                *context.penalty,
            )
        return loss, stats, _of_present(context, gradient)

    def update_fn(
        variables: Variables, gradient: PyTree, opt_state: PyTree, context: StepContext
    ) -> tuple[PyTree, PyTree]:
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(gradient, opt_state, variables.params)
        if context.update_scale is not None:
            scale = context.update_scale
            updates = jax.tree.map(lambda u: u * scale.astype(u.dtype), updates)
        if context.rates is not None:
            updates = jax.tree.map(
                lambda u, rate: u * rate.astype(u.dtype), updates, context.rates
            )
        return _of_present(context, updates), opt_state

    def step_fn(
        key: Key,
        variables: Variables,
        opt_state: PyTree,
        batch: Batch,
        context: StepContext,
    ) -> tuple[Variables, PyTree, Array]:
        loss, stats, gradient = gradient_fn(key, variables, batch, context)
        updates, new_state = update_fn(variables, gradient, opt_state, context)
        params = optax.apply_updates(variables.params, updates)
        if context.frozen is not None:
            if labels is None:
                raise InputError(
                    "Need a learner with groups of parameters to freeze some of them: "
                    "give the method an optimizer of optax instead of a learner."
                )
            names = labels(variables.params)
            unknown = set(context.frozen) - set(new_state)
            if unknown:
                raise InputError(
                    f"Need groups to freeze among {', '.join(sorted(new_state))}, got "
                    f"{', '.join(sorted(unknown))}: name the learner's groups so."
                )
            params = _keep_frozen(context.frozen, names, variables.params, params)
            new_state = {
                name: _where(context.frozen[name], opt_state[name], state)
                if name in context.frozen
                else state
                for name, state in new_state.items()
            }
        return Variables(params, stats), new_state, loss

    return Learner(init_fn, step_fn, gradient_fn, update_fn)


def initial_opt_state(
    optimizer: optax.GradientTransformation, params: PyTree
) -> PyTree:
    """What an optimizer remembers at first, no array of it twice or a parameter's.

    Some keep the parameters themselves; a state with one array twice cannot be donated.

    Args:
      optimizer: of optax, which may promote dtypes.
      params: what it will optimize.
    """
    with jax.numpy_dtype_promotion("standard"):
        state = optimizer.init(params)
    seen = {id(leaf) for leaf in jax.tree.leaves(params)}

    def own(leaf: Array) -> Array:
        if id(leaf) in seen:
            return jnp.copy(leaf)
        seen.add(id(leaf))
        return leaf

    return jax.tree.map(own, state)


def proximal(penalty_weight: float, anchor: PyTree) -> Penalty:
    """`penalty_weight / 2` times the squared distance of parameters to an anchor.

    Args:
      penalty_weight: 0 or more.
      anchor: of each agent's parameters, leaves `[N, ...]`.
    """
    return Penalty(
        jax.tree.map(lambda w: jnp.full(w.shape[0], penalty_weight, w.dtype), anchor),
        jax.tree.map(lambda w: penalty_weight * w, anchor),
    )


def check_penalty_weight(penalty_weight: float) -> None:
    """Refuses a weight that is negative, infinite or not a number."""
    if not 0 <= penalty_weight < float("inf"):
        raise InputError(f"Need a penalty_weight of 0 or more, got {penalty_weight}.")


def per_group_state(
    optimizer: optax.GradientTransformation, labels: LabelFn
) -> optax.GradientTransformation:
    """Keeps the optimizer state of every group of parameters on its own.

    So the steps of a group that is frozen for a while are not counted. Optimizers that
    look at all parameters together (clipping by the global norm) see one group each.
    The state is a dict with a state for each group, whose trees are dicts of paths.
    """

    def grouped(tree: PyTree, names: PyTree) -> dict[str, dict[str, Array]]:
        groups: dict[str, dict[str, Array]] = {}
        for (path, leaf), name in zip(
            leaves_with_paths(tree), jax.tree.leaves(names), strict=True
        ):
            groups.setdefault(name, {})[path] = leaf
        return groups

    def init_fn(params: PyTree) -> PyTree:
        groups = grouped(params, labels(params))
        return {name: optimizer.init(group) for name, group in groups.items()}

    def update_fn(
        updates: PyTree, state: PyTree, params: PyTree | None = None
    ) -> tuple[PyTree, PyTree]:
        names = labels(updates)
        weights = None if params is None else grouped(params, names)
        found, new_state = {}, {}
        for name, group in grouped(updates, names).items():
            done, new_state[name] = optimizer.update(
                group, state[name], None if weights is None else weights[name]
            )
            found.update(done)
        leaves = [found[path] for path, _ in leaves_with_paths(updates)]
        return jax.tree.unflatten(jax.tree.structure(updates), leaves), new_state

    return optax.GradientTransformation(init_fn, update_fn)


def by_top_level(params: PyTree) -> PyTree:
    """A `LabelFn`: the top-level names of the parameters are their groups."""
    return {
        name: jax.tree.map(lambda _, name=name: name, part)
        for name, part in params.items()
    }


def norm_and_rest(norm: Collection[str]) -> LabelFn:
    """A `LabelFn`: `norm` for parameters of normalisation layers, else `rest`.

    Args:
      norm: paths of the layers, `Task.norm`.
    """

    def labels_fn(params: PyTree) -> PyTree:
        names = [
            "norm" if is_inside(path, norm) else "rest"
            for path, _ in leaves_with_paths(params)
        ]
        return jax.tree.unflatten(jax.tree.structure(params), names)

    return labels_fn


def _keep_frozen(
    frozen: Mapping[str, Array], names: PyTree, old: PyTree, new: PyTree
) -> PyTree:
    return jax.tree.map(
        lambda name, before, after: (
            jnp.where(frozen[name], before, after) if name in frozen else after
        ),
        names,
        old,
        new,
    )


def _of_present(context: StepContext, changes: PyTree) -> PyTree:
    """Changes of the parameters that the agent has, and of no other."""
    if context.present is None:
        return changes
    return jax.tree.map(lambda c, has: jnp.where(has, c, 0), changes, context.present)


def _where(condition: Array, one: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def per_sample(learner: Learner) -> Learner:
    """Takes the examples of a batch one after the other, a step each.

    This is what a mini-batch means in Bouchra Pilet, Frey and Taiani (2021),
    https://hal.science/hal-02373338. Networks with batch statistics are refused: the
    statistics of one example mean nothing.

    Args:
      learner: of batches of any size.

    Example:
      >>> import p2pjax as pj
      >>> task = pj.classification(pj.nn.MLP((4, 2)), (3,))
      >>> learner = pj.per_sample(pj.gradient_descent(task, optax.sgd(0.1)))
      >>> pj.local_only(task, learner, batch_size=8).round_is
      '1 local epoch of each agent'
    """

    def init_fn(variables: Variables) -> PyTree:
        if jax.tree.leaves(variables.stats.get("batch_stats", ())):
            raise InputError(
                "Need a network without batch norm to learn from one example at a "
                "time, got one with batch statistics: use layer or group norm, or "
                "learn from mini-batches."
            )
        return learner.init(variables)

    def step_fn(
        key: Key,
        variables: Variables,
        opt_state: PyTree,
        batch: Batch,
        context: StepContext,
    ) -> tuple[Variables, PyTree, Array]:
        def one(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
            key, example = inputs
            single = jax.tree.map(lambda leaf: leaf[None], example)
            variables, opt_state = carry
            variables, opt_state, loss = learner.step(
                key, variables, opt_state, single, context
            )
            return (variables, opt_state), loss

        keys = jax.random.split(key, batch["valid"].shape[0])
        carry, losses = jax.lax.scan(one, (variables, opt_state), (keys, batch))
        return *carry, losses.mean()

    return Learner(init_fn, step_fn)
