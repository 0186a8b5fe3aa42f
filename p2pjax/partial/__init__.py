"""Partial models: which cells agents share, and how their members average."""

from p2pjax.partial.averaging import metropolis_gossip, random_pairs, server
from p2pjax.partial.grouping import find_groups, update_similarity
from p2pjax.partial.levels import level
from p2pjax.partial.network_cells import NetworkCells, cells_of
from p2pjax.partial.schemes import PartialModel, Scheme, auto
from p2pjax.partial.sharing import compile_scheme

__all__ = [
    "NetworkCells",
    "PartialModel",
    "Scheme",
    "auto",
    "cells_of",
    "compile_scheme",
    "find_groups",
    "level",
    "metropolis_gossip",
    "random_pairs",
    "server",
    "update_similarity",
]
