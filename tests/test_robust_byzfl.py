"""Robust rules against the library byzfl, where it is installed.

`pip install byzfl` brings torch and torchvision; this was last run with byzfl 0.0.11.
`pytest -n 0 -rP tests/test_robust_byzfl.py` prints the largest differences.
"""

import jax
import numpy as np
import pytest

from p2pjax.exchange import robust

byzfl = pytest.importorskip("byzfl", exc_type=ImportError)

pytestmark = pytest.mark.usefixtures("compiled_quickly")

NUM_SETS = 50
NB1 = "n-b-1"  # of others that Krum looks at there


class BehindNNM:
    """An aggregator of byzfl behind its nearest neighbour mixing."""

    def __init__(self, aggregator, f):
        self.mix, self.aggregator = byzfl.NNM(f=f), aggregator

    def __call__(self, members):
        return self.aggregator(self.mix(members))


# (rule, the same of byzfl) of a number of hostile messages
PAIRS = {
    "median": lambda b: (robust.median(b), byzfl.Median()),
    "trimmed_mean": lambda b: (robust.trimmed_mean(b), byzfl.TrMean(f=b)),
    "krum": lambda b: (robust.krum(b, NB1), byzfl.Krum(f=b)),
    "multi_krum": lambda b: (
        robust.multi_krum(b, closest=NB1),
        byzfl.MultiKrum(f=b),
    ),
    "geometric_median": lambda b: (
        robust.geometric_median(b, 0.1, 3, "zero"),
        byzfl.GeometricMedian(nu=0.1, T=3),
    ),
    "nna": lambda b: (robust.nna(b), byzfl.MoNNA(f=b, idx=0)),
    "nnm_trimmed_mean": lambda b: (
        robust.nnm(robust.trimmed_mean(b)),
        BehindNNM(byzfl.TrMean(f=b), b),
    ),
    "nnm_multi_krum": lambda b: (
        robust.nnm(robust.multi_krum(b, closest=NB1)),
        BehindNNM(byzfl.MultiKrum(f=b), b),
    ),
    "nnm_geometric_median": lambda b: (
        robust.nnm(robust.geometric_median(b, 0.1, 3, "zero")),
        BehindNNM(byzfl.GeometricMedian(nu=0.1, T=3), b),
    ),
    "nnm_nna": lambda b: (
        robust.nnm(robust.nna(b)),
        BehindNNM(byzfl.MoNNA(f=b, idx=0), b),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("num_members, b", [(7, 2), (8, 2), (11, 3)])
def test_rules_are_those_of_byzfl(name, num_members, b):
    rule, other = PAIRS[name](b)
    rng = np.random.default_rng(num_members)
    members = rng.normal(size=(NUM_SETS, num_members, 5))
    members[::2, -b:] *= 10  # some far away

    def combine(members):
        return robust.apply(rule, robust.received_from_members(members), members)

    with jax.enable_x64(True):
        found = np.asarray(jax.jit(jax.vmap(combine))(members))
    wanted = np.array([other(rows.copy()) for rows in members])
    print(f"{name}: {np.abs(found - wanted).max():.1e}")
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
