"""Who can talk to whom: neighbour tables, named graphs, mixing matrices."""

from p2pjax.graphs.analysis import is_doubly_stochastic, report, spectral_gap
from p2pjax.graphs.clusters import clustered, oracle
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
from p2pjax.graphs.schedule import COMMUNICATION
from p2pjax.graphs.topology import Topology

__all__ = [
    "COMMUNICATION",
    "Topology",
    "clustered",
    "complete",
    "directed_regular",
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
    "uniform_receive",
    "uniform_send",
]
