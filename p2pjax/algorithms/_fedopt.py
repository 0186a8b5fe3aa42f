"""FedAdam, FedYogi, FedAdagrad and FedAvgM: FedAvg with an optimizer at the server.

Reddi et al. (2021), "Adaptive federated optimization",
https://arxiv.org/abs/2003.00295; FedAvgM is from Hsu, Qi, Brown (2019), "Measuring the
effects of non-identical data distribution for federated visual classification",
https://arxiv.org/abs/1909.06335.
"""

from typing import Literal, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax

from p2pjax.engines.options import ServerOptions
from p2pjax.engines.server import server_rounds
from p2pjax.tasks.task import Task
from p2pjax.training.learner import Learner
from p2pjax.types import Algorithm, InputError, PyTree

RULES = ("adam", "yogi", "adagrad", "momentum")


class AdaptiveState(NamedTuple):
    """The two moments of the clients' mean changes."""

    first: PyTree
    second: PyTree


def fedopt(
    task: Task,
    optimizer: optax.GradientTransformation | Learner,
    *,
    batch_size: int,
    rule: Literal["adam", "yogi", "adagrad", "momentum"] = "adam",
    server_rate: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    **options: Unpack[ServerOptions],
) -> Algorithm:
    """FedAvg with an adaptive server (Reddi et al. 2021).

    https://arxiv.org/abs/2003.00295. With the clients' mean change d, the server has
    `m <- beta1 m + (1 - beta1) d` and `x <- x + server_rate m / (sqrt(v) + tau)`, where
    v is tau^2 at first and then that of the rule. Optimizers of optax correct the
    moments for their start at zero, which the paper does not: for those use
    `fedavg(server_opt=...)`.

    Args:
      task: what each agent learns.
      optimizer: of optax; each client keeps its own state of it.
      batch_size: B.
      rule: "adam", "yogi" or "adagrad" for FedAdam, FedYogi and FedAdagrad; "momentum"
        for FedAvgM, `m <- beta1 m + d` and `x <- x + server_rate m`.
      server_rate: the server's learning rate eta.
      beta1: 0 or more and less than 1; the paper has 0 for FedAdagrad.
      beta2: likewise, of "adam" and "yogi".
      tau: degree of adaptivity, more than 0.
      **options: see `ServerOptions`.

    Example:
      >>> import optax
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=4, split=pj.split.iid())
      >>> task = pj.classification(pj.nn.MLP((16, 10)), data)
      >>> method = pj.fedopt(task, optax.sgd(0.1), batch_size=32, rule="yogi")
      >>> method.round_is
      "1 local epoch of each chosen client, then the server's mean"
    """
    if rule not in RULES:
        raise InputError(f"Need a rule among {', '.join(RULES)}, got {rule}.")
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= beta < 1:
            raise InputError(f"Need a {name} of 0 or more and less than 1, got {beta}.")
    for name, value in (("server_rate", server_rate), ("tau", tau)):
        if not 0 < value < float("inf"):
            raise InputError(f"Need a {name} of more than 0, got {value}.")
    server_opt = optax.sgd(server_rate, momentum=beta1)
    if rule != "momentum":
        server_opt = _adaptive(rule, server_rate, beta1, beta2, tau)
    return server_rounds(
        task,
        optimizer,
        batch_size=batch_size,
        server_opt=server_opt,
        name="FedOpt",
        **options,
    )


def _adaptive(
    rule: str, rate: float, beta1: float, beta2: float, tau: float
) -> optax.GradientTransformation:
    def second_moment(v: jax.Array, g: jax.Array) -> jax.Array:
        square = jnp.square(g)
        if rule == "adagrad":
            return v + square
        if rule == "yogi":
            return v - (1 - beta2) * square * jnp.sign(v - square)
        return beta2 * v + (1 - beta2) * square

    def init_fn(params: PyTree) -> AdaptiveState:
        return AdaptiveState(
            jax.tree.map(jnp.zeros_like, params),
            jax.tree.map(lambda w: jnp.full_like(w, tau**2), params),
        )

    def update_fn(
        gradient: PyTree, state: AdaptiveState, params: PyTree = None
    ) -> tuple[PyTree, AdaptiveState]:
        del params
        first = jax.tree.map(
            lambda m, g: beta1 * m + (1 - beta1) * g, state.first, gradient
        )
        second = jax.tree.map(second_moment, state.second, gradient)
        updates = jax.tree.map(
            lambda m, v: -rate * m / (jnp.sqrt(v) + tau), first, second
        )
        return updates, AdaptiveState(first, second)

    return optax.GradientTransformation(init_fn, update_fn)
