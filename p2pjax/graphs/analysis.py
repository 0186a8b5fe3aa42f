"""What can be said of a graph and of its mixing matrix, on the host.

Weights are float32, so eigenvalues are exact to about 1e-6: compare them with a margin.
"""

import warnings

import jax
import networkx as nx
import numpy as np
from scipy import sparse

from p2pjax.graphs.mixing_matrices import metropolis_hastings, uniform_receive
from p2pjax.graphs.topology import Topology, edges, in_degrees, out_degrees, unstack
from p2pjax.types import InputError, Peers


def num_components(topology: Topology, owner: np.ndarray, group: int) -> int:
    """Parts into which the agents of one owner group fall when only they talk."""
    members = set(np.flatnonzero(owner == group).tolist())
    graph = nx.Graph()
    graph.add_nodes_from(members)
    for node in members:
        for other, linked in zip(
            topology.neighbor[node], topology.mask[node], strict=True
        ):
            if linked and int(other) in members:
                graph.add_edge(node, int(other))
    return nx.number_connected_components(graph)


def dense_matrix(peers: Peers) -> np.ndarray:
    """The matrix `[..., N, N]` on the host, in float64; a sequence keeps its axis."""
    ids, weight = np.asarray(peers.ids), np.asarray(peers.weight, np.float64)
    matrix = np.zeros((*ids.shape[:-1], ids.shape[-2]))
    np.add.at(matrix, (*np.indices(ids.shape)[:-1], ids), weight)
    return matrix


def smallest_eigenvalue(peers: Peers) -> float:
    """Of a symmetric matrix; D2 needs more than -1/3 (Tang et al. 2018)."""
    matrix = dense_matrix(peers)
    if matrix.ndim != 2 or not np.allclose(matrix, matrix.T, atol=1e-6):
        raise InputError(
            "Need one symmetric matrix for a smallest eigenvalue, got one that is not "
            "symmetric, or a sequence: use Metropolis-Hastings weights of an "
            "undirected graph."
        )
    return float(np.linalg.eigvalsh(matrix)[0])


def spectral_gap(peers: Peers) -> float:
    """1 - the second largest modulus of an eigenvalue: how fast models agree.

    0 means that they never do. For a sequence `[G, N, K]` of matrices it is the mean
    gap per mixing: that of the product of all, whose modulus is spread over G.
    Takes seconds for a thousand agents.
    """
    matrix = dense_matrix(peers)
    sequence = matrix if matrix.ndim == 3 else matrix[None]
    product = np.eye(matrix.shape[-1])
    for one in sequence:
        product = one @ product
    modulus = np.sort(np.abs(np.linalg.eigvals(product)))[::-1]
    second = modulus[1] if len(modulus) > 1 else 0.0
    return float(1 - min(1.0, second) ** (1 / len(sequence)))


def is_directed(graph: Topology) -> bool:
    """Whether somebody sends to an agent that does not send back, in any graph."""
    if graph.mask.ndim == 3:
        return any(map(is_directed, unstack(graph)))
    sender, receiver = edges(graph)
    num_agents = len(graph.mask)
    there, back = sender * num_agents + receiver, receiver * num_agents + sender
    return not np.array_equal(np.sort(there), np.sort(back))


def is_strongly_connected(graph: Topology) -> bool:
    """Whether everybody's model reaches everybody.

    For a sequence of graphs that is repeated: over all of them together.
    """
    sender, receiver = edges(graph)
    num_agents = graph.mask.shape[-2]
    links = sparse.coo_array(
        (np.ones(len(sender), bool), (sender, receiver)), (num_agents, num_agents)
    )
    parts, _ = sparse.csgraph.connected_components(links.tocsr(), connection="strong")
    return bool(parts == 1)


def warn_if_directed(graph: Topology, method_name: str) -> bool:
    """Warns where a method's theory needs undirected graphs; returns whether it did."""
    outside = is_directed(graph)
    if outside:
        warnings.warn(
            f"The theory of {method_name} needs an undirected graph, and this one is "
            "directed: results are outside theory.",
            stacklevel=2,
        )
    return outside


def warn_if_not_strongly_connected(graph: Topology, method_name: str) -> bool:
    """Warns where models cannot reach all agents; returns whether it did."""
    outside = not is_strongly_connected(graph)
    if outside:
        warnings.warn(
            f"The theory of {method_name} needs a strongly connected graph, and here "
            "some models never reach some agents: no consensus of all is possible.",
            stacklevel=2,
        )
    return outside


def report(graph: Topology) -> dict[str, float | int | bool]:
    """What an experiment writes about its graph, or its sequence of graphs.

    The spectral gap is that of Metropolis-Hastings weights if the graph is undirected,
    else of uniform receiving.
    """
    directed = is_directed(graph)
    weigh = uniform_receive if directed else metropolis_hastings
    over_graphs = jax.vmap(weigh) if graph.mask.ndim == 3 else weigh
    heard, reached = in_degrees(graph), out_degrees(graph)
    return {
        "agents": int(heard.shape[-1]),
        "mean_degree": float(heard.mean()),
        "smallest_in_degree": int(heard.min()),
        "largest_in_degree": int(heard.max()),
        "smallest_out_degree": int(reached.min()),
        "largest_out_degree": int(reached.max()),
        "directed": directed,
        "strongly_connected": is_strongly_connected(graph),
        "spectral_gap": spectral_gap(over_graphs(graph)),
    }
