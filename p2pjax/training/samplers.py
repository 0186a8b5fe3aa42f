"""How ONE agent draws its batches from its own examples."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.types import Array, Batch, FederatedData, InputError, Key, PyTree


def max_size(data: FederatedData) -> int:
    """Examples of the largest agent, M."""
    return next(iter(data.train.examples.values())).shape[1]


class Draw(NamedTuple):
    """Which of its examples ONE agent takes in one step."""

    indices: Array  # [B]
    valid: Array  # [B]; False where a short batch was filled up


class Sampler(NamedTuple):
    """How ONE agent draws its batches; call it with (key, step, number of examples).

    Drawing all examples in a new order takes longer than a step of a small network, so
    loops over steps (`take_steps`) keep the order until the next pass begins.
    """

    draw: Callable[[Key, Array, Array, PyTree], Draw]  # of (key, step, size, order)
    order: Callable[..., PyTree]  # of the pass that (step, size, order seed) is in
    begins: Callable[[Array, Array], Array]  # whether (step, size) is first in its pass

    def __call__(
        self, key: Key, step: Array, size: Array, order_seed: Array | None = None
    ) -> Draw:
        """The batch of any step."""
        return self.draw(key, step, size, self.order(step, size, order_seed))


def _without_order(draw: Callable[[Key, Array, Array], Draw]) -> Sampler:
    return Sampler(
        lambda key, step, size, order: draw(key, step, size),
        lambda step, size, order_seed=None: (),
        lambda step, size: jnp.zeros((), bool),
    )


def cyclic_window(batch_size: int) -> Sampler:
    """Consecutive examples, wrapping around; every example is used equally often.

    Order the examples beforehand (`partition` shuffles them once per run).
    """
    check_batch_size(batch_size)

    def sample(key: Key, step: Array, size: Array) -> Draw:
        del key
        # step * batch_size, reduced first: only size * batch_size must fit 31 bits
        start = (step % size) * (batch_size % size)
        indices = (start + jnp.arange(batch_size, dtype=jnp.int32)) % size
        return Draw(indices, jnp.ones(batch_size, bool))

    return _without_order(sample)


def shuffled_epochs(batch_size: int, max_size: int) -> Sampler:
    """Passes over all examples, each in a new order; the last batch may be short.

    The orders depend on the agent's `Split.order_seed`, which `simulate` draws for
    each run. Without one they are the same for all agents and runs.

    Args:
      batch_size: B.
      max_size: examples of the largest agent, M.
    """
    check_batch_size(batch_size)

    def position(step: Array, size: Array) -> Array:
        return step % steps_per_epoch(size, batch_size)

    def order_fn(step: Array, size: Array, order_seed: Array | None = None) -> Array:
        epoch = step // steps_per_epoch(size, batch_size)
        key = jax.random.key(0 if order_seed is None else order_seed)
        draws = jax.random.uniform(jax.random.fold_in(key, epoch), (max_size,))
        return jnp.argsort(jnp.where(jnp.arange(max_size) < size, draws, 2.0))

    def draw_fn(key: Key, step: Array, size: Array, order: Array) -> Draw:
        del key
        places = position(step, size) * batch_size
        places += jnp.arange(batch_size, dtype=jnp.int32)
        valid = places < size
        # A short batch is filled with the agent's own examples, from the first on, so
        # that batch norm sees what it would see in a full one.
        return Draw(order[places % jnp.maximum(size, 1)], valid)

    return Sampler(draw_fn, order_fn, lambda step, size: position(step, size) == 0)


def steps_per_epoch(size: Array, batch_size: int) -> Array:
    """Mini-batches in one pass over `size` examples."""
    return (size + batch_size - 1) // batch_size


def examples_in_steps(num_steps: Array, size: Array, batch_size: int) -> Array:
    """Examples that the first steps of passes over `size` examples have used."""
    whole, rest = jnp.divmod(num_steps, steps_per_epoch(size, batch_size))
    return whole * size + jnp.minimum(rest * batch_size, size)


def examples_between(
    first_step: Array, last_step: Array, size: Array, batch_size: int
) -> Array:
    """Examples that the steps from one to before another have used, float32.

    Args:
      first_step: `[N]`.
      last_step: `[N]`, not included.
      size: examples of each agent, `[N]`.
      batch_size: B.
    """
    used = [
        examples_in_steps(step, jnp.asarray(size), batch_size)
        for step in (first_step, last_step)
    ]
    return (used[1] - used[0]).astype(jnp.float32)


def with_replacement(batch_size: int) -> Sampler:
    """Independent uniform draws."""
    check_batch_size(batch_size)

    def sample(key: Key, step: Array, size: Array) -> Draw:
        del step
        indices = jax.random.randint(key, (batch_size,), 0, size, jnp.int32)
        return Draw(indices, jnp.ones(batch_size, bool))

    return _without_order(sample)


def num_drawn(sampler: Sampler, step: Array, size: Array) -> Array:
    """Examples `[N]` that the agents take in one step; `size` is `[N]`."""
    key = jax.random.key(0)  # which examples is random, how many is not

    def one_agent(size: Array) -> Array:
        return sampler(key, step, size).valid.sum().astype(jnp.float32)

    return jax.vmap(one_agent)(size)


def take_batch(examples: Mapping[str, Array], draw: Draw) -> Batch:
    """The batch of ONE agent; leaves of `examples` are `[M, ...]`."""
    batch = {name: jnp.asarray(leaf)[draw.indices] for name, leaf in examples.items()}
    return {**batch, "valid": draw.valid}


def whole_set(examples: Mapping[str, Array], size: Array) -> Batch:
    """All examples of ONE agent as one batch, padding marked invalid."""
    num_examples = next(iter(examples.values())).shape[0]
    return {**examples, "valid": jnp.arange(num_examples) < size}


def check_batch_size(batch_size: int) -> None:
    """Refuses what is no number of examples."""
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise InputError(
            f"Need a batch size of 1 or more, got {batch_size}: give a whole number."
        )
