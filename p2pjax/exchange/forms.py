"""How a receiver combines its own model with messages that are not exact.

Each function takes column blocks `[N, ...]` of all agents and a way to mix them
(`mixing.Combine`), as the exact form `mix(models)` does. With `without_self` a mixing
leaves an agent's own model out, so that it can count exactly where its message is not.

Whether own models should count exactly or as others decode them: Carli et al. (2010),
"Gossip consensus algorithms via quantized communication",
https://arxiv.org/abs/0907.0748.
"""

import jax.numpy as jnp

from p2pjax.exchange.mixing import Combine, is_peer
from p2pjax.types import Array, Peers


def without_self(peers: Peers) -> Peers:
    """Weights of others only; those of the agent itself are 0.

    Args:
      peers: `[N, K]`.

    Example:
      >>> peers = Peers(jnp.array([[0, 1], [1, 0]]), jnp.full((2, 2), 0.5))
      >>> without_self(peers).weight.tolist()
      [[0.0, 0.5], [0.0, 0.5]]
    """
    return Peers(peers.ids, jnp.where(is_peer(peers), peers.weight, 0))


def own_weight(peers: Peers) -> Array:
    """How much each agent's own model counts, `[N]`.

    Args:
      peers: `[N, K]`.

    Example:
      >>> peers = Peers(jnp.array([[0, 1], [1, 0]]), jnp.full((2, 2), 0.5))
      >>> own_weight(peers).tolist()
      [0.5, 0.5]
    """
    return jnp.where(is_peer(peers), 0, peers.weight).sum(1)


def own_exact_form(
    mix_others: Combine, weight: Array, own: Array, received: Array
) -> Array:
    """`W_ii x_i + sum_j W_ij m_j`: for noisy, hostile or late messages.

    Args:
      mix_others: by weights `without_self`.
      weight: `[N]` of each agent's own model, `own_weight`.
      own: models `[N, ...]`.
      received: what others get of each agent, `[N, ...]`.
    """
    return _per_agent(weight, own) * own + mix_others(jnp.asarray(received))


def difference_form(mix: Combine, own: Array, decoded: Array) -> Array:
    """`x_i + sum_j W_ij (Q_j - Q_i)`: for quantised models.

    It keeps the mean of all models where W is symmetric, whatever the format loses:
    each agent keeps what is lost of its own model. Columns that sum to 1 keep it too,
    as in push-sum.

    Args:
      mix: by W, each agent's own message included.
      own: models `[N, ...]`.
      decoded: what others decode of each agent, `[N, ...]`.
    """
    decoded = jnp.asarray(decoded)
    return own + (mix(decoded) - decoded)


def late_difference_form(
    mix_others: Combine, weight: Array, own: Array, decoded: Array, received: Array
) -> Array:
    """The difference form where what arrives of others was sent an exchange before.

    Args:
      mix_others: by weights `without_self`.
      weight: `[N]` of each agent's own model, `own_weight`.
      own: models `[N, ...]`.
      decoded: what of them will be decoded in the next exchange, `[N, ...]`.
      received: what is decoded in this one, `[N, ...]`.
    """
    rest = _per_agent(1 - weight, own)
    return own + (mix_others(jnp.asarray(received)) - rest * decoded)


def sparse_form(mix_others: Combine, own: Array, values: Array, mask: Array) -> Array:
    """`x_i + sum_j W_ij mask_j (x_j - x_i)`: what was not sent is the receiver's own.

    Args:
      mix_others: by weights `without_self`.
      own: models `[N, ...]`.
      values: what was sent, `[N, ...]`; 0 where nothing was.
      mask: where something was, `[N, ...]`.
    """
    sent = mix_others(jnp.asarray(values))
    return own - own * mix_others(jnp.asarray(mask, own.dtype)) + sent


def _per_agent(values: Array, block: Array) -> Array:
    """`[N]` -> `[N, 1, ...]`, to multiply a block."""
    shape = (-1,) + (1,) * (block.ndim - 1)
    return jnp.asarray(values, block.dtype).reshape(shape)
