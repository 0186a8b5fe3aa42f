"""What is known of the honest agents' graph, and what it has to be, on the host."""

import warnings
from typing import Any

import numpy as np

from p2pjax.exchange.attacks.attackers import byzantine_mask
from p2pjax.exchange.attacks.base import Attack
from p2pjax.exchange.attacks.placement import byzantine_neighbors, links_of
from p2pjax.graphs.topology import edges, num_agents_of
from p2pjax.types import InputError


def check_byzantine_neighbors(graph: Any, attack: Attack, max_byzantine: int) -> None:
    """Refuses a placement in which an honest agent hears more attackers than promised.

    Args:
      graph: who receives from whom: see `graphs.as_graph`.
      attack: with its attackers.
      max_byzantine: b, that an experiment promises.

    Example:
      >>> from p2pjax.exchange import attacks
      >>> from p2pjax.graphs import ring
      >>> check_byzantine_neighbors(ring(5), attacks.foe(byzantine=(0, 2)), 2)
    """
    heard = byzantine_neighbors(graph, attack.byzantine) + attack.num_attached
    if heard.max() > max_byzantine:
        raise InputError(
            f"Need at most {max_byzantine} Byzantine neighbours of every honest agent, "
            f"got {heard.max()} at agent {heard.argmax()}: draw another placement."
        )


def warn_if_honest_disconnected(graph: Any, attack: Attack) -> bool:
    """Warns where honest agents cannot agree without attackers; returns whether."""
    num_parts = _num_parts(honest_laplacian(graph, _mask(graph, attack)))
    if num_parts > 1:
        warnings.warn(
            f"Need a connected graph of honest agents, got {num_parts} parts: no rule "
            "can make them agree.",
            stacklevel=2,
        )
    return num_parts > 1


def report(graph: Any, attack: Attack) -> dict[str, float | int]:
    """What an experiment writes about its attackers and the honest agents' graph.

    `max_byzantine_neighbors` is b; `mu_2` and `lambda_max` are the second smallest and
    the largest eigenvalue of the Laplacian of the honest graph, of links both ways,
    with unit weights. No rule can resist b >= mu_2 / 2.

    Args:
      graph: who receives from whom: see `graphs.as_graph`.
      attack: with its attackers.

    Example:
      >>> from p2pjax.exchange import attacks
      >>> from p2pjax.graphs import complete
      >>> found = report(complete(6), attacks.foe(byzantine=(0, 2)))
      >>> found["max_byzantine_neighbors"], round(found["mu_2"], 6)
      (2, 4.0)
    """
    is_byzantine = _mask(graph, attack)
    laplacian = honest_laplacian(graph, is_byzantine)
    values = np.linalg.eigvalsh(laplacian)
    heard = byzantine_neighbors(graph, attack.byzantine) + attack.num_attached
    return {
        "honest_agents": int((~is_byzantine).sum()),
        "byzantine_agents": int(is_byzantine.sum()),
        "attached_attackers": attack.num_attached,
        "max_byzantine_neighbors": int(heard.max()),
        "honest_parts": _num_parts(laplacian),
        "mu_2": float(values[1]) if len(values) > 1 else 0.0,
        "lambda_max": float(values[-1]),
    }


def honest_laplacian(graph: Any, is_byzantine: np.ndarray) -> np.ndarray:
    """Laplacian `[H, H]` of the honest agents' links both ways, with unit weights.

    Args:
      graph: who receives from whom: see `graphs.as_graph`; of a sequence all links
        that ever exist.
      is_byzantine: `[N]` bool.

    Example:
      >>> from p2pjax.graphs import ring
      >>> print(honest_laplacian(ring(4), np.arange(4) == 0))
      [[ 1. -1.  0.]
       [-1.  2. -1.]
       [ 0. -1.  1.]]
    """
    sender, receiver = edges(links_of(graph))
    linked = np.zeros((len(is_byzantine),) * 2)
    linked[sender, receiver] = linked[receiver, sender] = 1
    honest = np.flatnonzero(~np.asarray(is_byzantine))
    linked = linked[np.ix_(honest, honest)]
    return np.diag(linked.sum(1)) - linked


def _mask(graph: Any, attack: Attack) -> np.ndarray:
    return byzantine_mask(attack, num_agents_of(links_of(graph)))


def _num_parts(laplacian: np.ndarray) -> int:
    from scipy import sparse

    return int(sparse.csgraph.connected_components(laplacian, directed=False)[0])
