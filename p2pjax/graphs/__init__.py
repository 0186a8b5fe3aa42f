"""Who can talk to whom: neighbour tables, named graphs, mixing matrices.

Wherever a method takes a graph, `as_graph` is called on it: it may be one of the graphs
below, a networkx graph, a list of edges, a matrix, a sequence of any of them, or a
function that draws one from a `numpy.random.Generator`. `weights` makes a mixing matrix
of one's own.
"""

from p2pjax.graphs.analysis import is_doubly_stochastic, report, spectral_gap
from p2pjax.graphs.clusters import clustered, dumbbell, oracle, two_worlds
from p2pjax.graphs.conversion import as_graph, as_topology
from p2pjax.graphs.edge_lists import from_edge_list
from p2pjax.graphs.generators import (
    complete,
    directed_regular,
    erdos_renyi,
    exponential,
    grid,
    havel_hakimi,
    one_peer_exponential,
    random_regular,
    ring,
    small_world,
    star,
    torus,
)
from p2pjax.graphs.mixing_matrices import (
    lazy,
    metropolis_hastings,
    size_weighted,
    uniform_receive,
    uniform_send,
)
from p2pjax.graphs.own_matrices import weights
from p2pjax.graphs.schedule import COMMUNICATION
from p2pjax.graphs.topology import Topology

__all__ = [
    "COMMUNICATION",
    "Topology",
    "as_graph",
    "as_topology",
    "clustered",
    "complete",
    "directed_regular",
    "dumbbell",
    "erdos_renyi",
    "exponential",
    "from_edge_list",
    "grid",
    "havel_hakimi",
    "is_doubly_stochastic",
    "lazy",
    "metropolis_hastings",
    "one_peer_exponential",
    "oracle",
    "random_regular",
    "report",
    "ring",
    "size_weighted",
    "small_world",
    "spectral_gap",
    "star",
    "torus",
    "two_worlds",
    "uniform_receive",
    "uniform_send",
    "weights",
]
