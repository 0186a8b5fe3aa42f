"""Who hears whom in one exchange of epidemic learning: drawn anew each time.

de Vos et al. (2023), "Epidemic learning: boosting decentralized learning with
randomized communication", https://arxiv.org/abs/2310.01972.
"""

import math

import numpy as np

from p2pjax.graphs.topology import Seed, Topology, from_edges, generator, receivers
from p2pjax.types import InputError

_TRIES = 100  # orders in which receivers are matched to senders
_RARE = 1e-12  # probability that an agent hears more than its table has room for


def epidemic_oracle(
    num_agents: int, num_peers: int, *, seed: Seed, permitted: Topology | None = None
) -> Topology:
    """Each agent sends to `num_peers` others and hears as many (EL-Oracle).

    Where all others may be drawn, agents are numbered anew and hear those that are so
    many places before them, with `num_peers` different distances.

    Args:
      num_agents: N.
      num_peers: s, less than N.
      seed: draws the graph.
      permitted: who may hear whom, `[N, D]`; None for all.

    >>> epidemic_oracle(16, 4, seed=0).mask.sum(1).tolist() == [4] * 16
    True
    """
    rng = generator(seed)
    _check_peers(num_agents, num_peers)
    if permitted is not None:
        return _regular_part(rng, permitted, num_peers)
    offsets = 1 + rng.choice(num_agents - 1, num_peers, replace=False)
    place = rng.permutation(num_agents)  # [N]: the agent at each place
    receiver = np.tile(place, num_peers)
    sender = np.concatenate([np.roll(place, offset) for offset in offsets])
    return from_edges(num_agents, sender, receiver)


def epidemic_local(
    num_agents: int, num_peers: int, *, seed: Seed, permitted: Topology | None = None
) -> Topology:
    """Each agent sends to `num_peers` others; some hear many and some none (EL-Local).

    The table has room for all that an agent hears, but for a chance of 1e-12, in which
    the graph is drawn again: so all graphs are of one width.

    Args:
      num_agents: N.
      num_peers: s, less than N.
      seed: draws the graph.
      permitted: who may hear whom, `[N, D]`; None for all.

    >>> len(epidemic_local(16, 4, seed=0).mask)
    16
    """
    rng = generator(seed)
    _check_peers(num_agents, num_peers)
    own = np.arange(num_agents)
    if permitted is None:
        lists = (own[:, None] + np.arange(1, num_agents)) % num_agents  # [N, L]
        may = np.ones(lists.shape, bool)
    else:
        lists, may = map(np.asarray, receivers(permitted))
        if may.sum(1).min() < num_peers:
            raise InputError(
                f"Need a graph in which each agent may send to {num_peers} others "
                f"(num_peers), got one with {may.sum(1).min()} at least."
            )
    width = _width(lists, may, num_peers)
    while True:
        draws = np.where(may, rng.random(lists.shape), 2.0)
        chosen = np.argpartition(draws, num_peers - 1, 1)[:, :num_peers]
        receiver = np.take_along_axis(lists, chosen, 1).ravel()
        if np.bincount(receiver, minlength=num_agents).max() <= width:
            break
    drawn = from_edges(num_agents, np.repeat(own, num_peers), receiver)
    missing = width - drawn.mask.shape[1]
    padding = np.repeat(own[:, None].astype(np.int32), missing, 1)
    return Topology(
        np.concatenate([drawn.neighbor, padding], 1),
        np.pad(drawn.mask, ((0, 0), (0, missing))),
    )


def _width(lists: np.ndarray, may: np.ndarray, num_peers: int) -> int:
    """Senders for which a table needs room: with Chernoff's bound, or all there are."""
    sender, place = np.nonzero(may)
    receiver = lists[sender, place]
    num_agents = len(lists)
    most = int(np.bincount(receiver, minlength=num_agents).max())
    chance = num_peers / may.sum(1)[sender]
    mean = np.bincount(receiver, chance, num_agents).max()
    for width in range(math.ceil(mean) + 1, most):
        above = width + 1
        if above - mean - above * math.log(above / mean) < math.log(_RARE / num_agents):
            return width
    return most


def _regular_part(
    rng: np.random.Generator, permitted: Topology, num_peers: int
) -> Topology:
    """Disjoint one-to-one assignments of senders to receivers."""
    from scipy import sparse

    neighbor, mask = map(np.asarray, permitted)
    num_agents = len(mask)
    for _ in range(_TRIES):
        is_free = np.zeros((num_agents, num_agents), bool)  # [receiver, sender]
        receiver, slot = np.nonzero(mask)
        is_free[receiver, neighbor[receiver, slot]] = True
        found = []
        for _ in range(num_peers):
            row, column = rng.permutation(num_agents), rng.permutation(num_agents)
            match = sparse.csgraph.maximum_bipartite_matching(
                sparse.csr_array(is_free[row][:, column]), perm_type="column"
            )
            if (match < 0).any():
                break
            sender = np.empty(num_agents, np.int64)
            sender[row] = column[match]
            is_free[np.arange(num_agents), sender] = False
            found.append(sender)
        if len(found) == num_peers:
            receiver = np.tile(np.arange(num_agents), num_peers)
            return from_edges(num_agents, np.concatenate(found), receiver)
    raise InputError(
        f"Need a graph in which all agents can hear, and be heard by, {num_peers} "
        f"others (num_peers) at once, found none in {_TRIES} tries: give a graph with "
        'more links, fewer num_peers, or variant="local".'
    )


def _check_peers(num_agents: int, num_peers: int) -> None:
    if not isinstance(num_peers, int | np.integer) or not 0 < num_peers < num_agents:
        raise InputError(
            f"Need num_peers of 1 or more and less than {num_agents} (the number of "
            f"agents), got {num_peers}."
        )
