"""Robust rules: how receivers combine messages of which some may be hostile.

A rule is a `Rule` (`robust.base`): pure functions of one receiver, grouped by kind.
"""

from p2pjax.exchange.robust.acceptance import balance, ubar
from p2pjax.exchange.robust.base import Received, Rule, convex
from p2pjax.exchange.robust.checking import check_rule
from p2pjax.exchange.robust.clipping import (
    centered_clipping,
    clipped_gossip,
    cs_plus,
    self_centered_clipping,
)
from p2pjax.exchange.robust.coordinate import median, trimmed_mean
from p2pjax.exchange.robust.one_receiver import apply, received_from_members
from p2pjax.exchange.robust.premixing import bucketing, nnm
from p2pjax.exchange.robust.scores import krum, multi_krum
from p2pjax.exchange.robust.trimming import gts, ios, nna
from p2pjax.exchange.robust.weiszfeld import geometric_median

__all__ = [
    "Received",
    "Rule",
    "apply",
    "balance",
    "bucketing",
    "centered_clipping",
    "check_rule",
    "clipped_gossip",
    "convex",
    "cs_plus",
    "geometric_median",
    "gts",
    "ios",
    "krum",
    "median",
    "multi_krum",
    "nna",
    "nnm",
    "received_from_members",
    "self_centered_clipping",
    "trimmed_mean",
    "ubar",
]
