"""Protocols of methods that communicate after local steps, for engines of one's own.

`engines.stepwise.gossip` takes any of them, and any `GossipProtocol` of yours.
"""

from p2pjax.algorithms._choco_sgd import choco_protocol as choco_sgd
from p2pjax.algorithms._d2 import d2_protocol as d2
from p2pjax.algorithms._gosgd import gosgd_protocol as gosgd
from p2pjax.algorithms._sgp import sgp_protocol as sgp
from p2pjax.engines.averaging_protocol import neighbor_averaging as dpsgd
from p2pjax.engines.protocol import (
    GossipProtocol,
    LocalStep,
    Outgoing,
    peer_ids,
    prepare_weights,
    remembers_nothing,
)
from p2pjax.exchange.channel import lost_to_self
from p2pjax.exchange.mixing import is_peer

__all__ = [
    "GossipProtocol",
    "LocalStep",
    "Outgoing",
    "choco_sgd",
    "d2",
    "dpsgd",
    "gosgd",
    "is_peer",
    "lost_to_self",
    "peer_ids",
    "prepare_weights",
    "remembers_nothing",
    "sgp",
]
