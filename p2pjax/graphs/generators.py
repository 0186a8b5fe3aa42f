"""Named graphs as neighbour tables, with `topology`'s ring, complete, random_regular.

Lattices, stars and random graphs; the exponential graphs of Ying et al. (2021); the
directed, clustered and oracle graphs of Sajina (2025); any file of edges.
"""

from collections.abc import Sequence
from pathlib import Path

import networkx as nx
import numpy as np
from scipy import optimize, sparse

from p2pjax.graphs.topology import Topology, from_edges, from_graph, stack
from p2pjax.types import InputError

RANDOM_TRIES = 1000  # enough for permutations of up to about five disjoint ones


def grid(num_agents: int, rows: int) -> Topology:
    """A rectangle of `rows` rows in which agent `a * columns + b` is at (a, b)."""
    return _lattice(num_agents, rows, wraps=False)


def torus(num_agents: int, rows: int) -> Topology:
    """A grid whose opposite sides touch: 4 neighbours, 3 if one side is 2."""
    return _lattice(num_agents, rows, wraps=True)


def _lattice(num_agents: int, rows: int, wraps: bool) -> Topology:
    if num_agents < 1 or rows < 1 or num_agents % rows:
        raise InputError(
            f"Need a number of rows that divides {num_agents} (the number of agents), "
            f"got {rows}."
        )
    columns = num_agents // rows
    lattice = nx.grid_2d_graph(rows, columns, periodic=wraps)
    place = {(a, b): a * columns + b for a in range(rows) for b in range(columns)}
    return from_graph(nx.relabel_nodes(lattice, place))


def star(num_agents: int) -> Topology:
    """Agent 0 talks to everybody, the others to agent 0 only."""
    return from_graph(nx.star_graph(range(num_agents)))


def erdos_renyi(
    rng: np.random.Generator,
    num_agents: int,
    probability: float,
    *,
    directed: bool = False,
) -> Topology:
    """Every edge exists with the same probability, independently of the others.

    The graph need not be connected: see `analysis.warn_if_not_strongly_connected`.
    """
    _check_probability("an edge", probability)
    return from_graph(
        nx.gnp_random_graph(
            max(num_agents, 0), probability, seed=_seed(rng), directed=directed
        )
    )


def small_world(
    rng: np.random.Generator, num_agents: int, degree: int, probability: float
) -> Topology:
    """A ring of the `degree` nearest neighbours with rewired edges.

    Watts & Strogatz (1998), "Collective dynamics of 'small-world' networks".

    Args:
      rng: draws the rewiring.
      num_agents: on the ring.
      degree: neighbours of everybody before rewiring, an even number.
      probability: that an edge is rewired.
    """
    if not 0 < degree < num_agents or degree % 2:
        raise InputError(
            f"Need an even degree of 2 or more and less than {num_agents} (the number "
            f"of agents), half of it on either side of the ring, got {degree}."
        )
    _check_probability("rewiring an edge", probability)
    return from_graph(
        nx.watts_strogatz_graph(num_agents, degree, probability, seed=_seed(rng))
    )


def directed_regular(
    rng: np.random.Generator, num_agents: int, degree: int
) -> Topology:
    """A random directed graph in which everybody sends to and hears `degree` agents.

    The union of `degree` random permutations without fixed points and without repeated
    edges.
    """
    _check_degree(num_agents, degree)
    used = np.arange(num_agents)[None]  # [1 + permutations, N]
    for _ in range(degree):
        used = np.append(used, [_permutation_without(rng, used)], axis=0)
    return from_edges(num_agents, np.tile(used[0], degree), used[1:].ravel())


def _permutation_without(rng: np.random.Generator, used: np.ndarray) -> np.ndarray:
    """A random permutation `[N]` that differs from all used ones `[U, N]` everywhere.

    Uniform where a thousand tries find one; for larger degrees some matching of the
    agents in random order, which exists because the pairs left over are regular too.
    """
    num_agents = used.shape[1]
    for _ in range(RANDOM_TRIES):
        permutation = rng.permutation(num_agents)
        if (permutation != used).all():
            return permutation
    row, column = rng.permutation(num_agents), rng.permutation(num_agents)
    is_free = np.ones((num_agents, num_agents), bool)
    is_free[np.arange(num_agents), used] = False
    match = sparse.csgraph.maximum_bipartite_matching(
        sparse.csr_array(is_free[row][:, column]), perm_type="column"
    )
    permutation = np.empty(num_agents, np.int64)
    permutation[row] = column[match]
    return permutation


def havel_hakimi(num_agents: int, degree: int) -> Topology:
    """A directed graph with all degrees `degree` that is the same in every call.

    Neighbours have near numbers: of 100 agents in two halves only a quarter of the
    edges cross. It reproduces published results of "sparse" graphs; for experiments
    use `directed_regular`.
    """
    _check_degree(num_agents, degree)
    degrees = [degree] * num_agents
    return from_graph(nx.directed_havel_hakimi_graph(degrees, degrees))


def exponential(num_agents: int) -> Topology:
    """Agent i sends to i + 1, i + 2, i + 4, ... (modulo the number of agents).

    Ying et al. (2021), "Exponential graph is provably efficient for decentralized deep
    training". It is directed.
    """
    hops = _exponential_hops(num_agents)
    sender = np.tile(np.arange(num_agents), len(hops))
    receiver = (sender + np.repeat(hops, num_agents)) % num_agents
    return from_edges(num_agents, sender, receiver)


def one_peer_exponential(num_agents: int) -> Topology:
    """The edges of `exponential` one hop length at a time: a sequence `[G, N, 1]`.

    Where the number of agents is a power of two, one pass through the sequence with
    weights 1/2 reaches the exact mean.
    """
    everybody = np.arange(num_agents)
    return stack(
        [
            from_edges(num_agents, everybody, (everybody + hop) % num_agents)
            for hop in _exponential_hops(num_agents)
        ]
    )


def _exponential_hops(num_agents: int) -> np.ndarray:
    if num_agents < 2:
        raise InputError(
            f"Need two agents or more for an exponential graph, got {num_agents}."
        )
    return 2 ** np.arange((num_agents - 1).bit_length())


def oracle(
    rng: np.random.Generator, cluster: np.ndarray | Sequence[int], degree: int = 3
) -> Topology:
    """A `directed_regular` graph inside every cluster, and no edges between them.

    Args:
      rng: draws the graphs.
      cluster: `[N]` labels.
      degree: of everybody.
    """
    cluster = np.asarray(cluster)
    return from_edges(len(cluster), *_edges_inside(rng, cluster, degree))


def clustered(
    rng: np.random.Generator, cluster: np.ndarray | Sequence[int], degree: int = 3
) -> Topology:
    """All edges but one of every agent stay inside its cluster.

    Everybody sends `degree - 1` messages inside the own cluster and one to another, and
    receives as many from each; with the default a third of what anybody receives comes
    from outside. The edges between clusters spread as evenly over the pairs of clusters
    as the sizes allow; between two clusters they are a random bijection each way.

    Args:
      rng: draws the graph.
      cluster: `[N]` labels of tasks or clusters; none may hold more than half of all.
      degree: edges in and out of everybody.
    """
    cluster = np.asarray(cluster)
    sender, receiver = _edges_inside(rng, cluster, degree - 1)
    start, stop = _edges_between(rng, cluster)
    return from_edges(len(cluster), np.append(sender, start), np.append(receiver, stop))


def _edges_inside(
    rng: np.random.Generator, cluster: np.ndarray, degree: int
) -> tuple[np.ndarray, np.ndarray]:
    labels, sizes = np.unique(cluster, return_counts=True)
    if len(labels) == 0 or degree < 1 or sizes.min() <= degree:
        smallest = f"the smallest has {sizes.min()}" if len(sizes) else "there are none"
        raise InputError(
            "Need more agents in every cluster than the edges inside it that each of "
            f"them has, one or more; {smallest} and {degree} edges were asked for."
        )
    senders, receivers = [], []
    for label in labels:
        members = np.flatnonzero(cluster == label)
        inside = directed_regular(rng, len(members), degree)
        senders.append(members[inside.neighbor.ravel()])
        receivers.append(np.repeat(members, degree))
    return np.concatenate(senders), np.concatenate(receivers)


def _edges_between(
    rng: np.random.Generator, cluster: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A random permutation of the agents in which nobody stays in the own cluster."""
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


def from_edge_list(
    path: str | Path, num_agents: int | None = None, *, directed: bool = True
) -> Topology:
    """Reads a text file with a line "sender receiver" for every edge.

    Agents are numbered from 0; what follows a # is a comment.

    Args:
      path: of the file.
      num_agents: needed where agents without any edge exist.
      directed: whether edges are one-way; otherwise each line stands for both ways.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"Need a file of edges, but {path} is not a file.")
    found = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        words = line.split("#")[0].split()
        if words:
            found.append(_read_edge(words, f"{path} line {number}", num_agents))
    if not found and num_agents is None:
        raise InputError(f"Need one edge or more, but {path} has none.")
    sender, receiver = np.array(found, np.int64).reshape(-1, 2).T
    if num_agents is None:
        present = np.unique(np.append(sender, receiver))
        num_agents = int(present[-1]) + 1
        if len(present) < num_agents:
            missing = np.flatnonzero(present != np.arange(len(present)))[0]
            raise InputError(
                f"Need agents numbered from 0 without gaps, but {path} has no edge of "
                f"agent {missing}: renumber them, or give the number of agents if it "
                "is alone."
            )
    if directed:
        return from_edges(num_agents, sender, receiver)
    return from_edges(
        num_agents, np.append(sender, receiver), np.append(receiver, sender)
    )


def _read_edge(words: list[str], where: str, num_agents: int | None) -> tuple[int, int]:
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise InputError(
            f'Need two whole numbers "sender receiver", got "{" ".join(words)}" in '
            f"{where}."
        )
    sender, receiver = map(int, words)
    if num_agents is not None and max(sender, receiver) >= num_agents:
        raise InputError(
            f"Need agents 0 to {num_agents - 1}, got agent {max(sender, receiver)} in "
            f"{where}."
        )
    return sender, receiver


def _check_degree(num_agents: int, degree: int) -> None:
    if not 0 < degree < num_agents:
        raise InputError(
            f"Need 0 < degree < {num_agents} (the number of agents), got {degree}."
        )


def _check_probability(name: str, probability: float) -> None:
    if not 0 <= probability <= 1:
        raise InputError(
            f"Need a probability of {name} from 0 to 1, got {probability}."
        )


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def ring(num_agents: int, *, directed: bool = False) -> Topology:
    """Everybody has two neighbours; directed, i sends to i + 1 only."""
    kind = nx.DiGraph if directed else nx.Graph
    return from_graph(nx.cycle_graph(range(num_agents), create_using=kind))


def complete(num_agents: int) -> Topology:
    """Everybody talks to everybody."""
    return from_graph(nx.complete_graph(range(num_agents)))


def random_regular(rng: np.random.Generator, num_agents: int, degree: int) -> Topology:
    """A uniformly random simple graph in which everybody has `degree` neighbours.

    It is undirected. Of degree 2 it mostly falls into several rings: `ring` is one.
    """
    if not 0 < degree < num_agents or num_agents * degree % 2:
        raise InputError(
            f"Need 0 < degree < {num_agents} (the number of agents) and an even "
            f"product of the two, got degree {degree}."
        )
    seed = int(rng.integers(2**31))
    if 2 * degree < num_agents:
        return from_graph(nx.random_regular_graph(degree, num_agents, seed=seed))
    # Pairing points at random hardly ever succeeds for dense graphs; their
    # complements are as uniform and quickly found.
    sparse = nx.random_regular_graph(num_agents - 1 - degree, num_agents, seed=seed)
    return from_graph(nx.complement(sparse))
