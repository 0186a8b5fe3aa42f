"""What posteriors of weights have learned: their width, their way from the prior."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from p2pjax.nn import gaussian
from p2pjax.nn.gaussian import Gaussian, Natural
from p2pjax.types import Array, PyTree

LOW, HIGH = 0.05, 0.95  # quantiles of the deviations of all weights


def mean_of_weights(tree: PyTree) -> Array:
    """Mean over all weights of each agent, leaves `[N, ...]`, `[N]`.

    Args:
      tree: such as the deviations of a posterior.

    Example:
      >>> mean_of_weights({"a": jnp.ones((2, 3)), "b": jnp.zeros((2, 1))}).tolist()
      [0.75, 0.75]
    """
    return _flat(tree).mean(1)


def divergence(q: Gaussian, p: Gaussian) -> Array:
    """KL(q || p) of each agent, leaves `[N, ...]`, `[N]`.

    Args:
      q: posteriors.
      p: what they are held against.

    Example:
      >>> q = Gaussian(jnp.ones((2, 1)), jnp.ones((2, 1)))
      >>> divergence(q, gaussian.centered(1.0, q.mean)).tolist()
      [0.5, 0.5]
    """
    return jax.vmap(gaussian.kl_divergence)(q, p)


def of_columns(q: Gaussian, prior_stddev: float) -> dict[str, Array]:
    """Deviations, divergences and gates of a shared and a private column, `[N]` each.

    `server_stddev` and `client_stddev` are means over weights; between
    `server_stddev_low` and `server_stddev_high` are nine tenths of the server's. Where
    no data have informed it, all of its weights are equally wide. `server_divergence`
    and `client_divergence` are from the prior, in nats; `gate` is the mean size of the
    gates, where there are any.

    Args:
      q: posteriors, leaves `[N, ...]`; their trees have the parts `server` and
        `client`.
      prior_stddev: of the prior.

    Example:
      >>> mean = {"server": jnp.zeros((2, 3)), "client": {"gate": jnp.ones((2, 1))}}
      >>> q = gaussian.centered(0.5, mean)._replace(mean=mean)
      >>> found = of_columns(q, prior_stddev=1.0)
      >>> float(found["server_stddev"][0]), float(found["gate"][1])
      (0.5, 1.0)
    """
    server = Gaussian(q.mean["server"], q.stddev["server"])
    client = Gaussian(q.mean["client"], q.stddev["client"])
    wide = _flat(server.stddev)
    low, high = jnp.quantile(wide, jnp.asarray([LOW, HIGH], wide.dtype), axis=1)
    found = {
        "server_stddev": wide.mean(1),
        "server_stddev_low": low,
        "server_stddev_high": high,
        "server_divergence": _from_prior(server, prior_stddev),
        **of_private(client, prior_stddev),
    }
    gates = _named(client.mean, "gate")
    return found | ({"gate": mean_of_weights(gates)} if gates else {})


def of_private(q: Gaussian, prior_stddev: float) -> dict[str, Array]:
    """`client_stddev` and `client_divergence` from the prior, `[N]` each.

    Args:
      q: posteriors, leaves `[N, ...]`.
      prior_stddev: of the prior.

    Example:
      >>> q = gaussian.centered(1.0, jnp.zeros((2, 3)))
      >>> of_private(q, prior_stddev=1.0)["client_divergence"].tolist()
      [0.0, 0.0]
    """
    return {
        "client_stddev": mean_of_weights(q.stddev),
        "client_divergence": _from_prior(q, prior_stddev),
    }


def of_factors(
    factors: Natural, server: Gaussian, targets: Natural
) -> dict[str, Array]:
    """What each client's factor adds to a product, `[N]` each.

    `factor_precision` is the mean over weights of the precision that a client's factor
    claims, `cavity_divergence` that of the server's posterior from what the client was
    held to.

    Args:
      factors: leaves `[N, ...]`.
      server: their product, leaves `[N, ...]`.
      targets: what each client's posterior is held to, leaves `[N, ...]`.

    Example:
      >>> factor = gaussian.natural(gaussian.centered(0.5, jnp.zeros((2, 3))))
      >>> server = gaussian.centered(0.5, jnp.zeros((2, 3)))
      >>> of_factors(factor, server, factor)["factor_precision"].tolist()
      [4.0, 4.0]
    """
    return {
        "factor_precision": mean_of_weights(factors.precision),
        "cavity_divergence": divergence(server, gaussian.moments(targets)),
    }


def _from_prior(q: Gaussian, stddev: float) -> Array:
    return divergence(q, gaussian.centered(stddev, q.mean))


def _flat(tree: PyTree) -> Array:
    """`[N, P]`."""
    leaves = jax.tree.leaves(tree)
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], 1)


def _named(tree: PyTree, name: str) -> Sequence[Array]:
    """Absolute values of leaves of this name."""
    found = jax.tree_util.tree_leaves_with_path(tree)
    return [
        abs(leaf)
        for path, leaf in found
        if path and getattr(path[-1], "key", None) == name
    ]
