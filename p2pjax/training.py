"""Local learning: one agent's `Learner`, and the loop that runs it for all agents.

Nothing here assumes gradients: `gradient_descent` is one learner among others.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from p2pjax.data import AgentData, Sampler, take_batch
from p2pjax.sharding import over_devices
from p2pjax.tasks import Task
from p2pjax.types import Array, Batch, InputError, Key, PyTree, Variables

# The agent loop: how many agents advance side by side.
AUTO = -1  # whatever of the following suits the network and the machine
VMAP = 0  # all of them in one batched program: for accelerators
IN_PLACE = 1  # one after the other, each in cache, no second copy: for CPUs
CHUNK = 10  # so many at a time: for small networks on CPUs

# Steps per CPU second of one core, all of them SGD, with so many agents side by side:
#                                             kB       1      10      25     all
# MLP 64-32-10, one example a step            10    532k    958k   1018k    969k
# MLP 784-10, 10 examples                     31   26714   32281   33930   30594
# GRU 200 words, 16 units, 16 examples        34    3796    4719    4874    4819
# MLP 784-50-10, 10 examples                 159   13337   12930   13557   10093
# GRU 1000 words, 32 units, 16 examples      290    2443    2262    1947    2211
# MLP 784-300-100-10, 10 examples           1066    2698    1702    1178    1111
# CNN 4-8-16, 16 x 16 pixels, 10 examples      4   15178   15648   15820   15409
# CNN 6-16-120, 32 x 32 x 3, 10 examples     209     822     649     513     325
# XLA:CPU has no fast convolution of several agents; where they are matrix products
# (`models.pooled`), one agent at a time is about as fast or faster, as the CNNs above.
SMALL_BYTES = 64_000  # parameters of one agent up to which chunks are faster


def fastest_agent_loop(task: Task | None, backend: str | None = None) -> int:
    """The form of the agent loop that suits a network and the machine.

    Args:
      task: whose network it is; None if it is not known.
      backend: `cpu` or an accelerator; JAX's default one if not given.
    """
    if (backend or jax.default_backend()) != "cpu":
        return VMAP
    if task is None:
        return IN_PLACE
    return _fastest_on_cpu(jax.eval_shape(task.init, jax.random.key(0)).params)


def resolved(agent_loop: int, agents: PyTree) -> int:
    """The form that `AUTO` stands for; any other is what it is.

    Args:
      agent_loop: see `map_agents`.
      agents: what is mapped, leaves `[N, ...]`; the first `Variables` in it say which
        network it is.
    """
    if agent_loop != AUTO:
        return agent_loop
    if jax.default_backend() != "cpu":
        return VMAP

    nodes = jax.tree.leaves(agents, is_leaf=lambda node: isinstance(node, Variables))
    for node in nodes:
        if isinstance(node, Variables):
            return _fastest_on_cpu(jax.eval_shape(_first, node.params))
    return IN_PLACE


def _fastest_on_cpu(params: PyTree) -> int:
    leaves = jax.tree.leaves(params)
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    convolves = any(leaf.ndim == 4 for leaf in leaves)
    return CHUNK if num_bytes <= SMALL_BYTES and not convolves else IN_PLACE


class Penalty(NamedTuple):
    """Adds `sum(curvature * w**2 / 2 - pull * w)` to the loss of parameters w.

    Up to a constant that is `sum(curvature * (w - anchor)**2) / 2` where the pull is
    curvature times anchor; sums of such penalties are one again. Both trees are those
    of the parameters, a leaf may be one number for all.
    """

    curvature: PyTree
    pull: PyTree


class Extra(NamedTuple):
    """What else a step of one agent may depend on; None where unused."""

    rate: Array | None = None  # scales this agent's updates
    frozen: Mapping[str, Array] | None = None  # parts of the parameters that stay
    penalty: Penalty | None = None  # part of what is minimised, not of the loss told
    num_examples: Array | None = None  # that it learns from; the agent loop says so


class Learner(NamedTuple):
    """Local learning of ONE agent."""

    init: Callable[[Variables], PyTree]
    step: Callable[
        [Key, Variables, PyTree, Batch, Extra], tuple[Variables, PyTree, Array]
    ]


def gradient_descent(task: Task, optimizer: optax.GradientTransformation) -> Learner:
    """One optimizer step on the mean loss of the batch.

    Parts of the parameters (their top-level names) that `Extra.frozen` names change
    neither their values nor what the optimizer remembers of them; what the loss itself
    keeps up to date, such as batch-norm statistics, goes on. Use it with optimizers
    made by `by_part`.
    """

    def init_fn(variables: Variables) -> PyTree:
        return optimizer.init(variables.params)

    def step_fn(
        key: Key, variables: Variables, opt_state: PyTree, batch: Batch, extra: Extra
    ) -> tuple[Variables, PyTree, Array]:
        def loss_of(params: PyTree) -> tuple[Array, PyTree]:
            return task.loss(variables._replace(params=params), batch, key)

        (loss, stats), gradient = jax.value_and_grad(loss_of, has_aux=True)(
            variables.params
        )
        if extra.penalty is not None:
            gradient = jax.tree.map(
                lambda g, w, curvature, pull: g + (curvature * w - pull),
                gradient,
                variables.params,
                *extra.penalty,
            )
        updates, new_state = optimizer.update(gradient, opt_state, variables.params)
        if extra.rate is not None:
            rate = extra.rate
            updates = jax.tree.map(lambda u: u * rate.astype(u.dtype), updates)
        params = optax.apply_updates(variables.params, updates)
        if extra.frozen is not None:
            params = _keep(extra.frozen, variables.params, params)
            new_state = _keep(extra.frozen, opt_state, new_state)
        return Variables(params, stats), new_state, loss

    return Learner(init_fn, step_fn)


def proximal(strength: float, anchor: PyTree) -> Penalty:
    """`strength / 2` times the squared distance of every agent's parameters to its own.

    Args:
      strength: 0 or more.
      anchor: parameters, leaves `[N, ...]`.
    """
    return Penalty(
        jax.tree.map(lambda w: jnp.full(w.shape[0], strength, w.dtype), anchor),
        jax.tree.map(lambda w: strength * w, anchor),
    )


def by_part(
    optimizer: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Keeps the state of every top-level part of the parameters on its own.

    So the steps of a part that is frozen for a while are not counted. Optimizers that
    look at all parameters together (clipping by the global norm) see one part each.
    """

    def init_fn(params: PyTree) -> PyTree:
        return {name: optimizer.init(part) for name, part in params.items()}

    def update_fn(
        updates: PyTree, state: PyTree, params: PyTree | None = None
    ) -> tuple[PyTree, PyTree]:
        done = {
            name: optimizer.update(
                part, state[name], None if params is None else params[name]
            )
            for name, part in updates.items()
        }
        return (
            {name: update for name, (update, _) in done.items()},
            {name: state for name, (_, state) in done.items()},
        )

    return optax.GradientTransformation(init_fn, update_fn)


def _keep(frozen: Mapping[str, Array], old: PyTree, new: PyTree) -> PyTree:
    """The old values of frozen parts."""

    def part_of(name: str) -> PyTree:
        if name not in frozen:
            return new[name]
        return jax.tree.map(
            lambda before, after: jnp.where(frozen[name], before, after),
            old[name],
            new[name],
        )

    return {name: part_of(name) for name in new}


def per_sample(learner: Learner) -> Learner:
    """Takes the examples of a batch one after the other, a step each.

    This is what a mini-batch means in Pilet, Frey and Taiani (2021).
    """

    def step_fn(
        key: Key, variables: Variables, opt_state: PyTree, batch: Batch, extra: Extra
    ) -> tuple[Variables, PyTree, Array]:
        def one(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
            key, example = inputs
            single = jax.tree.map(lambda leaf: leaf[None], example)
            variables, opt_state = carry
            variables, opt_state, loss = learner.step(
                key, variables, opt_state, single, extra
            )
            return (variables, opt_state), loss

        keys = jax.random.split(key, batch["valid"].shape[0])
        carry, losses = jax.lax.scan(one, (variables, opt_state), (keys, batch))
        return *carry, losses.mean()

    return Learner(learner.init, step_fn)


def local_training(
    learner: Learner, sampler: Sampler, num_steps: int, agent_loop: int
) -> Callable[..., tuple[Variables, PyTree, Array]]:
    """Training of all agents on their own data.

    Returns:
      `train(key, first_step, variables, opt_state, data, extra)`, which lets every
      agent take `num_steps` steps and returns variables, optimizer states and mean
      losses `[N]`. `first_step` counts the steps taken before; leaves of `extra` are
      `[N, ...]`.
    """

    def train(
        key: Key,
        first_step: Array,
        variables: Variables,
        opt_state: PyTree,
        data: AgentData,
        extra: Extra = Extra(),
    ) -> tuple[Variables, PyTree, Array]:
        def one_agent(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Array]:
            key, examples, size, extra = inputs
            return take_steps(
                learner,
                sampler,
                key,
                examples,
                size,
                extra,
                carry,
                first_step,
                num_steps,
            )

        keys = jax.random.split(key, data.size.shape[0])
        carry, losses = map_agents(one_agent, agent_loop)(
            (variables, opt_state), (keys, data.examples, data.size, extra)
        )
        return *carry, losses

    return train


def take_steps(
    learner: Learner,
    sampler: Sampler,
    key: Key,
    examples: Mapping[str, Array],
    size: Array,
    extra: Extra,
    carry: tuple[Variables, PyTree],
    first_step: Array,
    num_steps: Array | int,
) -> tuple[tuple[Variables, PyTree], Array]:
    """`num_steps` steps of ONE agent, as many as its own data asks for if traced.

    Returns:
      Variables and optimizer state, and the mean loss.
    """

    def one_step(step: Array, state: PyTree) -> PyTree:
        (variables, opt_state), total, order = state
        key_sample, key_step = jax.random.split(jax.random.fold_in(key, step))
        number = first_step + step
        if jax.tree.leaves(order):
            order = jax.lax.cond(
                sampler.begins(number, size) & (step > 0),
                lambda: sampler.order(number, size),
                lambda: order,
            )
        draw = sampler.draw(key_sample, number, size, order)
        variables, opt_state, loss = learner.step(
            key_step, variables, opt_state, take_batch(examples, draw), extra
        )
        return (variables, opt_state), total + loss.astype(total.dtype), order

    order = sampler.order(first_step, size)
    start = carry, jnp.zeros((), jnp.float32), order
    extra = extra._replace(num_examples=size)
    # A loop even for one step: where XLA:CPU unrolls it, it copies the optimizer states
    # of all agents once per agent (ten times slower with Adam).
    num_steps = jax.lax.optimization_barrier(jnp.asarray(num_steps, jnp.int32))
    carry, total, _ = jax.lax.fori_loop(0, num_steps, one_step, start)
    return carry, total / jnp.maximum(num_steps, 1).astype(jnp.float32)


def map_agents(
    agent_fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], agent_loop: int
) -> Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]:
    """Applies a function of one agent to all, along the leading axis of every leaf.

    Args:
      agent_fn: `(carry, inputs) -> (carry, output)` of one agent.
      agent_loop: `VMAP`, `IN_PLACE`, c > 1 for chunks of c agents, or `AUTO`. All give
        the same numbers. The looping ones overwrite the carry slice by slice, so that
        no second copy of it exists; they never read another agent. Under a mesh of
        agents (`sharding`) every device loops over its own.
    """
    if agent_loop < AUTO:
        raise InputError(
            "Need agent_loop of -1 (auto), 0 (vmap), 1 (in place) or a chunk size, got "
            f"{agent_loop}."
        )

    def mapped(carry: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        side_by_side = resolved(agent_loop, (carry, inputs))
        if side_by_side == VMAP:
            return jax.vmap(agent_fn)(carry, inputs)
        num_agents = jax.tree.leaves((carry, inputs))[0].shape[0]
        chunk = min(side_by_side, num_agents)
        # One agent at a time runs without a batch axis: XLA's plain kernels.
        fn = _unbatched(agent_fn) if chunk == 1 else jax.vmap(agent_fn)
        output_shape = jax.eval_shape(jax.vmap(agent_fn), carry, inputs)[1]
        output = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), output_shape)

        def advance(start: Array | int, state: PyTree, width: int) -> PyTree:
            carry, output = state
            new_carry, new_output = fn(
                _slice(carry, start, width), _slice(inputs, start, width)
            )
            state = _update(carry, new_carry, start), _update(output, new_output, start)
            return jax.lax.optimization_barrier(state)  # see `mixing._mix_block`

        num_chunks = num_agents // chunk
        state = jax.lax.fori_loop(
            0,
            num_chunks,
            lambda i, state: advance(i * chunk, state, chunk),
            (jax.tree.map(jnp.asarray, carry), output),
        )
        if num_agents % chunk:
            state = advance(num_chunks * chunk, state, num_agents % chunk)
        return state

    return lambda carry, inputs: over_devices(mapped)(carry, inputs)


def _unbatched(agent_fn: Callable) -> Callable:
    def fn(carry: PyTree, inputs: PyTree) -> PyTree:
        one = _first((carry, inputs))
        return jax.tree.map(lambda leaf: leaf[None], agent_fn(*one))

    return fn


def _first(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _slice(tree: PyTree, start: Array | int, width: int) -> PyTree:
    return jax.tree.map(
        lambda leaf: jax.lax.dynamic_slice_in_dim(jnp.asarray(leaf), start, width),
        tree,
    )


def _update(tree: PyTree, new: PyTree, start: Array | int) -> PyTree:
    return jax.tree.map(
        lambda leaf, value: jax.lax.dynamic_update_slice_in_dim(leaf, value, start, 0),
        tree,
        new,
    )
