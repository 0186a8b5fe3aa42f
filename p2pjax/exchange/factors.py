"""How much the models of hosts count in a sum that need not be a mean.

A. Ioste and M. Finger, "Establishing the parameters of a decentralized neural machine
learning model".
"""

from collections.abc import Callable

import jax.numpy as jnp

from p2pjax.types import Array, FederatedData

Factors = Callable[[Array], Array]  # relative sizes r [N], sum 1 -> alpha [N]


def mean(share: Array) -> Array:
    """`1 / H`: the paper's convex combination, which ignores the sizes."""
    return jnp.full(share.shape, 1 / share.shape[0], share.dtype)


def size_weighted(share: Array) -> Array:
    """`r`, as in FedAvg."""
    return share


def additive(c: float = 1.0) -> Factors:
    """`c + r`."""
    return lambda share: c + share


def exponential(c: float = 1e-3) -> Factors:
    """`exp(c r)`."""
    return lambda share: jnp.exp(c * share)


def relative_sizes(data: FederatedData) -> Array:
    """r: each agent's share of all training examples, held-out ones among them."""
    sizes = (data.train.size + data.valid.size).astype(jnp.float32)
    return sizes / sizes.sum()
