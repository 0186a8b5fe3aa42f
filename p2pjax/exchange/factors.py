"""How much the models of hosts count in a sum that need not be a mean.

A. Ioste and M. Finger, "Establishing the parameters of a decentralized neural machine
learning model".
"""

from collections.abc import Callable

import jax.numpy as jnp

from p2pjax.types import Array, FederatedData

Factors = Callable[[Array], Array]  # relative sizes r [N], sum 1 -> alpha [N]


def mean(share: Array) -> Array:
    """`1 / H`: the paper's convex combination, which ignores the sizes.

    Args:
      share: relative sizes r of the hosts, `[N]`.

    Example:
      >>> mean(jnp.array([0.5, 0.25, 0.125, 0.125])).tolist()
      [0.25, 0.25, 0.25, 0.25]
    """
    return jnp.full(share.shape, 1 / share.shape[0], share.dtype)


def size_weighted(share: Array) -> Array:
    """`r`, as in FedAvg.

    Args:
      share: relative sizes r of the hosts, `[N]`.

    Example:
      >>> size_weighted(jnp.array([0.75, 0.25])).tolist()
      [0.75, 0.25]
    """
    return share


def additive(c: float = 1.0) -> Factors:
    """`c + r`.

    The sum of models is then not a mean: its factors add up to `c H + 1`.

    Args:
      c: what each host counts beside its relative size.

    Example:
      >>> additive(1.0)(jnp.array([0.75, 0.25])).tolist()
      [1.75, 1.25]
    """
    return lambda share: c + share


def exponential(c: float = 1e-3) -> Factors:
    """`exp(c r)`.

    Args:
      c: near 0 all hosts count 1, whatever their sizes.

    Example:
      >>> exponential(0.0)(jnp.array([0.75, 0.25])).tolist()
      [1.0, 1.0]
    """
    return lambda share: jnp.exp(c * share)


def relative_sizes(data: FederatedData) -> Array:
    """r: each agent's share of all training examples, held-out ones among them.

    Args:
      data: of all agents.

    Returns:
      `[N]`, of sum 1.

    Example:
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> print(relative_sizes(data).round(2))
      [0.25 0.25 0.25 0.25]
    """
    sizes = (data.train.size + data.valid.size).astype(jnp.float32)
    return sizes / sizes.sum()
