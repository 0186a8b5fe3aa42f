"""Robust rules against the numbers of their specification, in double precision."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from p2pjax.exchange import robust
from p2pjax.exchange.robust import clipping, premixing, scores

VECTORS = json.loads(
    (Path(__file__).parent / "vectors" / "adversity_rules.json").read_text()
)
SETS = [VECTORS["set_rules_far"], VECTORS["set_rules_close"]]
MEMBERS, B = np.array([v["X"] for v in SETS]), 2  # [2, 7, 4]
WEIGHTED = VECTORS["weighted_rules"]
RECEIVERS = [v for name, v in WEIGHTED.items() if name.startswith("receiver")]
F, SLOTS = WEIGHTED["f"], 6

pytestmark = pytest.mark.usefixtures("double_precision", "compiled_quickly")


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield


def near(found, wanted):
    np.testing.assert_allclose(found, np.array(wanted), rtol=1e-6, atol=1e-6)


def applied(rule, members, **given):
    """Results of some receivers, and what each member counts if the rule says so."""

    @jax.jit
    @jax.vmap
    def combine(members, given):
        has = robust.received_from_members(members, **given)
        counts = None if rule.coefficients is None else rule.coefficients(has)
        return robust.apply(rule, has, members), counts

    out, counts = combine(members, given)
    return out, None if counts is None else np.asarray(counts)


def test_coordinate_rules():
    own_third = MEMBERS[:, [3, 0, 1, 2, 4, 5, 6]]
    for rule, members, wanted in (
        (robust.median(B), MEMBERS, "median"),
        (robust.median(B), MEMBERS[:, :6], "median_of_first_6"),
        (robust.trimmed_mean(B), MEMBERS, "trimmed_mean"),
        (robust.trimmed_mean(0), MEMBERS, "mean"),
        (
            robust.trimmed_mean(B, keep_self=True),
            own_third,
            "trimmed_mean_keep_self, receiver is row 3",
        ),
    ):
        near(applied(rule, members)[0], [v[wanted] for v in SETS])


def test_the_lower_median_of_other_libraries():
    """Of an even number byzpy and Wu et al. take the lower middle value, not a mean."""
    few = np.sort(MEMBERS[:, :6], axis=1)
    near(few[:, 2], [v["median_of_first_6_lower"] for v in SETS])
    ours = applied(robust.median(B), MEMBERS[:, :6])[0]
    near(ours, few[:, 2:4].mean(1))
    assert (ours > few[:, 2]).any()


def test_krum():
    has = jax.vmap(robust.received_from_members)(MEMBERS)
    near(has.squares, [v["sq_distances"] for v in SETS])
    krum = [v["krum"] for v in SETS]
    for closest, which in (("n-b-2", "nb2"), ("n-b-1", "nb1")):
        found = jax.vmap(lambda has, c=closest: scores.scores(has, B, c))(has)
        near(found, [v[f"scores_{which}"] for v in krum])
        out, counts = applied(robust.krum(B, closest), MEMBERS)
        best = [v[f"index_{which}"] for v in krum]
        assert counts.tolist() == np.eye(7)[best].tolist()
        near(out, MEMBERS[[0, 1], best])
        if which == "nb2":
            near(out, [v["out_nb2"] for v in krum])
    for rule, wanted in (
        (robust.multi_krum(B), "m=5,nb2"),
        (robust.multi_krum(B, closest="n-b-1"), "m=5,nb1"),
        (robust.multi_krum(B, 3), "m=3,nb2"),
    ):
        out, counts = applied(rule, MEMBERS)
        near(out, [v["multi_krum"][wanted]["out"] for v in SETS])
        for counted, v in zip(counts, SETS, strict=True):
            chosen = v["multi_krum"][wanted]["chosen"]
            assert np.flatnonzero(counted).tolist() == chosen


def test_how_many_others_krum_looks_at_matters():
    v = VECTORS["set_rules_far"]["krum_differs"]
    members = np.array([v["X"]])
    for closest, which in (("n-b-2", "nb2"), ("n-b-1", "nb1")):
        has = robust.received_from_members(members[0])
        near(scores.scores(has, B, closest), v[f"scores_{which}"])
        counts = applied(robust.krum(B, closest), members)[1]
        assert int(np.argmax(counts)) == v[f"index_{which}"]


def test_geometric_median():
    medians = [v["geometric_median"] for v in SETS]
    out, counts = applied(robust.geometric_median(B), MEMBERS)
    near(out, [v["start=own,nu=0.1,T=8"] for v in medians])
    near(counts, [v["weights start=own,nu=0.1,T=8"] for v in medians])
    for start, smoothing, steps, text in (
        ("mean", 0.1, 8, "nu=0.1,T=8"),
        ("zero", 0.1, 3, "nu=0.1,T=3"),
        ("zero", 0.1, 8, "nu=0.1,T=8"),
        ("mean", 1e-6, 1000, "nu=1e-06,T=1000"),
    ):
        rule = robust.geometric_median(B, smoothing, steps, start)
        near(applied(rule, MEMBERS)[0], [v[f"start={start},{text}"] for v in medians])


def test_centered_clipping():
    clipped = [v["centered_clipping"] for v in SETS]
    found = applied(robust.centered_clipping(1.0), MEMBERS)[0]
    near(found, [v["centre own,tau=1,L=1"] for v in clipped])
    centred = np.concatenate([np.zeros((2, 1, 4)), MEMBERS], 1)  # it is no member
    for steps in (1, 3):
        rule = robust.centered_clipping(1.0, steps, count_self=False)
        found = applied(rule, centred)[0]
        near(found, [v[f"centre 0,tau=1,L={steps}"] for v in clipped])


def test_nearest_neighbor_mixing():
    near(applied(robust.nna(B), MEMBERS)[0], [v["nna f=2"] for v in SETS])
    has = jax.vmap(robust.received_from_members)(MEMBERS)
    matrix = jax.vmap(lambda has: premixing.nearest_means(has, B))(has)
    near(matrix, [v["nnm_matrix"] for v in SETS])
    near(matrix @ MEMBERS, [v["nnm_rows"] for v in SETS])
    for rule, wanted in (
        (robust.trimmed_mean(B), "nnm+trimmed_mean"),
        (robust.median(B), "nnm+median"),
        (robust.krum(B), "nnm+krum_nb2"),
        (robust.geometric_median(B), "nnm+gm start=own"),
    ):
        near(applied(robust.nnm(rule), MEMBERS)[0], [v[wanted] for v in SETS])


def test_buckets():
    buckets = jax.jit(premixing.bucket_means, static_argnums=2)
    for v, members in zip(SETS, MEMBERS, strict=True):
        wanted = v["bucketing"]
        draws = np.argsort(wanted["perm"]).astype(float)[None]  # place of each member
        has = robust.received_from_members(members)
        matrix, present, weight = buckets(has, draws, wanted["s"])
        near(matrix[:4] @ members, wanted["means"])
        assert present.tolist() == [True] * 4 + [False] * 3
        near(weight, [2 / 7, 2 / 7, 2 / 7, 1 / 7, 0, 0, 0])
        for rule, text in (
            (robust.median(1), "+median"),
            (robust.trimmed_mean(1), "+trimmed_mean b=1"),
        ):
            near(rule.combine(matrix @ members, present, weight), wanted[text])


def padded(rows, fill=0.0):
    """Rows of receivers with fewer slots, filled up: [5, K] or [5, K, P]."""
    rows = [np.asarray(row, float) for row in rows]
    out = np.full((len(rows), SLOTS, *rows[0].shape[1:]), fill)
    for n, row in enumerate(rows):
        out[n, : len(row)] = row
    return out


def all_receivers():
    members = padded([np.array(WEIGHTED["X"])[v["ids"]] for v in RECEIVERS], np.nan)
    weight = padded([v["w"] for v in RECEIVERS])
    return members, {"weight": weight, "present": weight > 0}


def test_clipping_and_trimming():
    members, given = all_receivers()
    has = jax.vmap(lambda m, g: robust.received_from_members(m, **g))(members, given)
    near(has.distance[:, 1:], padded([v["dist"] for v in RECEIVERS])[:, :-1])
    gossip = applied(robust.clipped_gossip(0), members, **given)[0]
    near(gossip, [v["gossip"] for v in RECEIVERS])
    for rule, wanted in (
        (robust.self_centered_clipping(1.0), "scc tau=1"),
        (robust.clipped_gossip(F), "clipped_gossip"),
        (robust.cs_plus(F), "cs_plus"),
        (robust.gts(F), "gts"),
    ):
        out, counts = applied(rule, members, **given)
        near(counts[:, 1:], padded([v[wanted]["coef"] for v in RECEIVERS])[:, :-1])
        near(out, [v[wanted]["out"] for v in RECEIVERS])
    out = applied(robust.nna(F), members, **given)[0]
    near(out, [v["nna f=1"] for v in RECEIVERS])
    out, counts = applied(robust.ios(F), members, **given)
    near(counts, padded([v["ios f=1"]["weights"] for v in RECEIVERS]))
    near(out, [v["ios f=1"]["out"] for v in RECEIVERS])


def test_the_radius_of_an_oracle():
    for v in (RECEIVERS[0], RECEIVERS[4]):
        wanted = v["clipped_gossip oracle"]
        weight, distance = np.array(v["w"]), np.array([0.0, *v["dist"]])
        is_hostile = np.isin(v["ids"], WEIGHTED["byzantine"])
        radius = clipping.gossip_radius(
            weight, distance, ~is_hostile, weight[is_hostile].sum()
        )
        near(radius, wanted["tau"])
        factor = clipping.clip_factor(distance, radius)
        near((weight * factor)[1:], wanted["coef"])


@pytest.mark.parametrize("gamma", [".3", "2"])
def test_balance(gamma):
    members, given = all_receivers()
    rule = robust.balance(gamma=float(gamma), num_rounds=100)
    given["progress"] = np.full(len(RECEIVERS), 0.1)
    out, counts = applied(rule, members, **given)
    for n, v in enumerate(RECEIVERS):
        wanted = v[f"balance gamma={gamma} kappa=1 t=10 T=100 alpha=.5"]
        accepted = np.flatnonzero(counts[n, 1:]) + 1
        assert [v["ids"][slot] for slot in accepted] == wanted["accepted"]
        near(out[n], wanted["out"])


def test_ubar():
    v = RECEIVERS[0]
    wanted, none_better = v["ubar rho=.6 alpha=.5"], v["ubar nobody better"]
    loss = np.array([wanted["losses"], wanted["losses"]])
    loss[1, 0] = none_better["own_loss"]
    members = np.array([WEIGHTED["X"]] * 2)
    out, counts = applied(robust.ubar(0.6), members, loss=loss)
    near(counts[0], wanted["weights"])
    assert np.flatnonzero(counts[1])[1:].tolist() == none_better["accepted"]
    near(out, [wanted["out"], none_better["out"]])


def test_small_distances_of_large_models():
    """In single precision; products of models as they are would lose them."""
    v = VECTORS["gram_float32"]
    rng = np.random.default_rng(0)
    one = rng.normal(size=30_000) * 0.6  # of norm 104, as there
    for apart, true, raw in zip(
        v["distance"], v["true square"], v["raw float32 products"], strict=True
    ):
        other = one + rng.normal(size=one.size) * apart / np.sqrt(one.size)
        members = np.stack([one, other]).astype(np.float32)
        exact = np.square(members[0].astype(float) - members[1]).sum()
        assert exact == pytest.approx(true, rel=0.05)  # the same kind of numbers
        found = robust.received_from_members(jnp.asarray(members)).squares
        found = np.asarray(found)[0, 1]
        assert found.dtype == np.float32
        assert found == pytest.approx(exact, rel=1e-4)
        assert abs(raw - true) > 100 * abs(found - exact)
