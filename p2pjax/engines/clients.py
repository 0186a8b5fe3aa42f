"""Clients of a server: who is chosen, whom messages reach, what a round reports."""

import jax
import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.pipeline import Exchange
from p2pjax.types import Array, FederatedData, Info, InputError, Key, num_agents


def check_clients(num_clients: int | None) -> None:
    """Refuses rounds in which no client takes part."""
    if num_clients is not None and num_clients < 1:
        raise InputError(
            f"Need one client or more in a round, got num_clients={num_clients}."
        )


def chosen_clients(
    rng: np.random.Generator,
    data: FederatedData,
    num_clients: int | None,
    num_rounds: int,
) -> np.ndarray:
    """Who is chosen in every round, `[R, N]`: uniformly and without replacement.

    Args:
      rng: draws the clients.
      data: of all agents.
      num_clients: of a round; None for all.
      num_rounds: R.
    """
    size = num_agents(data)
    num_clients = size if num_clients is None else num_clients
    if num_clients > size:
        raise InputError(
            f"Need at most {size} clients (the number of agents), got "
            f"num_clients={num_clients}."
        )
    is_chosen = np.arange(size) < num_clients
    return rng.permuted(np.tile(is_chosen, (num_rounds, 1)), axis=1)


def server_info(
    loss: Array,
    is_chosen: Array,
    up: int,
    down: int,
    examples: Array,
    is_reached: Array | None = None,
) -> Info:
    """What a round reports in which clients and a server sent so many parameters.

    The training loss of agents that did not train is the mean of the others.

    Args:
      loss: of training, `[N]`.
      is_chosen: `[N]` to whom the server sent its model.
      up: parameters that a client sends.
      down: parameters that the server sends to a client.
      examples: `[N]` that were trained on.
      is_reached: `[N]` to whom it arrived, who then trained and answered; None: all.
    """
    chosen = is_chosen.astype(jnp.float32)
    is_reached = is_chosen if is_reached is None else is_reached
    reached = is_reached.astype(jnp.float32)
    mean_loss = (loss * reached).sum() / jnp.maximum(reached.sum(), 1)
    return Info(
        jnp.where(is_reached, loss, mean_loss),
        reached,
        reached,
        reached * up,
        delivered=chosen * down,
        examples=examples,
        served=chosen,
    )


def participants(
    exchange: Exchange, key: Key, t: Array, is_chosen: Array
) -> tuple[Array, Array]:
    """Whom the server's message reaches, and whose answer reaches the server, `[N]`.

    Args:
      exchange: of the round.
      key: of the round.
      t: its number.
      is_chosen: `[N]` to whom the server sends.
    """
    keys = [jax.random.fold_in(key, way) for way in (1, 2)]
    reached = exchange.arrive(keys[0], t, is_chosen[:, None])[:, 0]
    answers = exchange.arrive(keys[1], t, reached[:, None])[:, 0]
    return reached, answers
