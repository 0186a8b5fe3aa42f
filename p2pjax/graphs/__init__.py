"""Who can talk to whom: neighbour tables, named graphs, mixing matrices.

Wherever a method takes a graph, `as_graph` is called on it: it may be one of the graphs
below, a networkx graph, a list of edges, a matrix, a sequence of any of them, or a
function that draws one from a `numpy.random.Generator`. `weights` makes a mixing matrix
of one's own.
"""

from p2pjax.graphs.analysis import (
    contraction,
    is_doubly_stochastic,
    report,
    spectral_gap,
    squared_error_ratio,
    steps_to_consensus,
)
from p2pjax.graphs.base_graphs import base_k
from p2pjax.graphs.clusters import barbell, clustered, dumbbell, oracle, two_worlds
from p2pjax.graphs.conversion import as_graph, as_topology
from p2pjax.graphs.edge_lists import from_edge_list
from p2pjax.graphs.equitopo import equi_dyn, equi_static
from p2pjax.graphs.generators import (
    complete,
    directed_regular,
    erdos_renyi,
    exponential,
    grid,
    havel_hakimi,
    one_peer_exponential,
    random_regular,
    random_views,
    ring,
    scale_free,
    small_world,
    star,
    torus,
)
from p2pjax.graphs.geometric_graphs import geometric, moving_geometric
from p2pjax.graphs.hypercubes import hypercube, one_peer_hypercube
from p2pjax.graphs.matchings import edge_matchings, matcha
from p2pjax.graphs.mixing_matrices import (
    lazy,
    metropolis_hastings,
    size_weighted,
    uniform_receive,
    uniform_send,
)
from p2pjax.graphs.own_matrices import weights
from p2pjax.graphs.schedule import COMMUNICATION
from p2pjax.graphs.topology import Topology, pad_width
from p2pjax.graphs.trees import bfs_tree, binary_tree, chain

__all__ = [
    "COMMUNICATION",
    "Topology",
    "as_graph",
    "as_topology",
    "barbell",
    "base_k",
    "bfs_tree",
    "binary_tree",
    "chain",
    "clustered",
    "complete",
    "contraction",
    "directed_regular",
    "dumbbell",
    "edge_matchings",
    "equi_dyn",
    "equi_static",
    "erdos_renyi",
    "exponential",
    "from_edge_list",
    "geometric",
    "grid",
    "havel_hakimi",
    "hypercube",
    "is_doubly_stochastic",
    "lazy",
    "matcha",
    "metropolis_hastings",
    "moving_geometric",
    "one_peer_exponential",
    "one_peer_hypercube",
    "oracle",
    "pad_width",
    "random_regular",
    "random_views",
    "report",
    "ring",
    "scale_free",
    "size_weighted",
    "small_world",
    "spectral_gap",
    "squared_error_ratio",
    "star",
    "steps_to_consensus",
    "torus",
    "two_worlds",
    "uniform_receive",
    "uniform_send",
    "weights",
]
