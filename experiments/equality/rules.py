"""Robust rules and attacks beside ByzFL, and beside published numbers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.equality.absent import without_torchvision
from experiments.equality.comparison import VECTORS, Comparison
from experiments.equality.quadratics import vectors
from p2pjax.exchange import robust
from p2pjax.exchange.robust import premixing

NB1 = "n-b-1"  # of others that ByzFL's Krum looks at
SIZES = ((7, 2), (8, 2), (11, 3))  # members and hostile ones among them
NUM_SETS = 20
SETS = "60 random sets of 7, 8 and 11 vectors of 5 numbers, 2 or 3 of them far away"


def _members(number: int, hostile: int) -> np.ndarray:
    members = np.random.default_rng(number).normal(size=(NUM_SETS, number, 5))
    members[::2, -hostile:] *= 10
    return members


def _applied(rule: robust.Rule, members: np.ndarray, **given: Any) -> np.ndarray:
    """Results of receivers, whose own model is the first of their members."""

    @jax.jit
    @jax.vmap
    def combine(members: Any, given: Any) -> Any:
        has = robust.received_from_members(members, **given)
        return robust.apply(rule, has, members)

    return np.asarray(combine(members, given))


def _byzfl(
    rule: Callable[[int], robust.Rule], other: Callable[[Any, int], Any]
) -> tuple[Any, Any]:
    without_torchvision()
    import byzfl

    ours, theirs = [], []
    for number, hostile in SIZES:
        members = _members(number, hostile)
        combine = other(byzfl, hostile)
        ours.append(_applied(rule(hostile), members))
        theirs.append(np.array([combine(rows.copy()) for rows in members]))
    return ours, theirs


def _clipped() -> tuple[Any, Any]:
    """ByzFL's centre is 0, and no member."""
    without_torchvision()
    import byzfl

    members = _members(8, 2)
    centred = np.concatenate([np.zeros((NUM_SETS, 1, 5)), members], 1)
    rule = robust.centered_clipping(1.0, 3, count_self=False)
    theirs = [byzfl.CenteredClipping(L=3, tau=1.0)(x) for x in members]
    return _applied(rule, centred), np.array(theirs)


def _behind(mix: Any, aggregator: Any) -> Callable[[np.ndarray], Any]:
    return lambda members: aggregator(mix(members))


def _buckets() -> tuple[Any, Any]:
    """Means of the same buckets: ByzFL draws their order from numpy's own state."""
    without_torchvision()
    import byzfl

    members = np.random.default_rng(5).normal(size=(8, 5))
    np.random.seed(3)  # noqa: NPY002
    theirs = byzfl.Bucketing(s=2)(members.copy())
    np.random.seed(3)  # noqa: NPY002
    order = np.random.permutation(8)  # noqa: NPY002
    draws = np.argsort(order).astype(float)[None]  # place of each member
    has = robust.received_from_members(jnp.asarray(members))
    matrix, present, _ = premixing.bucket_means(has, draws, 2)
    ours = np.asarray(matrix)[np.asarray(present)] @ members
    return np.sort(ours, 0), np.sort(theirs, 0)


CLOSEST = "ByzFL's Krum looks at the n - b - 1 closest, the paper at n - b - 2"
WEISZFELD = "start at 0, smoothing 0.1, 3 steps of Weiszfeld, as ByzFL does"
# Subject, the rule of b hostile members, the same of ByzFL, convention, difference.
PAIRS: list[tuple[str, Any, str, Any, str, str]] = [
    (
        "median",
        robust.median,
        "Median",
        lambda z, b: z.Median(),
        "the mean of the middle two where members are even, as in numpy",
        "",
    ),
    (
        "trimmed_mean",
        robust.trimmed_mean,
        "TrMean",
        lambda z, b: z.TrMean(f=b),
        "",
        "",
    ),
    (
        "krum (n-b-1)",
        lambda b: robust.krum(b, NB1),
        "Krum",
        lambda z, b: z.Krum(f=b),
        CLOSEST,
        "",
    ),
    ("krum", robust.krum, "Krum", lambda z, b: z.Krum(f=b), "", CLOSEST),
    (
        "multi_krum (n-b-1)",
        lambda b: robust.multi_krum(b, closest=NB1),
        "MultiKrum",
        lambda z, b: z.MultiKrum(f=b),
        CLOSEST,
        "",
    ),
    (
        "multi_krum",
        robust.multi_krum,
        "MultiKrum",
        lambda z, b: z.MultiKrum(f=b),
        "",
        CLOSEST,
    ),
    (
        "geometric_median (start zero)",
        lambda b: robust.geometric_median(b, 0.1, 3, "zero"),
        "GeometricMedian",
        lambda z, b: z.GeometricMedian(nu=0.1, T=3),
        WEISZFELD,
        "",
    ),
    (
        "geometric_median",
        robust.geometric_median,
        "GeometricMedian",
        lambda z, b: z.GeometricMedian(nu=0.1, T=3),
        "",
        "p2pjax starts from the own model and takes 8 steps",
    ),
    ("nna", robust.nna, "MoNNA", lambda z, b: z.MoNNA(f=b, idx=0), "", ""),
    (
        "nnm (trimmed_mean)",
        lambda b: robust.nnm(robust.trimmed_mean(b)),
        "NNM, TrMean",
        lambda z, b: _behind(z.NNM(f=b), z.TrMean(f=b)),
        "",
        "",
    ),
    (
        "nnm (multi_krum, n-b-1)",
        lambda b: robust.nnm(robust.multi_krum(b, closest=NB1)),
        "NNM, MultiKrum",
        lambda z, b: _behind(z.NNM(f=b), z.MultiKrum(f=b)),
        CLOSEST,
        "",
    ),
]

RULES_OF = vectors("adversity_rules")
WEIGHTED = RULES_OF["weighted_rules"]
RECEIVERS = [one for name, one in WEIGHTED.items() if name.startswith("receiver")]
WU = "Wu's code gave the same to 3e-16 when the numbers were made"
HE = "He's code gave the same to 5e-16 when the numbers were made"


def _padded(rows: list[Any], fill: float = 0.0) -> np.ndarray:
    """Rows of receivers with fewer members, filled up: `[5, 6]` or `[5, 6, 3]`."""
    arrays = [np.asarray(row, float) for row in rows]
    out = np.full((len(arrays), 6, *arrays[0].shape[1:]), fill)
    for number, row in enumerate(arrays):
        out[number, : len(row)] = row
    return out


def _weighted(rule: robust.Rule, key: str, progress: bool) -> tuple[Any, Any]:
    members = _padded([np.array(WEIGHTED["X"])[one["ids"]] for one in RECEIVERS])
    weight = _padded([one["w"] for one in RECEIVERS])
    given: dict[str, Any] = {"weight": weight, "present": weight > 0}
    if progress:
        given["progress"] = np.full(len(RECEIVERS), 0.1)
    found = [one[key] for one in RECEIVERS]
    theirs = [one["out"] if isinstance(one, dict) else one for one in found]
    return _applied(rule, members, **given), np.array(theirs)


def _ubar() -> tuple[Any, Any]:
    known = RECEIVERS[0]["ubar rho=.6 alpha=.5"]
    members, loss = np.array([WEIGHTED["X"]]), np.array([known["losses"]])
    return _applied(robust.ubar(0.6), members, loss=loss), np.array([known["out"]])


GATE = "balance gamma=2 kappa=1 t=10 T=100 alpha=.5"
WEIGHTED_RULES: list[tuple[str, robust.Rule, str, str]] = [
    (
        "self_centered_clipping",
        robust.self_centered_clipping(1.0),
        "scc tau=1",
        f"He et al. (2022); {HE}",
    ),
    (
        "clipped_gossip",
        robust.clipped_gossip(1),
        "clipped_gossip",
        "He et al. (2022) by its text",
    ),
    (
        "cs_plus",
        robust.cs_plus(1),
        "cs_plus",
        "Gaucher et al. (2025); their code gave the same with unequal weights",
    ),
    (
        "gts",
        robust.gts(1),
        "gts",
        "Gaucher et al. (2025) by its text, from which their code differs",
    ),
    ("ios", robust.ios(1), "ios f=1", f"Wu et al. (2023); {WU}"),
    (
        "balance",
        robust.balance(gamma=2.0, num_rounds=100),
        GATE,
        "Fang et al. (2024) by its text",
    ),
]
WHERE = "5 receivers of 3 to 5 neighbours, 3 numbers, Metropolis-Hastings weights"

COMPARISONS = [
    *(
        Comparison(
            name,
            "rules",
            other,
            "byzfl",
            SETS,
            partial(_byzfl, rule, theirs),
            convention=convention,
            differs=differs,
        )
        for name, rule, other, theirs, convention, differs in PAIRS
    ),
    Comparison(
        "centered_clipping",
        "rules",
        "CenteredClipping",
        "byzfl",
        "20 random sets of 8 vectors of 5 numbers, radius 1, 3 steps",
        _clipped,
        convention="ByzFL's centre is 0 and no member: count_self=False (its m refuses "
        "any array)",
    ),
    Comparison(
        "bucketing",
        "rules",
        "Bucketing",
        "byzfl",
        "8 vectors of 5 numbers in buckets of 2, in one order",
        _buckets,
        convention="the own bucket comes first here: sorted by coordinate in both",
    ),
    *(
        Comparison(
            name,
            "rules",
            source,
            VECTORS,
            WHERE,
            partial(_weighted, rule, key, name == "balance"),
            tolerance=1e-8,
            convention="numbers have 9 digits",
        )
        for name, rule, key, source in WEIGHTED_RULES
    ),
    Comparison(
        "ubar",
        "rules",
        "Guo et al. (2021) by its text",
        VECTORS,
        "6 vectors of 3 numbers with losses",
        _ubar,
        tolerance=1e-8,
        convention="numbers have 9 digits",
    ),
]
