"""The loop over agents: one after the other, in chunks, or all in one batch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from p2pjax.sharding import over_devices
from p2pjax.tasks.task import Task, shapes_of
from p2pjax.types import Array, InputError, PyTree, Variables

# The agent loop: how many agents advance side by side.
AUTO = -1  # whatever of the following suits the network and the machine


VMAP = 0  # all of them in one batched program: for accelerators


IN_PLACE = 1  # one after the other, each in cache, no second copy: for CPUs


CHUNK = 10  # about so many at a time: for small networks on CPUs


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
# (`nn.kernels.pooled`), one agent at a time is about as fast or faster, see the CNNs.
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
    return _fastest_on_cpu(shapes_of(task).params)


def resolve_agent_loop(agent_loop: int, agents: PyTree) -> int:
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


def map_agents(
    agent_fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], agent_loop: int
) -> Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]:
    """Applies a function of one agent to all, along the leading axis of every leaf.

    Args:
      agent_fn: `(carry, inputs) -> (carry, output)` of one agent.
      agent_loop: `VMAP`, `IN_PLACE`, c > 1 for chunks of about c agents, or `AUTO`. All
        give the same numbers. The looping ones overwrite the carry slice by slice, so
        that no second copy of it exists; they never read another agent. Under a mesh of
        agents (`sharding`) every device loops over its own.
    """
    if agent_loop < AUTO:
        raise InputError(
            "Need agent_loop of -1 (auto), 0 (vmap), 1 (in place) or a chunk size, got "
            f"{agent_loop}."
        )

    def mapped(carry: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        side_by_side = resolve_agent_loop(agent_loop, (carry, inputs))
        if side_by_side == VMAP:
            return jax.vmap(agent_fn)(carry, inputs)
        num_agents = jax.tree.leaves((carry, inputs))[0].shape[0]
        chunk = even_chunk(side_by_side, num_agents)
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


def even_chunk(wanted: int, num_agents: int) -> int:
    """How many agents go side by side, so that the same number goes each time.

    A rest of fewer agents would be a second copy of all of training in the program, and
    twice the time to compile it. The nearest divisor of N between a half and one and a
    half of what is wanted leaves no rest; where N has none, there is one.

    Args:
      wanted: c, one or more.
      num_agents: N, of one device.

    Example:
      >>> [even_chunk(10, num_agents) for num_agents in (6, 16, 26, 100, 23)]
      [6, 8, 13, 10, 10]
      >>> even_chunk(1, 7)
      1
    """
    if wanted == IN_PLACE or num_agents <= wanted:
        return min(wanted, num_agents)
    near = [
        size
        for size in range(max(2, -(-wanted // 2)), wanted * 3 // 2 + 1)
        if num_agents % size == 0
    ]
    return min(near, key=lambda size: (abs(size - wanted), size), default=wanted)


def _unbatched(agent_fn: Callable) -> Callable:
    def fn(carry: PyTree, inputs: PyTree) -> PyTree:
        one = _first((carry, inputs))
        return jax.tree.map(lambda leaf: leaf[None], agent_fn(*one))

    return fn


def _first(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _slice(tree: PyTree, start: Array | int, width: int) -> PyTree:
    return jax.tree.map(
        lambda leaf: jax.lax.dynamic_slice_in_dim(
            jnp.asarray(leaf), start, width, allow_negative_indices=False
        ),
        tree,
    )


def _update(tree: PyTree, new: PyTree, start: Array | int) -> PyTree:
    return jax.tree.map(
        lambda leaf, value: jax.lax.dynamic_update_slice_in_dim(
            leaf, value, start, 0, allow_negative_indices=False
        ),
        tree,
        new,
    )
