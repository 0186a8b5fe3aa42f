"""How much an agent learns between two exchanges: local steps or local epochs."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from p2pjax.training.samplers import steps_per_epoch
from p2pjax.types import Array, InputError


class LocalUpdates(NamedTuple):
    """Mini-batch steps, or passes over an agent's own data; one of them is 0."""

    num_steps: int
    num_epochs: int

    @property
    def described(self) -> str:
        """In words.

        >>> epochs(2).described
        '2 local epochs'
        """
        number, unit = (
            (self.num_epochs, "local epoch")
            if self.num_epochs
            else (self.num_steps, "local step")
        )
        return f"{number} {unit}" + ("s" if number > 1 else "")


def steps(num_steps: int) -> LocalUpdates:
    """Each agent takes so many mini-batch steps between two exchanges.

    Args:
      num_steps: 1 or more.

    >>> steps(5)
    LocalUpdates(num_steps=5, num_epochs=0)
    """
    _check_number(num_steps, "step")
    return LocalUpdates(num_steps, 0)


def epochs(num_epochs: int) -> LocalUpdates:
    """Each agent passes over its own data so many times between two exchanges.

    Args:
      num_epochs: 1 or more.

    >>> epochs(2)
    LocalUpdates(num_steps=0, num_epochs=2)
    """
    _check_number(num_epochs, "epoch")
    return LocalUpdates(0, num_epochs)


def _check_number(number: int, unit: str) -> None:
    if not isinstance(number, int | np.integer) or number < 1:
        raise InputError(
            f"Need one local {unit} or more, got {number}: give a whole number."
        )


def steps_of(updates: LocalUpdates, sizes: Array, batch_size: int) -> Array:
    """Mini-batch steps of each agent between two exchanges, int32 `[N]`.

    Args:
      updates: how much.
      sizes: examples of each agent, `[N]`.
      batch_size: B.
    """
    sizes = jnp.asarray(sizes)
    if updates.num_epochs:
        return updates.num_epochs * steps_per_epoch(sizes, batch_size)
    return jnp.full(sizes.shape, updates.num_steps, jnp.int32)
