"""How sharply the loss of ONE agent bends along each of its parameters."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from p2pjax.tasks.task import Task
from p2pjax.training.samplers import Draw, take_batch, whole_set
from p2pjax.types import Array, InputError, Key, PyTree, Variables

# (key, variables, examples [M, ...], number of examples) of one agent -> like params;
# no entry is negative, and without examples all are zero
Curvature = Callable[[Key, Variables, Mapping[str, Array], Array], PyTree]


def fisher(task: Task, chunk: int = 32) -> Curvature:
    """Diagonal of the empirical Fisher matrix: mean of squared per-example gradients.

    As in Shoham et al. (2019), https://arxiv.org/abs/1910.07796, where the loss is
    minus a log-likelihood. The mean, not the sum, so that agents with many examples do
    not bend more.

    Args:
      task: its loss of one example is differentiated.
      chunk: examples taken at a time: so many gradients are in memory per agent.

    Returns:
      A function of (key, variables, examples `[M, ...]`, their number) of one agent,
      whose result has the shapes of the parameters and no negative entries.

    Example:
      >>> import p2pjax as pj
      >>> linear = pj.Network(lambda key: jnp.zeros((1, 2)), lambda w, x: x @ w)
      >>> task, key = pj.classification(linear, (1,)), jax.random.key(0)
      >>> examples = {"x": jnp.ones((3, 1)), "y": jnp.array([0, 1, 1])}
      >>> curvature = jax.jit(fisher(task))  # of the one agent that has these examples
      >>> curvature(key, task.init(key), examples, jnp.int32(3)).tolist()
      [[0.25, 0.25]]
    """
    _check_chunk(chunk)

    def curvature_fn(
        key: Key, variables: Variables, examples: Mapping[str, Array], size: Array
    ) -> PyTree:
        def squares_of(index: Array, valid: Array) -> PyTree:
            batch = take_batch(examples, Draw(index[None], jnp.ones(1, bool)))

            def loss_of(params: PyTree) -> Array:
                key_one = jax.random.fold_in(key, index)
                return task.loss(variables._replace(params=params), batch, key_one)[0]

            gradient = jax.grad(loss_of)(variables.params)
            return jax.tree.map(lambda g: jnp.where(valid, g * g, 0), gradient)

        def add_chunk(i: Array, total: PyTree) -> PyTree:
            places = i * chunk + jnp.arange(chunk, dtype=jnp.int32)
            valid = places < size
            squares = jax.vmap(squares_of)(jnp.where(valid, places, 0), valid)
            return jax.tree.map(lambda t, s: t + s.sum(0), total, squares)

        zeros = jax.tree.map(jnp.zeros_like, variables.params)
        num_chunks = (size + chunk - 1) // chunk
        total = jax.lax.fori_loop(0, num_chunks, add_chunk, zeros)
        divisor = jnp.maximum(size, 1)
        return jax.tree.map(lambda t: t / divisor.astype(t.dtype), total)

    return curvature_fn


def hessian(task: Task, chunk: int = 32) -> Curvature:
    """Diagonal of the Hessian of the mean loss, exactly; negative entries become 0.

    One product of the Hessian with a vector per parameter: for small networks.

    Args:
      task: its loss of all examples is differentiated twice.
      chunk: parameters taken at a time.

    Returns:
      A function of (key, variables, examples `[M, ...]`, their number) of one agent,
      whose result has the shapes of the parameters and no negative entries.

    Example:
      >>> import p2pjax as pj
      >>> linear = pj.Network(lambda key: jnp.zeros((1, 2)), lambda w, x: x @ w)
      >>> task, key = pj.classification(linear, (1,)), jax.random.key(0)
      >>> examples = {"x": jnp.ones((3, 1)), "y": jnp.array([0, 1, 1])}
      >>> curvature = jax.jit(hessian(task))  # of the one agent that has these examples
      >>> curvature(key, task.init(key), examples, jnp.int32(3)).tolist()
      [[0.25, 0.25]]
    """
    _check_chunk(chunk)

    def curvature_fn(
        key: Key, variables: Variables, examples: Mapping[str, Array], size: Array
    ) -> PyTree:
        flat, unflatten = ravel_pytree(variables.params)
        batch = whole_set(examples, size)

        def loss_of(flat: jax.Array) -> Array:
            params = unflatten(flat)
            return task.loss(variables._replace(params=params), batch, key)[0]

        def entry(index: Array) -> Array:
            direction = jnp.zeros_like(flat).at[index].set(1)
            return jax.jvp(jax.grad(loss_of), (flat,), (direction,))[1][index]

        diagonal = jax.lax.map(entry, jnp.arange(flat.size), batch_size=chunk)
        return unflatten(jnp.where(size > 0, jnp.maximum(diagonal, 0), 0))

    return curvature_fn


def _check_chunk(chunk: int) -> None:
    if chunk < 1:
        raise InputError(f"Need a chunk of 1 or more, got {chunk}.")
