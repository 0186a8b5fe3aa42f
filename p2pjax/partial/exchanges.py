"""Exchanges of partial models between two agents, as lists and as small matrices."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.types import Array


class Exchanges(NamedTuple):
    """Pairs that exchange a model in a round, one after the other; an input of it."""

    first: Array  # [F] int32 who asks
    second: Array  # [F] int32 whom; itself where there is no exchange

    def only(self, happens: Array) -> "Exchanges":
        """Those where `happens` `[F]`."""
        return self._replace(second=jnp.where(happens, self.second, self.first))


class Layout(NamedTuple):
    """What each exchange of a round is about; static."""

    num_agents: int
    model: np.ndarray  # [F]
    cycle: np.ndarray  # [F] -1 in a phase of noise
    wave: np.ndarray  # [F] of a phase of noise


def happening(layout: Layout, inputs: Exchanges, owner: np.ndarray) -> Array:
    """`[F]`: exchanges of a class, whose two ends both share it.

    Args:
      layout: what each exchange is about.
      inputs: who with whom.
      owner: `[N]` of the class.
    """
    owners, model = jnp.asarray(owner, jnp.int32), jnp.asarray(layout.model, jnp.int32)
    first, second = jnp.asarray(inputs.first), jnp.asarray(inputs.second)
    shared = (owners[first] == model) & (owners[second] == model)
    return shared & (first != second)


def reached(inputs: Exchanges, arrived: Array) -> Array:
    """`[F]`: exchanges that are not lost, of what arrives `[N, F]`.

    Args:
      inputs: all exchanges.
      arrived: the same for both ends of each.
    """
    return arrived[inputs.first, jnp.arange(arrived.shape[1])]


def exchanged(
    matrix: Array, pairs: Exchanges, happens: Array, weight: Array | None = None
) -> Array:
    """The rows of `matrix` after the exchanges `[E]`, one after the other.

    Args:
      matrix: `[N, ...]`.
      pairs: who with whom.
      happens: `[E]`, which of them take place.
      weight: `[N]` of the agents.
    """
    counts = jnp.ones(matrix.shape[0]) if weight is None else jnp.asarray(weight)
    counts = counts.astype(matrix.dtype)

    def exchange(matrix: jax.Array, pair: tuple) -> tuple[jax.Array, None]:
        first, second, happens = pair
        one, other = matrix[first], matrix[second]
        total = counts[first] + counts[second]
        mean = (counts[first] * one + counts[second] * other) / total
        matrix = matrix.at[first].set(jnp.where(happens, mean, one))
        return matrix.at[second].set(jnp.where(happens, mean, other)), None

    each = (pairs.first, pairs.second, happens)
    return jax.lax.scan(exchange, jnp.asarray(matrix), each)[0]


def partners(pairs: Exchanges, size: int) -> Array:
    """Partner `[N]` of each agent; the pairs must not share agents."""
    none = pairs.first == pairs.second
    first, second = (
        jnp.where(none, size, jnp.asarray(ends)).astype(jnp.int32) for ends in pairs
    )
    own = jnp.arange(size, dtype=jnp.int32)
    own = own.at[first].set(second, mode="drop")
    return own.at[second].set(first, mode="drop")


def waves(
    layout: Layout, inputs: Exchanges, arrived: Array | None
) -> tuple[Array, Callable[[Array], Exchanges]]:
    """Exchanges that can take place at once, for messages that cannot be added up.

    Args:
      layout: what each exchange is about.
      inputs: all exchanges.
      arrived: `[N, F]`; None: all.

    Returns:
      The number of waves, and number of a wave -> its exchanges.
    """
    if arrived is not None:
        inputs = inputs.only(reached(inputs, arrived))
    models, model = np.unique(layout.model, return_inverse=True)
    happens = jnp.asarray(inputs.first != inputs.second)

    def place(busy: jax.Array, pair: tuple) -> tuple[jax.Array, jax.Array]:
        model, first, second, happens = pair
        wave = jnp.maximum(busy[model, first], busy[model, second])
        after = jnp.where(happens, wave + 1, 0)
        busy = busy.at[model, first].max(after).at[model, second].max(after)
        return busy, jnp.where(happens, wave, -1)

    start = jnp.zeros((len(models), layout.num_agents), jnp.int32)
    ends = (jnp.asarray(inputs.first), jnp.asarray(inputs.second))
    each = (jnp.asarray(model, jnp.int32), *ends, happens)
    busy, wave = jax.lax.scan(place, start, each)
    return busy.max(initial=0), lambda number: inputs.only(wave == number)
