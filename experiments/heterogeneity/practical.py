"""The divergence of the practical split in closed form, and its constructions.

Sajina (2025) prints .5229 for MNIST over 100 agents and leaves open what becomes of the
fifth of a class that does not go to the cluster it belongs to.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.engine import design
from p2pjax.datasets import label_skew
from p2pjax.types import InputError

NUM_CLUSTERS, DOMINANT = 5, 0.8
PARTS = ("near", "same")


class Construction(NamedTuple):
    """One combination; the fields are flags."""

    other_share: float  # of a class, that goes to each cluster it does not belong to
    parts: str


def constructions(
    other_share: Sequence[float], parts: Sequence[str]
) -> list[tuple[dict[str, Any], Construction]]:
    """What rows say of each combination, and the combination.

    Args:
      other_share: shares that are tried.
      parts: of `PARTS`, those that are tried.
    """
    found = design.combinations({"other_share": other_share, "parts": parts})
    return [(setting, Construction(**named)) for setting, named in found]


def cut(
    construction: Construction, y: np.ndarray, rng: np.random.Generator, num_agents: int
) -> list[np.ndarray]:
    """Rows that every agent gets.

    Args:
      construction: of the split.
      y: labels `[E]`.
      rng: source of everything random.
      num_agents: N.
    """
    return label_skew.dominant_classes(
        y,
        rng,
        num_agents,
        num_clusters=NUM_CLUSTERS,
        dominant=DOMINANT,
        other=construction.other_share,
        same_number=construction.parts == "same",
    )


def expected_jsd(other_share: float, num_agents: int, num_classes: int) -> float:
    """The mean over pairs of agents where all shares are exact, in closed form.

    With p and q the shares of an own and of another class in an agent's data, and k
    classes of a cluster, agents of different clusters have 2 k terms each that differ:
    JSD = k (p log2(2 p / (p + q)) + q log2(2 q / (p + q))). Agents of one cluster have
    none.

    Args:
      other_share: of a class, that goes to each cluster it does not belong to.
      num_agents: N, a multiple of the clusters.
      num_classes: a multiple of the clusters.

    Example:
      >>> round(expected_jsd(0.04, 100, 10), 4), round(expected_jsd(0.05, 100, 10), 4)
      (0.5118, 0.4652)
    """
    if not 0 < other_share <= DOMINANT:
        raise InputError(
            f"Need a share of other classes above 0 and up to {DOMINANT}, got "
            f"{other_share}."
        )
    own = num_classes // NUM_CLUSTERS
    total = own * DOMINANT + (num_classes - own) * other_share
    p, q = DOMINANT / total, other_share / total
    apart = own * (p * np.log2(2 * p / (p + q)) + q * np.log2(2 * q / (p + q)))
    per_cluster = num_agents // NUM_CLUSTERS
    return float(apart * (num_agents - per_cluster) / (num_agents - 1))
