"""Spectral heterogeneity: attackers pull apart what is connected least.

Gaucher, Dieuleveut, Hendrikx (2025), "Unified breakdown analysis for Byzantine robust
gossip", https://arxiv.org/abs/2410.10418. The direction is along the Fiedler vector of
the honest graph, the slowest disagreement of gossip.
"""

import warnings

import jax.numpy as jnp
import numpy as np

from p2pjax.exchange.attacks.attackers import Who, placed
from p2pjax.exchange.attacks.base import Attack, Hostile, Scene
from p2pjax.exchange.attacks.checks import check_scale
from p2pjax.exchange.attacks.honest import over_honest
from p2pjax.exchange.attacks.honest_graph import honest_laplacian
from p2pjax.graphs.topology import Topology

TOLERANCE = 1e-9  # of eigenvalues that count as the same, of the largest


def spectral(byzantine: Who, scale: float | None = None) -> Attack:
    """Byzantine agents send receiver i `x_i + scale * u_i * sum_k u_k x_k`.

    The sum is over honest agents; u is the unit Fiedler vector of their graph, whose
    sign does not matter.

    Args:
      byzantine: numbers of agents, or `attached(f)`.
      scale: how far; None: by line search, per receiver.

    Example:
      >>> from p2pjax.graphs import as_graph
      >>> path = as_graph([(0, 1), (1, 2), (2, 3)])
      >>> u = spectral(byzantine=(3,)).prepare(path, np.arange(4) == 3, None)
      >>> print(np.abs(u).round(3))
      [0.707 0.    0.707 0.   ]
    """
    check_scale("spectral", scale, searched=True)

    def hostile_fn(scene: Scene) -> Hostile:
        assert scene.prepared is not None
        u = jnp.asarray(scene.prepared).astype(scene.rows.dtype)[:, None]
        along = over_honest(scene, u * scene.rows)
        return Hostile(scene.rows, u * along)

    attack = Attack("spectral", hostile=hostile_fn, scale=scale, prepare=fiedler)
    return placed(attack, byzantine)


def fiedler(
    graph: Topology, is_byzantine: np.ndarray, owner: np.ndarray | None = None
) -> np.ndarray:
    """Unit Fiedler vector of the honest graph, `[N]`; 0 for Byzantine agents.

    Of links both ways; of a sequence of graphs, of all links that ever exist. Where
    agents own these columns in groups, one vector for each of them.

    Args:
      graph: `[N, D]` or `[G, N, D]`.
      is_byzantine: `[N]` bool.
      owner: `[N]`, agents with equal values average; None: all agents.

    Example:
      >>> from p2pjax.graphs import as_graph
      >>> path = as_graph([(0, 1), (1, 2)])
      >>> print(np.abs(fiedler(path, np.zeros(3, bool))).round(3))
      [0.707 0.    0.707]
    """
    vector = np.zeros(len(is_byzantine))
    owner = np.zeros(len(is_byzantine), int) if owner is None else owner
    for group in np.unique(owner):
        members = (owner == group) & ~np.asarray(is_byzantine)
        if group < 0 or members.sum() < 2:  # what is local is not sent
            continue
        values, vectors = np.linalg.eigh(honest_laplacian(graph, ~members))
        same = np.abs(values - values[1]) <= TOLERANCE * max(values[-1], 1)
        if same.sum() > 1:
            warnings.warn(
                "Need a simple second eigenvalue of the honest graph's Laplacian for "
                f"the direction of spectral, got {values[1]:.6g} {same.sum()} times: "
                "it is along the eigenvector that numpy returns.",
                stacklevel=2,
            )
        vector[members] = vectors[:, 1]
    return vector
