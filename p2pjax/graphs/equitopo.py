"""EquiTopo: random shifts, whose consensus rate does not depend on the agents' number.

Song et al. (2022), "Communication-efficient topologies for decentralized learning with
O(1) consensus rate", https://arxiv.org/abs/2210.07881. All matrices are doubly
stochastic and bring their weights.
"""

import jax
import numpy as np

from p2pjax.graphs.topology import Seed, generator, weighted_edges
from p2pjax.types import InputError, Peers


def equi_dyn(
    num_agents: int, *, seed: Seed, directed: bool = True, weight: float = 0.5
) -> Peers:
    """One peer each, at a random distance: OD-EquiDyn, or OU-EquiDyn of pairs.

    Directed, all agents hear the agent a random number v of places before them. Else
    agents are paired at a random distance, as many as a walk around the ring of agents
    from a random one finds free. One mixing shrinks the squared disagreement by (N - 2)
    / (2 N - 2) in the mean if it is directed, whatever the models are. Give a method
    `lambda rng: equi_dyn(16, seed=rng)` and `rewire_every=graphs.COMMUNICATION`.
    Song et al. (2022), https://arxiv.org/abs/2210.07881.

    Args:
      num_agents: N, 2 or more.
      seed: draws the distance, and where a walk starts.
      directed: whether agents hear others than those that hear them.
      weight: of the peer's model; with weights near 1 models are swapped rather than
        averaged.

    Returns:
      `Peers` `[N, 2]` of one mixing.

    >>> equi_dyn(4, seed=0).weight.tolist()
    [[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]
    """
    _check(num_agents)
    if not 0 < weight < 1:
        raise InputError(
            f"Need a weight of the peer's model between 0 and 1, got {weight}: 0.5 "
            "averages best."
        )
    rng = generator(seed)
    distance = int(rng.integers(1, num_agents))
    if directed:
        return _shifts(num_agents, np.array([distance]), weight)
    partner = np.arange(num_agents)
    start = int(rng.integers(num_agents))
    for i in (start + np.arange(num_agents)) % num_agents:
        other = (i + distance) % num_agents
        if partner[i] == i and partner[other] == other:
            partner[i], partner[other] = other, i
    is_paired = partner != np.arange(num_agents)
    return _peers(num_agents, partner[is_paired], np.flatnonzero(is_paired), weight)


def equi_static(num_agents: int, num_shifts: int, *, seed: Seed) -> Peers:
    """The mean of so many random shifts, one graph that stays: D-EquiStatic.

    Each agent hears the agents at as many random distances before it, or fewer: a
    distance may be drawn twice, and then counts twice. Some draws mix badly:
    `spectral_gap` tells. Song et al. (2022), https://arxiv.org/abs/2210.07881.

    Args:
      num_agents: N, 2 or more.
      num_shifts: M, how many distances are drawn.
      seed: draws them.

    >>> equi_static(16, 4, seed=0).ids.shape[0]
    16
    """
    _check(num_agents)
    if num_shifts < 1:
        raise InputError(
            f"Need one shift or more to take the mean of, got {num_shifts}."
        )
    distances = generator(seed).integers(1, num_agents, size=num_shifts)
    return _shifts(num_agents, distances, (num_agents - 1) / num_agents)


def _check(num_agents: int) -> None:
    if num_agents < 2:
        raise InputError(f"Need two agents or more for a shift, got {num_agents}.")


def _shifts(num_agents: int, distances: np.ndarray, weight: float) -> Peers:
    """Agents hear those at these distances before them, `weight` in all of others."""
    distances, counts = np.unique(distances, return_counts=True)
    receiver = np.repeat(np.arange(num_agents), len(distances))
    sender = (receiver - np.tile(distances, num_agents)) % num_agents
    share = np.tile(weight * counts / counts.sum(), num_agents)
    return _peers(num_agents, sender, receiver, share)


def _peers(
    num_agents: int, sender: np.ndarray, receiver: np.ndarray, share: np.ndarray | float
) -> Peers:
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    share = np.broadcast_to(share, sender.shape).astype(dtype)
    own = 1 - np.bincount(receiver, share, num_agents)
    return weighted_edges(num_agents, sender, receiver, share, own)
