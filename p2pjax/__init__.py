"""Peer-to-peer, personalized and multi-task learning, simulated in JAX."""

from p2pjax.evaluation.test_sets import on_test_sets
from p2pjax.simulation._simulate import Snapshot, simulate
from p2pjax.types import Algorithm, Info, InputError, Variables

__all__ = [
    "Algorithm",
    "Info",
    "InputError",
    "Snapshot",
    "Variables",
    "on_test_sets",
    "simulate",
]
