"""A learning rate that drops once, and whose first value is an input of the program.

Rates of one method then share a compiled program, and methods that remember in units of
the rate read it where `optax.inject_hyperparams` would keep it (`training.rates`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from p2pjax.types import Array, PyTree

FIRST = "first_rate"  # the hyperparameter to write into a state


class DroppingState(NamedTuple):
    """Steps so far, and rates as `optax.inject_hyperparams` keeps them."""

    num_steps: Array  # []
    hyperparams: dict[str, Array]
    inner_state: tuple[()] = ()


def dropping_rate(
    first_rate: float, drop_after: int, factor: float
) -> optax.GradientTransformation:
    """Descends with a rate that is multiplied by a factor after some steps.

    Args:
      first_rate: which can be written into the state under the name `FIRST`.
      drop_after: steps with it.
      factor: of all later steps.

    Example:
      >>> descent = dropping_rate(0.5, 1, 0.1)
      >>> state = descent.init(())
      >>> for _ in range(2):
      ...     update, state = descent.update(jnp.float32(2.0), state)
      ...     print(f"{update:.3f}")
      -1.000
      -0.100
    """

    def init_fn(params: PyTree) -> DroppingState:
        del params
        first = jnp.asarray(first_rate, jnp.float32)
        return DroppingState(
            jnp.zeros((), jnp.int32), {FIRST: first, "learning_rate": jnp.copy(first)}
        )

    def update_fn(
        updates: PyTree, state: DroppingState, params: PyTree | None = None
    ) -> tuple[PyTree, DroppingState]:
        del params
        first = state.hyperparams[FIRST]
        rate = first * jnp.where(state.num_steps < drop_after, 1.0, factor)
        updates = jax.tree.map(lambda g: -rate.astype(g.dtype) * g, updates)
        rates = {FIRST: first, "learning_rate": rate}
        return updates, DroppingState(state.num_steps + 1, rates)

    return optax.GradientTransformation(init_fn, update_fn)


def descent(
    first_rate: float, drop_after: int, factor: float, momentum: float = 0.0
) -> optax.GradientTransformation:
    """SGD with such a rate; with Nesterov's momentum if it is not 0.

    Args:
      first_rate: see `dropping_rate`.
      drop_after: steps with it.
      factor: of all later steps.
      momentum: from 0 to less than 1.

    Example:
      >>> optimizer = descent(0.1, 100, 0.1, momentum=0.9)
      >>> type(optimizer.init({"w": jnp.zeros(3)})[1]).__name__
      'DroppingState'
    """
    rate: Any = dropping_rate(first_rate, drop_after, factor)
    if not momentum:
        return rate
    return optax.chain(optax.trace(momentum, nesterov=True), rate)
