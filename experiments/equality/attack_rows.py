"""Attacks beside ByzFL, and beside published numbers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.equality.absent import without_torchvision
from experiments.equality.comparison import VECTORS, Comparison
from experiments.equality.quadratics import vectors
from p2pjax.exchange import attacks
from p2pjax.exchange.attacks.base import Scene, at_scale, hostile_slots
from p2pjax.exchange.attacks.placement import attached_weights
from p2pjax.graphs.conversion import as_topology
from p2pjax.graphs.topology import Topology

ATTACKED = vectors("adversity_attacks")["attacks"]


def _scene(attack: attacks.Attack, rows: np.ndarray, adjacency: np.ndarray) -> Scene:
    """All agents are honest, with one attacker beside each."""
    graph = as_topology(adjacency)
    assert isinstance(graph, Topology)
    peers = attached_weights(graph, 1)
    none = np.zeros(len(rows), bool)
    return Scene(
        jnp.asarray(rows),
        jnp.asarray(none),
        peers,
        hostile_slots(peers, none, 1),
        jax.random.key(0),
        prepared=attack.prepare and attack.prepare(graph, none, None),
    )


def _sent(attack: attacks.Attack, rows: np.ndarray, adjacency: np.ndarray) -> Any:
    assert attack.hostile is not None and attack.scale is not None
    hostile = attack.hostile(_scene(attack, rows, adjacency))
    return np.broadcast_to(at_scale(hostile, attack.scale), rows.shape)


def _attack(
    attack: Callable[[Any], attacks.Attack], other: Callable[[Any], Any]
) -> tuple[Any, Any]:
    without_torchvision()
    import byzfl

    rows = np.random.default_rng(2).normal(size=(9, 5))
    all_linked = np.ones((9, 9)) - np.eye(9)
    ours = _sent(attack(attacks.attached(1)), rows, all_linked)
    return ours, np.tile(np.asarray(other(byzfl)(rows)), (9, 1))


def _known_attack(attack: attacks.Attack, key: str) -> tuple[Any, Any]:
    ours = _sent(attack, np.array(ATTACKED["X"]), np.array(ATTACKED["adjacency"]))
    return ours, np.array([ATTACKED[key][str(n)] for n in range(6)])


def _spectral() -> tuple[Any, Any]:
    """What is added to the receiver's own model."""
    attack = attacks.spectral(BESIDE, scale=1.0)
    rows = np.array(ATTACKED["X"])
    assert attack.hostile is not None and attack.scale is not None
    ours = attack.hostile(_scene(attack, rows, np.array(ATTACKED["adjacency"])))
    known = ATTACKED["spectral direction"]
    return ours.direction, np.array([known[str(n)] for n in range(len(rows))])


BESIDE = attacks.attached(1)
ATTACKS: list[tuple[str, Any, str, Any]] = [
    (
        "sign_flip (of the mean)",
        lambda who: attacks.sign_flip(who, of="mean"),
        "SignFlipping",
        lambda z: z.SignFlipping(),
    ),
    (
        "foe",
        lambda who: attacks.foe(who, scale=0.1),
        "InnerProductManipulation",
        lambda z: z.InnerProductManipulation(tau=0.1),
    ),
    (
        "alie",
        lambda who: attacks.alie(who, scale=1.5),
        "ALittleIsEnough",
        lambda z: z.ALittleIsEnough(tau=1.5),
    ),
    (
        "mimic",
        lambda who: attacks.mimic(who, agent=3),
        "Mimic",
        lambda z: z.Mimic(epsilon=3),
    ),
]
COMPARISONS = [
    *(
        Comparison(
            name,
            "attacks",
            other,
            "byzfl",
            "9 honest vectors of 5 numbers, all linked",
            partial(_attack, attack, theirs),
        )
        for name, attack, other, theirs in ATTACKS
    ),
    Comparison(
        "dissensus",
        "attacks",
        "He et al. (2022) by its text",
        VECTORS,
        "6 agents, 2 numbers, one attacker beside each",
        partial(
            _known_attack, attacks.dissensus(BESIDE, scale=1.5), "dissensus eps=1.5"
        ),
        tolerance=1e-8,
    ),
    Comparison(
        "spectral",
        "attacks",
        "Gaucher et al. (2025) by its text",
        VECTORS,
        "6 agents, 2 numbers, one attacker beside each",
        _spectral,
        tolerance=1e-8,
    ),
]
