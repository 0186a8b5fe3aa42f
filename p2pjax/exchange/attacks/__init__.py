"""What Byzantine agents do: attacks on messages and on data, and where they are.

Every attack is a function of who attacks (`byzantine`: numbers of agents, as `spread`
and `uniform` draw them, or `attached(f)`) and returns an `Attack`.
"""

from p2pjax.exchange.attacks._alie import alie, alie_scale
from p2pjax.exchange.attacks._backdoor import backdoor
from p2pjax.exchange.attacks._dissensus import dissensus
from p2pjax.exchange.attacks._foe import foe
from p2pjax.exchange.attacks._gaussian import gaussian
from p2pjax.exchange.attacks._label_flip import label_flip
from p2pjax.exchange.attacks._mimic import mimic
from p2pjax.exchange.attacks._sign_flip import sign_flip
from p2pjax.exchange.attacks._spectral import spectral
from p2pjax.exchange.attacks.attackers import attached
from p2pjax.exchange.attacks.base import Attack
from p2pjax.exchange.attacks.honest_graph import report
from p2pjax.exchange.attacks.placement import (
    byzantine_neighbors,
    spread,
    uniform,
)

__all__ = [
    "Attack",
    "alie",
    "alie_scale",
    "attached",
    "backdoor",
    "byzantine_neighbors",
    "dissensus",
    "foe",
    "gaussian",
    "label_flip",
    "mimic",
    "report",
    "sign_flip",
    "spectral",
    "spread",
    "uniform",
]
