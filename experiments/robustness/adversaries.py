"""Rules and attacks by name, and where the attackers of a study are."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from p2pjax.exchange import attacks, robust
from p2pjax.exchange.attacks import Attack
from p2pjax.exchange.attacks.honest_graph import honest_laplacian
from p2pjax.exchange.robust import Rule
from p2pjax.graphs.topology import Topology, edges, from_edges
from p2pjax.types import InputError

NONE = "none"  # no attack


def _bucketed(make: Callable[[int, float], Rule | None]) -> Callable[..., Rule | None]:
    """Behind buckets of two, each message in two of them, as He et al. have it."""

    def made(f: int, step: float) -> Rule | None:
        rule = make(f, step)
        return None if rule is None else robust.bucketing(rule, 2, repeat=True)

    return made


# (attackers f, step size of rules that have one) -> rule; None is plain gossip.
_RULES: Mapping[str, Callable[[int, float], Rule | None]] = {
    "mean": lambda f, step: None,
    "cs_plus": robust.cs_plus,
    "gts": robust.gts,
    "clipped_gossip": robust.clipped_gossip,
    "ios": lambda f, step: robust.ios(f),
    "nna": lambda f, step: robust.nna(f),
    "median": lambda f, step: robust.median(f),
    "trimmed_mean": lambda f, step: robust.trimmed_mean(f),
    "krum": lambda f, step: robust.krum(f),
    "multi_krum": lambda f, step: robust.multi_krum(f),
    "geometric_median": lambda f, step: robust.geometric_median(f),
    "self_centered_clipping": lambda f, step: robust.self_centered_clipping(1.0, step),
    # It looks at all messages, as He et al. (2022) have it without attackers.
    "ubar": lambda f, step: robust.ubar(1.0),
}
RULES = {
    **_RULES,
    **{
        f"bucketed_{name}": _bucketed(_RULES[name])
        for name in ("trimmed_mean", "geometric_median", "cs_plus")
    },
}
ATTACKED = (NONE, "spectral", "alie", "dissensus", "foe")
UNDER_ATTACK = ("cs_plus", "gts", "clipped_gossip", "ios")
ON_A_DUMBBELL = (
    "mean",
    "self_centered_clipping",
    "geometric_median",
    "trimmed_mean",
    "cs_plus",
    "bucketed_geometric_median",
    "bucketed_trimmed_mean",
)

# By attackers beside each agent, whose strength a line search finds.
BESIDE: Mapping[str, Callable[..., Attack]] = {
    "spectral": attacks.spectral,
    "alie": attacks.alie,
    "dissensus": partial(attacks.dissensus, unit_weights=True),
    "foe": attacks.foe,
}
# By agents, who need data and models of their own.
BY_AGENTS: Mapping[str, Callable[[tuple[int, ...], int], Attack]] = {
    "label_flip": attacks.label_flip,
    "sign_flip": lambda byzantine, num_classes: attacks.sign_flip(byzantine),
    "backdoor": lambda byzantine, num_classes: attacks.backdoor(byzantine),
    "boosted_backdoor": lambda byzantine, num_classes: attacks.backdoor(
        byzantine, boost=4.0
    ),
}
# Of Wu, Chen, Ling (2023), https://arxiv.org/abs/2206.04568: by agents as well, most of
# them something else for each receiver; the number is the factor of ALIE.
OF_WU: Mapping[str, Callable[[tuple[int, ...], float], Attack]] = {
    "gaussian": lambda byzantine, z: attacks.gaussian(byzantine, 30.0, "mean"),
    "sign_flip": lambda byzantine, z: attacks.sign_flip(byzantine, "mean", local=True),
    "isolation": lambda byzantine, z: attacks.dissensus(byzantine, 1.0),
    "duplicate": lambda byzantine, z: attacks.mimic(byzantine, "random"),
    "alie": lambda byzantine, z: attacks.alie(byzantine, z, local=True),
}
ATTACKS = tuple(dict.fromkeys((*BESIDE, *BY_AGENTS, *OF_WU)))


class Threat(NamedTuple):
    """An attack and the graph on which it takes place."""

    graph: Topology
    attack: Attack | None
    num_agents: int  # of the simulation, those that attack included


def check_attacks(study: str, given: Collection[str], known: Collection[str]) -> None:
    """Refuses attacks that a study does not have.

    Args:
      study: its name.
      given: names of attacks.
      known: those that it has, beside `NONE`.
    """
    other = [name for name in given if name not in (NONE, *known)]
    if other:
        raise InputError(
            f"Need attacks among {', '.join((NONE, *known))} in the study {study}, got "
            f"{other[0]}."
        )


def threat(graph: Topology, name: str, f: int, num_classes: int) -> Threat:
    """An attack after which each honest agent hears f attackers.

    Args:
      graph: of the honest agents.
      name: of the attack, or `NONE`.
      f: attackers that each honest agent hears.
      num_classes: of the labels, for those that change them.
    """
    size = graph.mask.shape[0]
    if name == NONE:
        return Threat(graph, None, size)
    if name in BESIDE:
        return Threat(graph, BESIDE[name](attacks.attached(f)), size)
    byzantine = tuple(range(size, size + f))
    attack = BY_AGENTS[name](byzantine, num_classes)
    return Threat(_with_agents(graph, f), attack, size + f)


def _with_agents(graph: Topology, count: int) -> Topology:
    """The graph with more agents, each linked to all that were there."""
    size = graph.mask.shape[0]
    old = np.tile(np.arange(size), count)
    new = np.repeat(np.arange(size, size + count), size)
    sender, receiver = edges(graph)
    return from_edges(
        size + count,
        np.concatenate([sender, old, new]),
        np.concatenate([receiver, new, old]),
    )


def longest_step(found: Threat) -> float:
    """The step size of rules that step from the own model: 1 / lambda_max.

    Of the honest graph with its Metropolis weights, as in Gaucher et al. (2025),
    https://arxiv.org/abs/2410.10418.

    Args:
      found: the graph and who attacks.
    """
    num_attached = 0 if found.attack is None else found.attack.num_attached
    byzantine = () if found.attack is None else found.attack.byzantine
    is_byzantine = np.isin(np.arange(found.num_agents), byzantine)
    degree = np.asarray(found.graph.mask).sum(1) + num_attached
    honest = degree[~is_byzantine]
    linked = -honest_laplacian(found.graph, is_byzantine)
    np.fill_diagonal(linked, 0)
    weight = linked / (1 + np.maximum(honest[:, None], honest[None, :]))
    laplacian = np.diag(weight.sum(1)) - weight
    return float(1 / np.linalg.eigvalsh(laplacian)[-1])


def alie_factor(graph: Topology, byzantine: tuple[int, ...]) -> float:
    """The z of ALIE by the formula of Wu et al., the mean over agents that it is for.

    Of n agents that a receiver hears, itself included, m attack; with s = floor(n / 2)
    + 1 - m it is the quantile (n - s) / (n - 1) of the normal distribution. That of the
    paper, which `attacks.alie_scale` has, is 0 while attackers are as few as here.

    Args:
      graph: of all agents.
      byzantine: those that attack.
    """
    heard = attacks.byzantine_neighbors(graph, byzantine)
    members = 1 + np.asarray(graph.mask).sum(1)
    shares = [
        (n - (n // 2 + 1 - m)) / (n - 1)
        for n, m in zip(members.tolist(), heard.tolist(), strict=True)
        if m
    ]
    return float(np.mean([NormalDist().inv_cdf(share) for share in shares]))
