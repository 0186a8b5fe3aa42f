"""Protocols of methods that communicate after local steps, for engines of one's own.

`engines.stepwise.gossip` takes any of them, and any `GossipProtocol` of yours.
"""

from p2pjax.algorithms._choco_sgd import choco_protocol as choco_sgd
from p2pjax.algorithms._d2 import d2_protocol as d2
from p2pjax.algorithms._exact_diffusion import (
    exact_diffusion_protocol as exact_diffusion,
)
from p2pjax.algorithms._extra import extra_protocol as extra
from p2pjax.algorithms._gosgd import gosgd_protocol as gosgd
from p2pjax.algorithms._k_gt import k_gt_protocol as k_gt
from p2pjax.algorithms._qg_dsgdm import qg_dsgdm_protocol as qg_dsgdm
from p2pjax.algorithms._relay_sgd import relay_protocol as relay_sgd
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
from p2pjax.engines.tracking_protocol import tracking as gradient_tracking
from p2pjax.exchange.channel import lost_to_self
from p2pjax.exchange.mixing import is_peer

__all__ = [
    "GossipProtocol",
    "LocalStep",
    "Outgoing",
    "choco_sgd",
    "d2",
    "dpsgd",
    "exact_diffusion",
    "extra",
    "gosgd",
    "gradient_tracking",
    "is_peer",
    "k_gt",
    "lost_to_self",
    "peer_ids",
    "prepare_weights",
    "qg_dsgdm",
    "relay_sgd",
    "remembers_nothing",
    "sgp",
]
