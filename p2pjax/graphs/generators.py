"""Named graphs as neighbour tables: rings, lattices, stars, regular, random graphs.

The exponential graphs are those of Ying et al. (2021), the directed ones are used by
Sajina (2025). Random graphs take a `seed`: a whole number, or a generator of numpy that
they draw from, so that `lambda rng: random_regular(16, 4, seed=rng)` is a function that
draws graphs. It has no default: a forgotten one would draw the same graph again.
"""

import numpy as np

from p2pjax.graphs.topology import (
    Seed,
    Topology,
    from_edges,
    from_graph,
    generator,
    stack,
)
from p2pjax.types import InputError

RANDOM_TRIES = 1000  # enough for permutations of up to about five disjoint ones


def ring(num_agents: int, *, directed: bool = False) -> Topology:
    """Each agent has two neighbours, the agents before and after it.

    Args:
      num_agents: N.
      directed: whether agent i sends to i + 1 only.

    >>> ring(4).neighbor.tolist()
    [[1, 3], [0, 2], [1, 3], [0, 2]]
    """
    import networkx as nx

    kind = nx.DiGraph if directed else nx.Graph
    return from_graph(nx.cycle_graph(range(num_agents), create_using=kind))


def complete(num_agents: int) -> Topology:
    """All agents talk to each other.

    >>> complete(3).neighbor.tolist()
    [[1, 2], [0, 2], [0, 1]]
    """
    import networkx as nx

    return from_graph(nx.complete_graph(range(num_agents)))


def grid(num_agents: int, rows: int) -> Topology:
    """A rectangle in which agent `a * columns + b` is at row a, column b.

    Args:
      num_agents: N, a multiple of `rows`.
      rows: of the rectangle.

    >>> grid(6, rows=2).mask.sum(1).tolist()  # the two in the middle have 3 neighbours
    [2, 3, 2, 2, 3, 2]
    """
    return _lattice(num_agents, rows, wraps=False)


def torus(num_agents: int, rows: int) -> Topology:
    """A grid whose opposite sides touch: 4 neighbours, 3 if one side is 2.

    Args:
      num_agents: N, a multiple of `rows`.
      rows: of the rectangle.

    >>> torus(12, rows=3).neighbor[0].tolist()
    [1, 3, 4, 8]
    """
    return _lattice(num_agents, rows, wraps=True)


def _lattice(num_agents: int, rows: int, wraps: bool) -> Topology:
    import networkx as nx

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
    """Agent 0 talks to all others, and they talk to agent 0 only.

    >>> star(4).mask.sum(1).tolist()
    [3, 1, 1, 1]
    """
    import networkx as nx

    return from_graph(nx.star_graph(range(num_agents)))


def erdos_renyi(
    num_agents: int, probability: float, *, seed: Seed, directed: bool = False
) -> Topology:
    """Each edge exists with the same probability, independently of the others.

    The G(n, p) of Gilbert (1959), "Random graphs", https://doi.org/10.1214/aoms/1177706098.
    The graph need not be connected: see `report`.

    Args:
      num_agents: N.
      probability: of each edge.
      seed: draws the edges.
      directed: whether the two directions of an edge are drawn one by one.

    >>> erdos_renyi(16, 0.3, seed=0).mask.shape[0]
    16
    """
    import networkx as nx

    _check_probability("an edge", probability)
    return from_graph(
        nx.gnp_random_graph(
            max(num_agents, 0),
            probability,
            seed=_networkx_seed(seed),
            directed=directed,
        )
    )


def small_world(
    num_agents: int,
    degree: int,
    probability: float,
    *,
    seed: Seed,
    connected: bool = False,
) -> Topology:
    """A ring of the `degree` nearest neighbours with rewired edges.

    Watts & Strogatz (1998), "Collective dynamics of 'small-world' networks",
    https://doi.org/10.1038/30918.

    Args:
      num_agents: N, on the ring.
      degree: neighbours of each agent before rewiring, an even number.
      probability: that an edge is rewired.
      seed: draws the rewiring.
      connected: whether to draw again, up to a hundred times, until it is connected.

    >>> small_world(10, 4, 0.0, seed=0).neighbor[0].tolist()
    [1, 2, 8, 9]
    """
    import networkx as nx

    if not 0 < degree < num_agents or degree % 2:
        raise InputError(
            f"Need an even degree of 2 or more and less than {num_agents} (the number "
            f"of agents), half of it on either side of the ring, got {degree}."
        )
    _check_probability("rewiring an edge", probability)
    number = _networkx_seed(seed)
    if not connected:
        return from_graph(
            nx.watts_strogatz_graph(num_agents, degree, probability, seed=number)
        )
    try:
        return from_graph(
            nx.connected_watts_strogatz_graph(
                num_agents, degree, probability, seed=number
            )
        )
    except nx.NetworkXError as error:
        raise InputError(
            "Need a small world that can be connected, got none in 100 draws with "
            f"degree {degree} and probability {probability}: raise the degree."
        ) from error


def scale_free(num_agents: int, links: int, *, seed: Seed) -> Topology:
    """Agents join one by one and link to those that have many links already.

    Few agents have many neighbours. Barabasi & Albert (1999), "Emergence of scaling in
    random networks", https://doi.org/10.1126/science.286.5439.509.

    Args:
      num_agents: N.
      links: m, of each agent that joins; N m - m^2 in all, and the graph is connected.
      seed: draws them.

    >>> int(scale_free(16, 2, seed=0).mask.sum()) // 2
    28
    """
    import networkx as nx

    if not 0 < links < num_agents:
        raise InputError(
            f"Need 1 to {num_agents - 1} links of each agent that joins, got {links}."
        )
    return from_graph(
        nx.barabasi_albert_graph(num_agents, links, seed=_networkx_seed(seed))
    )


def random_regular(num_agents: int, degree: int, *, seed: Seed) -> Topology:
    """A random undirected graph in which each agent has `degree` neighbours.

    It is approximately uniform, not exactly: networkx pairs points at random after
    Steger & Wormald (1999), https://doi.org/10.1017/S0963548399003867, which Kim & Vu
    (2003), https://doi.org/10.1145/780542.780576, show to be uniform in the limit of
    many agents and small degrees. From half of the agents on it is the complement of
    such a graph. Of degree 2 it mostly falls into several rings: `ring` is one.

    Args:
      num_agents: N.
      degree: of each agent, less than N; the product of the two is even.
      seed: draws the graph.

    >>> random_regular(16, 6, seed=0).neighbor.shape
    (16, 6)
    """
    import networkx as nx

    if not 0 < degree < num_agents or num_agents * degree % 2:
        raise InputError(
            f"Need 0 < degree < {num_agents} (the number of agents) and an even "
            f"product of the two, got degree {degree}."
        )
    number = _networkx_seed(seed)
    if 2 * degree < num_agents:
        return from_graph(nx.random_regular_graph(degree, num_agents, seed=number))
    # Pairing points at random hardly ever succeeds for dense graphs; their
    # complements are quickly found.
    sparse = nx.random_regular_graph(num_agents - 1 - degree, num_agents, seed=number)
    return from_graph(nx.complement(sparse))


def directed_regular(num_agents: int, degree: int, *, seed: Seed) -> Topology:
    """A random directed graph in which each agent sends to and hears `degree` agents.

    The union of `degree` random permutations without fixed points and without repeated
    edges.

    Args:
      num_agents: N.
      degree: number of senders and of receivers of each agent, less than N.
      seed: draws the graph.

    >>> directed_regular(16, 3, seed=0).neighbor.shape
    (16, 3)
    """
    _check_degree(num_agents, degree)
    rng = generator(seed)
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
    from scipy import sparse

    row, column = rng.permutation(num_agents), rng.permutation(num_agents)
    is_free = np.ones((num_agents, num_agents), bool)
    is_free[np.arange(num_agents), used] = False
    match = sparse.csgraph.maximum_bipartite_matching(
        sparse.csr_array(is_free[row][:, column]), perm_type="column"
    )
    permutation = np.empty(num_agents, np.int64)
    permutation[row] = column[match]
    return permutation


def random_views(num_agents: int, size: int, *, seed: Seed) -> Topology:
    """Each agent knows `size` others, drawn at random, whoever knows it.

    Directed: views for methods whose agents choose their peers, also of very many
    agents. Nothing of shape `[N, N]` is built unless views hold half of the agents.

    Args:
      num_agents: N.
      size: agents in a view, less than N.
      seed: draws the views.

    >>> random_views(10_000, 32, seed=0).neighbor.shape
    (10000, 32)
    """
    if not 0 < size < num_agents:
        raise InputError(
            f"Need views of 1 to {num_agents - 1} of the {num_agents - 1} other "
            f"agents, got {size}."
        )
    rng = generator(seed)
    if 2 * size >= num_agents:
        others = np.tile(np.arange(num_agents - 1), (num_agents, 1))
        ids = np.sort(rng.permuted(others, axis=1)[:, :size], axis=1)
    else:
        ids = np.sort(rng.integers(num_agents - 1, size=(num_agents, size)), axis=1)
        while (is_repeated := ids[:, 1:] == ids[:, :-1]).any():
            row, place = np.nonzero(is_repeated)
            ids[row, place + 1] = rng.integers(num_agents - 1, size=len(row))
            ids[row] = np.sort(ids[row], axis=1)
    ids += ids >= np.arange(num_agents)[:, None]  # no agent knows itself
    return Topology(ids.astype(np.int32), np.ones(ids.shape, bool))


def havel_hakimi(num_agents: int, degree: int) -> Topology:
    """A directed graph with all degrees `degree` that is the same in each call.

    Neighbours have near numbers: of 100 agents in two halves only a quarter of the
    edges cross. It reproduces published results of "sparse" graphs; for experiments
    use `directed_regular`.

    Args:
      num_agents: N.
      degree: number of senders and of receivers of each agent, less than N.

    >>> havel_hakimi(6, 2).neighbor.shape
    (6, 2)
    """
    import networkx as nx

    _check_degree(num_agents, degree)
    degrees = [degree] * num_agents
    return from_graph(nx.directed_havel_hakimi_graph(degrees, degrees))


def exponential(num_agents: int) -> Topology:
    """Agent i sends to i + 1, i + 2, i + 4, ... (modulo the number of agents).

    Ying et al. (2021), "Exponential graph is provably efficient for decentralized deep
    training", https://arxiv.org/abs/2110.13363. It is directed.

    >>> exponential(8).neighbor[0].tolist()  # agent 0 hears 0 - 4, 0 - 2, 0 - 1
    [4, 6, 7]
    """
    hops = _exponential_hops(num_agents)
    sender = np.tile(np.arange(num_agents), len(hops))
    receiver = (sender + np.repeat(hops, num_agents)) % num_agents
    return from_edges(num_agents, sender, receiver)


def one_peer_exponential(num_agents: int) -> Topology:
    """The edges of `exponential` one hop length at a time: a sequence `[G, N, 1]`.

    Ying et al. (2021), https://arxiv.org/abs/2110.13363. Where the number of agents is
    a power of two, one pass through the sequence with weights 1/2 reaches the exact
    mean.

    >>> one_peer_exponential(8).neighbor[:, 0, 0].tolist()
    [7, 6, 4]
    """
    sender = np.arange(num_agents)
    return stack(
        [
            from_edges(num_agents, sender, (sender + hop) % num_agents)
            for hop in _exponential_hops(num_agents)
        ]
    )


def _exponential_hops(num_agents: int) -> np.ndarray:
    if num_agents < 2:
        raise InputError(
            f"Need two agents or more for an exponential graph, got {num_agents}."
        )
    return 2 ** np.arange((num_agents - 1).bit_length())


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


def _networkx_seed(seed: Seed) -> int:
    return int(generator(seed).integers(2**31))
