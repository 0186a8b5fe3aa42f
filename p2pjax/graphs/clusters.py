"""Graphs of agents in clusters: oracle, clustered, two worlds, dumbbell, barbell.

The first two are of Sajina (2025), "Deep Learning Personalization Methods in
Peer-to-peer Heterogeneous Systems": directed, and each agent has as many senders as
receivers. The others are two cliques with links between them, undirected, on which
robust rules are studied.
"""

from collections.abc import Sequence

import numpy as np

from p2pjax.graphs.generators import RANDOM_TRIES, directed_regular
from p2pjax.graphs.topology import Seed, Topology, from_edges, from_graph, generator
from p2pjax.types import Array, InputError


def oracle(cluster: Array | Sequence[int], degree: int = 3, *, seed: Seed) -> Topology:
    """A `directed_regular` graph inside each cluster, and no edges between them.

    Args:
      cluster: `[N]` labels.
      degree: number of senders and of receivers of each agent.
      seed: draws the graphs.

    >>> oracle([0, 0, 1, 1], degree=1, seed=0).neighbor.tolist()
    [[1], [0], [3], [2]]
    """
    cluster = _labels(cluster)
    return from_edges(len(cluster), *_edges_inside(generator(seed), cluster, degree))


def clustered(
    cluster: Array | Sequence[int],
    degree: int = 3,
    *,
    foreign: float | None = None,
    seed: Seed,
) -> Topology:
    """Each agent has some edges inside its cluster and the others to other clusters.

    As many of its senders as of its receivers are foreign: one, if not said otherwise,
    so that with the default degree a third of what an agent receives comes from
    outside. The edges between clusters spread as evenly over the pairs of clusters as
    the sizes allow; between two clusters they are random bijections each way.

    Args:
      cluster: `[N]` labels of tasks or clusters; none may hold more than half of all
        agents, if any edges are foreign.
      degree: number of senders and of receivers of each agent.
      foreign: share of an agent's edges that are foreign, 0 to 1; taken to the nearest
        whole number of edges. None is one edge.
      seed: draws the graph.

    >>> cluster = np.repeat([0, 1], 6)
    >>> graph = clustered(cluster, degree=3, foreign=2 / 3, seed=0)
    >>> (cluster[graph.neighbor] != cluster[:, None]).sum(1).tolist()
    [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    cluster, rng = _labels(cluster), generator(seed)
    if foreign is not None and not 0 <= foreign <= 1:
        raise InputError(f"Need a share of foreign edges from 0 to 1, got {foreign}.")
    num_foreign = 1 if foreign is None else round(foreign * degree)
    ends = []
    if foreign is None or num_foreign < degree or degree < 1:  # which is refused there
        ends.append(_edges_inside(rng, cluster, degree - num_foreign))
    if num_foreign:
        ends.append(_several_edges_between(rng, cluster, num_foreign))
    sender, receiver = map(np.concatenate, zip(*ends, strict=True))
    return from_edges(len(cluster), sender, receiver)


def two_worlds(num_agents: int, links: int) -> Topology:
    """Two cliques, each agent linked to so many agents of the other one.

    The second smallest eigenvalue of its Laplacian is twice the links, as long as these
    are no more than half of a clique: no rule can resist as many attackers beside each
    agent as it has links. Gaucher, Dieuleveut, Hendrikx (2025), "Unified breakdown
    analysis for Byzantine robust gossip", https://arxiv.org/abs/2410.10418.

    Args:
      num_agents: N, an even number; the first half is one clique.
      links: k: agent i is linked to k consecutive agents of the other clique, of which
        agent i + N / 2 is the first.

    >>> two_worlds(6, 1).neighbor.tolist()
    [[1, 2, 3], [0, 2, 4], [0, 1, 5], [0, 4, 5], [1, 3, 5], [2, 3, 4]]
    """
    size = _half(num_agents)
    if not 0 < links <= size:
        raise InputError(
            f"Need 1 to {size} links of each agent to the other of two worlds of "
            f"{size} agents, got {links}."
        )
    own = np.repeat(np.arange(size), links)
    other = size + (own + np.tile(np.arange(links), size)) % size
    return _linked_cliques(num_agents, own, other)


def dumbbell(num_agents: int, extra_edges: int = 0, *, seed: Seed = 0) -> Topology:
    """Two cliques and a bridge between the first and the last agent.

    He, Karimireddy, Jaggi (2022), "Byzantine-robust decentralized learning via
    ClippedGossip", https://arxiv.org/abs/2202.01545.

    Args:
      num_agents: N, an even number; the first half is one clique.
      extra_edges: more edges between the cliques, at random.
      seed: draws these.

    >>> dumbbell(6).mask.sum(1).tolist()
    [3, 2, 2, 2, 2, 3]
    """
    size = _half(num_agents)
    bridge = size - 1  # the pair of agents 0 and N - 1
    pairs = np.delete(np.arange(size**2), bridge)
    if not 0 <= extra_edges <= len(pairs):
        raise InputError(
            f"Need 0 to {len(pairs)} more edges between two cliques of {size} agents, "
            f"got {extra_edges}."
        )
    chosen = generator(seed).choice(pairs, extra_edges, replace=False)
    own, other = np.divmod(np.append(bridge, chosen), size)
    return _linked_cliques(num_agents, own, size + other)


def barbell(num_agents: int, path: int = 0) -> Topology:
    """Two cliques and a path of agents between them: hard to agree on.

    Agents are numbered from one end to the other. Without agents on the path it is a
    `dumbbell` whose bridge is between the middle two.

    Args:
      num_agents: N; without the path an even number of 4 or more.
      path: how many agents are between the cliques.

    >>> barbell(8, path=2).mask.sum(1).tolist()
    [2, 2, 3, 2, 2, 3, 2, 2]
    """
    import networkx as nx

    if path < 0 or num_agents - path < 4 or (num_agents - path) % 2:
        raise InputError(
            "Need an even number of 4 agents or more beside a path of 0 or more for "
            f"two cliques, got {num_agents} agents and a path of {path}."
        )
    return from_graph(nx.barbell_graph((num_agents - path) // 2, path))


def _half(num_agents: int) -> int:
    if num_agents < 4 or num_agents % 2:
        raise InputError(
            f"Need an even number of 4 agents or more for two cliques, got "
            f"{num_agents}."
        )
    return num_agents // 2


def _linked_cliques(num_agents: int, own: np.ndarray, other: np.ndarray) -> Topology:
    """Two cliques and the edges between `own` and `other`, in both directions."""
    sender, receiver = np.nonzero(~np.eye(num_agents // 2, dtype=bool))
    return from_edges(
        num_agents,
        np.concatenate([sender, sender + num_agents // 2, own, other]),
        np.concatenate([receiver, receiver + num_agents // 2, other, own]),
    )


def _labels(cluster: Array | Sequence[int]) -> np.ndarray:
    labels = np.asarray(cluster)
    if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iubUS"):
        raise InputError(
            f"Need the cluster of each agent, [N] whole numbers or names, got "
            f"{list(labels.shape)} of {labels.dtype}: give for example data.cluster."
        )
    return labels


def _edges_inside(
    rng: np.random.Generator, cluster: np.ndarray, degree: int
) -> tuple[np.ndarray, np.ndarray]:
    labels, sizes = np.unique(cluster, return_counts=True)
    if len(labels) == 0 or degree < 1 or sizes.min() <= degree:
        smallest = f"the smallest has {sizes.min()}" if len(sizes) else "there are none"
        raise InputError(
            "Need more agents in each cluster than the edges inside it that each of "
            f"them has, one or more; {smallest} and {degree} edges were asked for."
        )
    senders, receivers = [], []
    for label in labels:
        members = np.flatnonzero(cluster == label)
        inside = directed_regular(len(members), degree, seed=rng)
        senders.append(members[inside.neighbor.ravel()])
        receivers.append(np.repeat(members, degree))
    return np.concatenate(senders), np.concatenate(receivers)


def _several_edges_between(
    rng: np.random.Generator, cluster: np.ndarray, degree: int
) -> tuple[np.ndarray, np.ndarray]:
    """Permutations in which all leave their cluster, without repeated edges."""
    used = np.empty(0, np.int64)
    for _ in range(degree * RANDOM_TRIES):
        sender, receiver = _edges_between(rng, cluster)
        found = sender * len(cluster) + receiver
        if not np.isin(found, used).any():
            used = np.append(used, found)
        if len(used) == degree * len(cluster):
            sender, receiver = np.divmod(used, len(cluster))
            return sender, receiver
    raise InputError(
        f"Need clusters in which {degree} foreign edges of each agent are easy to "
        f"draw, got {len(cluster)} agents: lower the degree or the share of foreign "
        "edges, or take more agents."
    )


def _edges_between(
    rng: np.random.Generator, cluster: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A random permutation of the agents in which all leave their cluster."""
    labels, sizes = np.unique(cluster, return_counts=True)
    if 2 * sizes.max() > len(cluster):
        raise InputError(
            "Need clusters of at most half of the agents, so that each edge out of "
            f"one finds a partner in another, got one of {sizes.max()} of "
            f"{len(cluster)}: two clusters must be of equal size."
        )
    table = _balanced_table(rng, sizes)  # [from, to] edges
    members = [np.flatnonzero(cluster == label) for label in labels]
    start = [rng.permutation(own) for own in members]
    stop = [rng.permutation(own) for own in members]
    sender = [
        np.split(s, np.cumsum(row)[:-1]) for s, row in zip(start, table, strict=True)
    ]
    receiver = [
        np.split(s, np.cumsum(row)[:-1]) for s, row in zip(stop, table.T, strict=True)
    ]
    pairs = range(len(labels))
    return (
        np.concatenate([sender[a][b] for a in pairs for b in pairs]),
        np.concatenate([receiver[b][a] for a in pairs for b in pairs]),
    )


def _balanced_table(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """Edges from cluster to cluster `[C, C]` with the given row and column sums.

    Least sum of squares: a flow in which the u-th edge of a pair costs 2u - 1. Such
    programs have whole solutions. Small random costs choose among equal ones.
    """
    from scipy import optimize, sparse

    num_clusters = len(sizes)
    source, target = np.nonzero(~np.eye(num_clusters, dtype=bool))
    most = np.minimum(sizes[source], sizes[target])
    pair = np.repeat(np.arange(len(source)), most)
    first = np.cumsum(most) - most
    cost = 2.0 * (np.arange(len(pair)) - first[pair]) + 1
    edge = np.arange(len(pair))
    sums = sparse.csr_array(
        (
            np.ones(2 * len(pair)),
            (
                np.append(source[pair], num_clusters + target[pair]),
                np.append(edge, edge),
            ),
        )
    )
    solution = optimize.linprog(
        cost + rng.random(len(pair)) / len(pair),
        A_eq=sums,
        b_eq=np.append(sizes, sizes),
        bounds=(0, 1),
        method="highs-ds",
    )
    table = np.zeros((num_clusters, num_clusters), np.int64)
    np.add.at(table, (source[pair], target[pair]), np.rint(solution.x).astype(int))
    return table
