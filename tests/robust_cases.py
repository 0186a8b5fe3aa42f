"""Every robust rule, what it should compute, and how far hostile messages may move it.

All cases tolerate `B` hostile messages, but for those in buckets, which tolerate one.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import robust_reference as plain

from p2pjax.exchange import robust
from p2pjax.exchange.robust import Rule

B = 2
PROGRESS = 0.25
NUM_ROUNDS = 100


class Has(NamedTuple):
    """What a receiver has, without what is not there; arrays of numpy, float64."""

    members: np.ndarray  # [n, P]
    weight: np.ndarray  # [n]
    loss: np.ndarray  # [n]
    order: Callable[[int], list[tuple[int, int]]]  # copies -> as buckets are filled


class Case(NamedTuple):
    """A rule, its reference and its bound."""

    rule: Rule
    expected: Callable[[Has], np.ndarray]  # [P]
    # distance of the result from the own model, in largest distances of honest ones
    # from each other, that hostile messages cannot exceed
    reach: float
    hostile: int = B


def _bucketed(has: Has, size: int, copies: int = 1) -> Has:
    members, weight = plain.bucketing(has.members, has.weight, has.order(copies), size)
    return has._replace(members=members, weight=weight)


def _mixed(has: Has, count: int = B) -> Has:
    return has._replace(members=plain.nnm(has.members, count))


CASES = {
    "median": Case(robust.median(B), lambda h: plain.median(h.members, B), 1),
    "trimmed_mean": Case(
        robust.trimmed_mean(B), lambda h: plain.trimmed_mean(h.members, B), 1
    ),
    "trimmed_mean_keep_self": Case(
        robust.trimmed_mean(B, keep_self=True),
        lambda h: plain.trimmed_mean_keep_self(h.members, B),
        1,
    ),
    "krum": Case(robust.krum(B), lambda h: plain.krum(h.members, B), 1),
    "krum_nb1": Case(
        robust.krum(B, closest="n-b-1"), lambda h: plain.krum(h.members, B, less=1), 1
    ),
    "multi_krum": Case(
        robust.multi_krum(B), lambda h: plain.multi_krum(h.members, B), 1
    ),
    "multi_krum_3": Case(
        robust.multi_krum(B, 3), lambda h: plain.multi_krum(h.members, B, 3), 1
    ),
    "geometric_median": Case(
        robust.geometric_median(B),
        lambda h: plain.geometric_median(h.members, h.members[0]),
        4,
    ),
    "geometric_median_mean": Case(
        robust.geometric_median(1, start="mean", num_iterations=4, weighted=True),
        lambda h: plain.geometric_median(
            h.members,
            np.average(h.members, axis=0, weights=h.weight),
            h.weight,
            num_iterations=4,
        ),
        np.inf,  # a few steps from a mean that hostile messages have moved
    ),
    "geometric_median_zero": Case(
        robust.geometric_median(B, start="zero"),
        lambda h: plain.geometric_median(h.members, np.zeros(h.members.shape[1])),
        4,
    ),
    "centered_clipping": Case(
        robust.centered_clipping(1.0),
        lambda h: plain.centered_clipping(h.members, h.members[0], 1.0),
        1,  # by no more than the radius
    ),
    "centered_clipping_3": Case(
        robust.centered_clipping(1.0, num_iterations=3),
        lambda h: plain.centered_clipping(h.members, h.members[0], 1.0, 3),
        3,
    ),
    "centered_clipping_server": Case(
        robust.centered_clipping(1.0, num_iterations=2, count_self=False),
        lambda h: (
            plain.centered_clipping(h.members[1:], h.members[0], 1.0, 2)
            if len(h.members) > 1
            else h.members[0]
        ),
        2,
    ),
    "self_centered_clipping": Case(
        robust.self_centered_clipping(1.0),
        lambda h: plain.clipped_to(h.members, h.weight, 1.0),
        1,
    ),
    "clipped_gossip": Case(
        robust.clipped_gossip(B),
        lambda h: plain.clipped_gossip(h.members, h.weight, B),
        2,
    ),
    "clipped_gossip_0": Case(
        robust.clipped_gossip(0),
        lambda h: plain.clipped_gossip(h.members, h.weight, 0),
        np.inf,  # plain mixing
    ),
    "cs_plus": Case(
        robust.cs_plus(B), lambda h: plain.cs_plus(h.members, h.weight, B), 1
    ),
    "cs_plus_long": Case(
        robust.cs_plus(1, step_size=1.7),
        lambda h: plain.cs_plus(h.members, h.weight, 1, 1.7),
        2,
        hostile=1,
    ),
    "gts": Case(robust.gts(B), lambda h: plain.gts(h.members, h.weight, B), 1),
    "nna": Case(robust.nna(B), lambda h: plain.nna(h.members, B), 1),
    "ios": Case(robust.ios(B), lambda h: plain.ios(h.members, h.weight, B), 1),
    "balance": Case(
        robust.balance(gamma=1.5, kappa=0.5, alpha=0.4, num_rounds=NUM_ROUNDS),
        lambda h: plain.balance(h.members, PROGRESS, 1.5, 0.5, 0.4),
        1,
    ),
    "ubar": Case(
        robust.ubar(0.5, alpha=0.3),
        lambda h: plain.ubar(h.members, h.loss, 0.5, 0.3),
        1,
    ),
    "nnm_trimmed_mean": Case(
        robust.nnm(robust.trimmed_mean(B)),
        lambda h: plain.trimmed_mean(_mixed(h).members, B),
        1,
    ),
    "nnm_krum": Case(
        robust.nnm(robust.krum(B)), lambda h: plain.krum(_mixed(h).members, B), 1
    ),
    "nnm_geometric_median": Case(
        robust.nnm(robust.geometric_median(B)),
        lambda h: plain.geometric_median(_mixed(h).members, _mixed(h).members[0]),
        4,
    ),
    "nnm_gts": Case(
        robust.nnm(robust.gts(1), max_byzantine=B),
        lambda h: plain.gts(_mixed(h).members, h.weight, 1),
        np.inf,  # gts(1) does not tolerate two
    ),
    "nnm_balance": Case(
        robust.nnm(robust.balance(gamma=1.0, num_rounds=NUM_ROUNDS), max_byzantine=B),
        lambda h: plain.balance(_mixed(h).members, PROGRESS, 1.0),
        2,
    ),
    "bucketing_median": Case(
        robust.bucketing(robust.median(1)),
        lambda h: plain.median(_bucketed(h, 2).members, 1),
        1,
        hostile=1,
    ),
    "bucketing_multi_krum": Case(
        robust.bucketing(robust.multi_krum(1)),
        lambda h: plain.multi_krum(_bucketed(h, 2).members, 1),
        1,
        hostile=1,
    ),
    "bucketing_ios": Case(
        robust.bucketing(robust.ios(1), size=3),
        lambda h: plain.ios(_bucketed(h, 3).members, _bucketed(h, 3).weight, 1),
        np.inf,  # the own bucket may be the hostile one
    ),
    "bucketing_repeated": Case(
        robust.bucketing(robust.geometric_median(B), repeat=True),
        lambda h: plain.geometric_median(
            _bucketed(h, 2, 2).members, _bucketed(h, 2, 2).members[0]
        ),
        np.inf,  # it starts at the own bucket, which may be hostile
    ),
    "bucketing_repeated_mean": Case(
        robust.bucketing(robust.trimmed_mean(B), repeat=True),
        lambda h: plain.trimmed_mean(_bucketed(h, 2, 2).members, B),
        1,
        hostile=1,
    ),
    "bucketing_nnm_median": Case(
        robust.bucketing(robust.nnm(robust.median(1))),
        lambda h: plain.median(_mixed(_bucketed(h, 2), 1).members, 1),
        1,
        hostile=1,
    ),
}
