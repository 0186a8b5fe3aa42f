"""Peer-to-peer, personalized and multi-task learning, simulated in JAX."""

from p2pjax.algorithms.base import Algorithm
from p2pjax.simulate import Snapshot, on_test_sets, simulate
from p2pjax.types import Info, InputError, Variables

__all__ = [
    "Algorithm",
    "Info",
    "InputError",
    "Snapshot",
    "Variables",
    "on_test_sets",
    "simulate",
]
