"""Partial models: which cells agents share, and how their members average."""

from p2pjax.partial.averaging import metropolis_gossip, random_pairs, server
from p2pjax.partial.grouping import find_groups, update_similarity
from p2pjax.partial.levels import level
from p2pjax.partial.network_cells import NetworkCells, cells_of
from p2pjax.partial.overlays import member_graphs
from p2pjax.partial.peer_sampling import peer_sampling
from p2pjax.partial.per_model import per_model
from p2pjax.partial.private_gossip import (
    expected_error,
    privacy_bounds,
    private_gossip,
)
from p2pjax.partial.scheme_files import read_scheme
from p2pjax.partial.schemes import PartialModel, Scheme, auto
from p2pjax.partial.sharing import compile_scheme

__all__ = [
    "NetworkCells",
    "PartialModel",
    "Scheme",
    "auto",
    "cells_of",
    "compile_scheme",
    "expected_error",
    "find_groups",
    "level",
    "member_graphs",
    "metropolis_gossip",
    "peer_sampling",
    "per_model",
    "privacy_bounds",
    "private_gossip",
    "random_pairs",
    "read_scheme",
    "server",
    "update_similarity",
]
