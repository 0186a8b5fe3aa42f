"""D-Cliques: groups whose labels together look like those of all, made on the host.

Bellet, Kermarrec, Lavoie (2022), "D-Cliques: Compensating for data heterogeneity with
topology in decentralized federated learning". `algorithms._d_cliques` learns on them.
"""

import itertools

import numpy as np

from p2pjax.datasets.stacking import label_histograms
from p2pjax.graphs.topology import Topology, from_edges
from p2pjax.types import FederatedData, InputError


def cliques(
    rng: np.random.Generator,
    histograms: np.ndarray,
    *,
    max_size: int = 10,
    num_swaps: int = 1000,
) -> np.ndarray:
    """Clique of every agent, `[N]`, by greedy swaps.

    Args:
      rng: of the first cliques and the swaps.
      histograms: how often every agent has each label, `[N, k]`.
      max_size: agents of a clique.
      num_swaps: times that two cliques try to exchange a member each.
    """
    shares = _distributions(histograms)
    if max_size < 1 or num_swaps < 0:
        raise InputError(
            "Need cliques of one agent or more and no negative number of swaps, got "
            f"max_size={max_size} and num_swaps={num_swaps}."
        )
    num_agents = len(shares)
    parts = np.array_split(rng.permutation(num_agents), -(-num_agents // max_size))
    overall = shares.mean(0)
    for _ in range(num_swaps if len(parts) > 1 else 0):
        one, other = (parts[c] for c in rng.choice(len(parts), 2, replace=False))
        gains = np.argwhere(_after_swap(shares, overall, one, other) < -1e-12)
        if len(gains):
            i, j = gains[rng.integers(len(gains))]
            one[i], other[j] = other[j], one[i]
    clique = np.empty(num_agents, np.int64)
    for number, members in enumerate(parts):
        clique[members] = number
    return clique


def label_cliques(
    data: FederatedData,
    *,
    max_size: int = 10,
    num_swaps: int = 1000,
    seed: int | np.random.Generator = 0,
) -> np.ndarray:
    """Clique of each agent, `[N]`, whose training labels are as those of all agents.

    Args:
      data: with labels `y`.
      max_size: agents of a clique.
      num_swaps: times that two cliques try to exchange a member each.
      seed: of the first cliques and the swaps.

    Example:
      >>> import p2pjax as pj
      >>> data = pj.datasets.digits(num_agents=8, split=pj.split.pathological())
      >>> len(pj.selection.label_cliques(data, max_size=4))
      8
    """
    labels = np.asarray(data.train.examples["y"])
    histograms = np.asarray(label_histograms(data.train, int(labels.max()) + 1))
    rng = np.random.default_rng(seed)
    return cliques(rng, histograms, max_size=max_size, num_swaps=num_swaps)


def skew(histograms: np.ndarray, clique: np.ndarray) -> np.ndarray:
    """How far the labels of every clique are from those of all, `[cliques]`.

    Sums of absolute differences, from 0 to 2.
    """
    shares = _distributions(histograms)
    overall = shares.mean(0)
    return np.array(
        [np.abs(shares[clique == c].mean(0) - overall).sum() for c in np.unique(clique)]
    )


def clique_graph(clique: np.ndarray) -> Topology:
    """Each agent is linked to its clique, and every two cliques by one edge.

    The edge is between those of each that have the fewest such edges so far, of these
    the ones with the lowest numbers.
    """
    clique = np.asarray(clique)
    members = [np.flatnonzero(clique == c) for c in np.unique(clique)]
    ends = [pair for own in members for pair in itertools.combinations(own, 2)]
    num_links = np.zeros(len(clique), int)
    for one, other in itertools.combinations(members, 2):
        pair = tuple(own[num_links[own].argmin()] for own in (one, other))
        num_links[list(pair)] += 1
        ends.append(pair)
    first, second = np.array(ends, np.int64).reshape(-1, 2).T
    return from_edges(len(clique), np.append(first, second), np.append(second, first))


def _after_swap(
    shares: np.ndarray, overall: np.ndarray, one: np.ndarray, other: np.ndarray
) -> np.ndarray:
    """Change of the sum of skews if members i and j change places, `[i, j]`."""
    moved = shares[other][None] - shares[one][:, None]  # [i, j, k]: what `one` gains
    change = np.zeros(moved.shape[:2])
    for members, gained in ((one, moved), (other, -moved)):
        off = shares[members].mean(0) - overall
        change += np.abs(off + gained / len(members)).sum(-1) - np.abs(off).sum()
    return change


def _distributions(histograms: np.ndarray) -> np.ndarray:
    histograms = np.asarray(histograms, float)
    total = histograms.sum(-1, keepdims=True)
    if histograms.ndim != 2 or not (total > 0).all():
        raise InputError(
            "Need a histogram of labels of every agent, [agents, labels], none without "
            f"examples, got shape {histograms.shape}."
        )
    return histograms / total
