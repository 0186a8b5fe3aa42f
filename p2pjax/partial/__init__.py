"""Partial models: which cells agents share, and how their members average."""

from p2pjax.partial.averaging import metropolis_gossip, random_pairs, server
from p2pjax.partial.changing_members import (
    Changing,
    Grouping,
    by_output_layer,
    by_predictions,
    changing,
)
from p2pjax.partial.grouping import (
    alike,
    find_groups,
    nested_groups,
    update_similarity,
)
from p2pjax.partial.levels import level, slots
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
    "Changing",
    "Grouping",
    "NetworkCells",
    "PartialModel",
    "Scheme",
    "alike",
    "auto",
    "by_output_layer",
    "by_predictions",
    "cells_of",
    "changing",
    "compile_scheme",
    "expected_error",
    "find_groups",
    "level",
    "member_graphs",
    "metropolis_gossip",
    "nested_groups",
    "peer_sampling",
    "per_model",
    "privacy_bounds",
    "private_gossip",
    "random_pairs",
    "read_scheme",
    "server",
    "slots",
    "update_similarity",
]
