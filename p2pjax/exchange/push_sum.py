"""Push-sum: weights that travel along with models.

Kempe, Dobra, Gehrke (2003), "Gossip-based computation of aggregate information".
"""

import jax.numpy as jnp

from p2pjax.types import Array, Peers

WEIGHT_FLOOR = 1e-30  # push-sum weights never get lower, so that none becomes zero


def push_sum_step(peers: Peers, weight: Array) -> tuple[Peers, Array]:
    """One push-sum step of weighted models (Kempe, Dobra, Gehrke 2003).

    Models x that count w are sent as w x and w, split by a column-stochastic matrix A;
    a receiver divides one sum by the other. That is a mean of the models x.

    Args:
      peers: A.
      weight: w, `[N]`.

    Returns:
      The row-stochastic matrix of that mean, and the new weights A w.
    """
    # Weights keep their dtype, also where graphs are in 64 bits.
    share = jnp.asarray(peers.weight).astype(weight.dtype)
    carried = share * weight[peers.ids]
    carried = carried.at[:, 0].max(WEIGHT_FLOOR)
    total = carried.sum(1)
    return Peers(peers.ids, carried / total[:, None]), total


def push_sum_refusal(method: str) -> str:
    """Why robust rules are refused.

    Args:
      method: its name.
    """
    return (
        "Need a protocol whose receivers may drop messages for a robust rule, got "
        f"{method}: push-sum loses the mass of what is dropped; use D-PSGD."
    )
