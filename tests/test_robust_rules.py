"""Robust rules: against plain loops, and what all of them keep."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from robust_cases import CASES, NUM_ROUNDS, PROGRESS, B, Has

from p2pjax.exchange import robust
from p2pjax.exchange.robust import Received, clipping, premixing
from p2pjax.types import InputError

pytestmark = pytest.mark.usefixtures("compiled_quickly")

RECEIVERS, SLOTS, WIDTH = 24, 9, 5
FEW = tuple(range(6))  # receivers that lack most messages


def each_rule(test=None, *, where=lambda rule: True):
    """Parametrizes a test with the names of all cases, or of those with some rule."""
    names = [name for name, case in CASES.items() if where(case.rule)]
    decorate = pytest.mark.parametrize("name", names)
    return decorate if test is None else decorate(test)


@functools.cache
def compiled(name):
    """A rule for all receivers: (received, members) -> [N, P], what members count."""
    rule = CASES[name].rule

    @jax.jit
    @jax.vmap
    def combine(received, members):
        counts = None
        if rule.coefficients is not None:
            counts = rule.coefficients(received)
        elif rule.premix is not None:
            counts = rule.premix(received)
        return robust.apply(rule, received, members), counts

    return combine


def combined(name, received, members):
    return np.asarray(compiled(name)(received, members)[0])


@jax.jit
@jax.vmap
def receive(members, weight, present, loss, key):
    return robust.received_from_members(
        members, weight, present, loss=loss, progress=PROGRESS, key=key
    )


def draw(seed, dtype=np.float64):
    """Members, weights, masks and losses of all receivers."""
    rng = np.random.default_rng(seed)
    members = rng.normal(size=(RECEIVERS, SLOTS, WIDTH)).astype(dtype)
    members += rng.normal(size=(RECEIVERS, 1, WIDTH)).astype(dtype)
    weight = rng.uniform(0.2, 1, size=(RECEIVERS, SLOTS))
    weight[::4] = 1
    weight = (weight / weight.sum(1, keepdims=True)).astype(dtype)
    present = rng.random((RECEIVERS, SLOTS)) < 0.85
    present[list(FEW)] = rng.random((len(FEW), SLOTS)) < 0.3
    present[:, 0] = True
    loss = rng.uniform(size=(RECEIVERS, SLOTS)).astype(dtype)
    return members, weight, present, loss


@functools.cache
def keys():
    return jax.random.split(jax.random.key(7), RECEIVERS)


def received(members, weight, present, loss):
    return receive(members, weight, present, loss, keys())


@functools.cache
def draws_of(copies):
    """What `bucketing` draws, [N, copies, K]."""
    shape = (copies, SLOTS)
    uniform = jax.vmap(lambda key: jax.random.uniform(key, shape, jnp.float32))
    return np.asarray(uniform(keys()))


def order_of(present, receiver):
    """How `bucketing` fills its buckets, with indices of those that are present."""

    def order(copies):
        draws = draws_of(copies)[receiver]
        index = np.cumsum(present) - 1
        there = [
            (draws[copy, slot], copy, slot)
            for copy in range(copies)
            for slot in np.flatnonzero(present)
        ]
        return [(int(index[slot]), copy) for _, copy, slot in sorted(there)]

    return order


def expected(name, members, weight, present, loss):
    case, out = CASES[name], []
    for n in range(RECEIVERS):
        there = present[n]
        has = Has(
            members[n][there],
            weight[n][there],
            loss[n][there],
            order_of(there, n),
        )
        is_enough = there.sum() >= case.rule.min_members
        out.append(case.expected(has) if is_enough else members[n, 0])
    return np.array(out)


@each_rule
def test_rules_compute_what_a_loop_does(name):
    drawn = draw(1, np.float32)
    found = combined(name, received(*drawn), drawn[0])
    assert found.dtype == np.float32
    is_kept = (found == drawn[0][:, 0]).all(1)
    drawn = (drawn[0].astype(float), drawn[1].astype(float), *drawn[2:])
    np.testing.assert_allclose(found, expected(name, *drawn), rtol=1e-4, atol=1e-4)
    if CASES[name].rule.min_members > 3:  # some receivers had too few
        assert 0 < is_kept.sum() < RECEIVERS


@pytest.mark.slow
@each_rule
@pytest.mark.parametrize("seed", range(4))
def test_rules_compute_it_exactly(name, seed):
    drawn = draw(seed)
    with jax.enable_x64(True):
        found = combined(name, received(*drawn), drawn[0])
    assert found.dtype == np.float64
    wanted = expected(name, *drawn)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


@each_rule
def test_members_that_agree_are_kept(name):
    """All distances are 0 as in the first round: nothing is divided by it."""
    members, weight, present, loss = draw(2, np.float32)
    members = np.repeat(members[:, :1], SLOTS, axis=1)
    found = combined(name, received(members, weight, present, loss), members)
    np.testing.assert_allclose(found, members[:, 0], rtol=1e-5, atol=1e-6)


@each_rule
def test_absent_slots_never_matter(name):
    members, weight, present, loss = draw(3, np.float32)
    before = received(members, weight, present, loss)
    found = combined(name, before, members)
    for filler in (np.nan, np.inf, -np.inf, 1e30):
        absent = ~present
        pair = absent[:, :, None] | absent[:, None, :]
        after = Received(
            weight=jnp.where(absent, 0.4, before.weight),
            present=before.present,
            distance=jnp.where(absent, filler, before.distance),
            squares=jnp.where(pair, filler, before.squares),
            norm=jnp.where(absent, filler, before.norm),
            loss=jnp.where(absent, filler, before.loss),
            progress=before.progress,
            key=before.key,
        )
        filled = np.where(absent[:, :, None], np.float32(filler), members)
        again = combined(name, after, filled)
        assert np.isfinite(again).all()
        np.testing.assert_array_equal(again, found)


@each_rule(where=lambda rule: not rule.needs_key)  # buckets: see the next test
def test_the_order_of_senders_does_not_matter(name):
    members, weight, present, loss = draw(4, np.float32)
    present[:, 3:] = True  # of few members, Krum finds ties
    rng = np.random.default_rng(0)
    order = np.array([[0, *rng.permutation(SLOTS - 1) + 1] for _ in range(RECEIVERS)])
    moved = [
        np.take_along_axis(x, order.reshape(*order.shape, *[1] * (x.ndim - 2)), 1)
        for x in (members, weight, present, loss)
    ]
    found = combined(name, received(members, weight, present, loss), members)
    again = combined(name, received(*moved), moved[0])
    np.testing.assert_allclose(again, found, rtol=1e-4, atol=1e-4)


def test_buckets_depend_on_their_draws_alone():
    rng = np.random.default_rng(0)
    members = rng.normal(size=(7, 2)).astype(np.float32)
    order = np.array([0, 3, 6, 1, 5, 2, 4])
    draws = rng.random((1, 7)).astype(np.float32)
    present = np.array([True, True, False, True, True, True, True])
    before = robust.received_from_members(members, present=present)
    after = robust.received_from_members(members[order], present=present[order])
    means = jax.jit(premixing.bucket_means, static_argnums=2)
    one = means(before, draws, 2)
    other = means(after, draws[:, order], 2)
    np.testing.assert_allclose(one[0] @ members, other[0] @ members[order], atol=1e-6)
    np.testing.assert_array_equal(one[1], other[1])
    assert one[1].sum() == 3 and one[0][0, 0] > 0


def test_buckets_are_drawn_anew():
    drawn = draw(0, np.float32)
    has = received(*drawn)
    again = has._replace(key=jax.random.split(jax.random.key(8), RECEIVERS))
    one, other = (combined("bucketing_median", h, drawn[0]) for h in (has, again))
    is_enough = drawn[2].sum(1) > 4
    assert (one != other).any(1)[is_enough].mean() > 0.9


@each_rule
@pytest.mark.parametrize("pattern", ["same", "opposite", "random"])
def test_hostile_messages_move_no_rule_far(name, pattern):
    case = CASES[name]
    rng = np.random.default_rng(5)
    members, weight, _, loss = draw(5, np.float32)
    weight[:] = 1 / SLOTS
    present = np.ones((RECEIVERS, SLOTS), bool)
    scales = np.logspace(0, 38, RECEIVERS)  # squares overflow
    scales[-1] = 1.2e19  # only those between opposite ones do
    honest = np.ones((RECEIVERS, SLOTS), bool)
    for n in range(RECEIVERS):
        where = rng.choice(np.arange(1, SLOTS), case.hostile, replace=False)
        honest[n, where] = False
        direction = np.repeat(rng.normal(size=(1, WIDTH)), case.hostile, axis=0)
        if pattern == "opposite":
            direction *= np.where(np.arange(case.hostile) % 2, -1, 1)[:, None]
        elif pattern == "random":
            direction = rng.normal(size=direction.shape)
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        members[n, where] = np.clip(direction * scales[n], -3e38, 3e38)
        loss[n, where] = 0  # and they seem to be good
    has = received(members, weight, present, loss)
    noise = 1 + 3e-7 * rng.uniform(-1, 1, size=has.squares.shape)  # of long sums
    has = has._replace(squares=has.squares * noise.astype(np.float32))
    found = combined(name, has, members).astype(float)
    assert np.isfinite(found).all() or case.reach == np.inf
    for n in range(RECEIVERS):
        kept = members[n][honest[n]].astype(float)
        if name in ("median", "trimmed_mean", "trimmed_mean_keep_self"):
            assert (found[n] <= kept.max(0) + 1e-5).all()
            assert (found[n] >= kept.min(0) - 1e-5).all()
        apart = np.linalg.norm(kept[:, None] - kept[None], axis=-1).max()
        unit = 1.0 if "centered_clipping" in name else apart
        moved = np.linalg.norm(found[n] - kept[0])
        assert moved <= case.reach * unit * (1 + 1e-4), (scales[n], moved / unit)


def test_plain_mixing_is_moved():
    """What the test above asks for is not true of any rule."""
    members, weight, present, loss = draw(0, np.float32)
    members[:, 1], present[:, 1] = 1e6, True
    has = received(members, weight, present, loss)
    found = combined("clipped_gossip_0", has, members)
    assert (np.linalg.norm(found, axis=1) > 1e4).all()


@each_rule
def test_coefficients_are_those_of_a_mean(name):
    rule = CASES[name].rule
    members, weight, present, loss = draw(6, np.float32)
    counts = compiled(name)(received(members, weight, present, loss), members)[1]
    if rule.coefficients is not None:
        np.testing.assert_allclose(counts.sum(1), 1, rtol=1e-5)
        assert (np.asarray(counts)[~present] == 0).all()
        is_long = name == "cs_plus_long"
        assert (np.asarray(counts) < -1e-6).any() == is_long
        statistics = np.asarray(jax.vmap(robust.convex)(counts))
        assert (statistics >= -1e-6).all()
        np.testing.assert_allclose(statistics.sum(1), 1, rtol=1e-5)
    elif rule.premix is not None:
        matrix, mask = map(np.asarray, counts)
        np.testing.assert_allclose(matrix.sum(2)[mask], 1, rtol=1e-5)
        assert (matrix >= 0).all()
        is_used = (matrix * mask[:, :, None] > 0).any(1)
        assert not is_used[~present].any()
    else:
        assert counts is None and rule.combine is not None


@each_rule(where=lambda rule: rule.coefficients is not None)
def test_an_own_model_that_diverged_stays(name):
    members, weight, present, loss = draw(7, np.float32)
    members[:, 0] = np.nan
    counts = compiled(name)(received(members, weight, present, loss), members)[1]
    np.testing.assert_array_equal(counts, np.eye(SLOTS)[np.zeros(RECEIVERS, int)])


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_long_step_is_shortened_for_statistics(share):
    weights = jnp.array([0.2, 0.3, 0.5]) * share
    longer = robust.base.from_neighbors(weights, 2.0)
    convex = robust.convex(longer)
    if share == 1.0:
        np.testing.assert_allclose(convex, [0, 0.375, 0.625], atol=1e-6)
    else:
        np.testing.assert_array_equal(convex, longer)


@pytest.mark.parametrize("slots", [11, 201])
def test_equal_weights_are_counted_exactly(slots):
    """In single precision sums of equal weights miss equality."""
    apart = np.arange(slots)
    distance, present = apart.astype(np.float32), np.ones(slots, bool)
    shares = np.linspace(0.5, 1, 20, dtype=np.float32)[:, None]
    weight = np.repeat(shares / np.float32(slots), slots, axis=1)

    def factors(rule):
        found = jax.vmap(lambda w: rule.coefficients(Received(w, present, distance)))
        return np.asarray(jax.jit(found)(weight))[:, 1:] / weight[:, 1:]

    for count in {slots // 5, (slots - 2) // 2}:
        radius = slots - 1 - 2 * count
        wanted = np.minimum(1, radius / apart[1:])
        for found in factors(robust.cs_plus(count)):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
        for found in factors(robust.gts(count)):
            np.testing.assert_allclose(found, apart[1:] < slots - count, atol=1e-4)
        radius = np.sqrt((apart[: slots - count] ** 2).sum() / count)
        wanted = np.minimum(1, radius / apart[1:])
        for found in factors(robust.clipped_gossip(count)):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_ties_are_ties_whatever_the_order_of_sums():
    """Distances there and back may differ in their last digit."""
    squares = jnp.array([[0.0, 1.0000002, 4.0], [1.0, 0.0, 4.0], [4.0, 4.0, 0.0]])
    has = Received(jnp.ones(3) / 3, jnp.ones(3, bool), jnp.array([0.0, 1, 2]), squares)
    assert robust.krum(0).coefficients(has).tolist() == [1, 0, 0]


def test_distances_that_overflow_leave_the_others_alone():
    """Two hostile messages so far apart that the square of it is infinite."""
    rule = robust.nnm(robust.krum(3))  # of seven honest members six are mixed
    coefficients = jax.jit(jax.vmap(rule.coefficients))
    members, weight, _, loss = draw(0, np.float32)
    present = np.ones((RECEIVERS, SLOTS), bool)
    counts = []
    for scale in (1e15, 1.2e19):
        members[:, 3], members[:, 5] = 0, 0
        members[:, 3, 0], members[:, 5, 0] = scale, -scale
        has = received(members, weight, present, loss)
        counts.append(np.asarray(coefficients(has)))
    assert np.isinf(has.squares[:, 3, 5]).all() and np.isfinite(has.distance).all()
    np.testing.assert_array_equal(*counts)
    assert len(np.unique(counts[0] > 0, axis=0)) > 3


def test_too_few_members_for_mixing_alone():
    """Where the rule behind would do with them."""
    members = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    rule = robust.nnm(robust.median(0), max_byzantine=2)

    @jax.jit
    @jax.vmap
    def combine(present):
        has = robust.received_from_members(members, present=present)
        return robust.apply(rule, has, members)

    found = combine(np.arange(5)[None] < np.array([[4], [5]]))
    np.testing.assert_array_equal(found[0], members[0])
    assert (found[1] != members[0]).all()


def test_an_own_model_far_from_the_others():
    """It must not take the precision with which the others see each other."""
    members, weight, _, loss = draw(0, np.float32)
    present = np.ones((RECEIVERS, SLOTS), bool)
    members[:, 0] += 1e4
    found = combined(
        "geometric_median", received(members, weight, present, loss), members
    )
    members, weight = members.astype(float), weight.astype(float)
    wanted = expected("geometric_median", members, weight, present, loss)
    np.testing.assert_allclose(found, wanted, atol=0.02)


def test_clipping_needs_no_pairs():
    """Rules that look from the own model only are as cheap as plain mixing."""
    cheap = {n for n, c in CASES.items() if not c.rule.needs_pairs}
    assert cheap >= {
        "centered_clipping",
        "self_centered_clipping",
        "clipped_gossip",
        "cs_plus",
        "gts",
        "nna",
        "balance",
        "ubar",
        "bucketing_median",
    }
    has = received(*draw(0, np.float32))._replace(squares=None, norm=None)
    for name in cheap - {"balance"}:
        rule = CASES[name].rule
        assert jax.eval_shape(
            jax.vmap(rule.coefficients or rule.premix or (lambda h: h.weight)), has
        )


def test_what_a_rule_lacks_is_named():
    has = Received(jnp.ones(3) / 3, jnp.ones(3, bool), jnp.array([0.0, 1, 2]))
    for rule, field in (
        (robust.krum(0), "squares"),
        (robust.balance(num_rounds=3), "norm"),
        (robust.ubar(0.5), "loss"),
        (robust.bucketing(robust.gts(0)), "squares"),
    ):
        with pytest.raises(InputError, match=f"Need `{field}` of what is received for"):
            rule.coefficients(has)
    with pytest.raises(InputError, match=r"`key` .* for bucketing\(median\)"):
        robust.bucketing(robust.median(0)).premix(has)


def test_hostile_losses():
    """Losses of hostile models may be anything; the own one may be, too."""
    members = jnp.array([[0.0], [1.0], [2.0], [3.0]])
    rule = robust.ubar(0.7)  # the nearest two are looked at
    losses = {
        (0.5, np.nan, 0.4, 0.1): 1.0,
        (0.5, np.nan, 0.6, 0.1): 1.0,
        (0.5, np.nan, np.inf, 0.1): 0.0,
        (np.nan, 0.4, np.nan, 0.1): 0.5,
        (0.5, 0.7, 0.6, 0.1): 1.0,
    }

    @jax.jit
    @jax.vmap
    def combine(loss):
        has = robust.received_from_members(members, loss=loss)
        return robust.apply(rule, has, members)[0]

    found = combine(np.array(list(losses), np.float32))
    np.testing.assert_allclose(found, list(losses.values()))


def test_rules_with_too_few_members_are_refused():
    members = np.array([9, 5, 4, 7])
    robust.check_rule(robust.median(1), members)
    with pytest.raises(InputError) as refused:
        robust.check_rule(robust.trimmed_mean(2), members)
    assert str(refused.value) == (
        "Need more than 2 x 2 messages (with one's own) for trimmed_mean, got 4 at "
        "agent 2: lower b or use a denser graph."
    )
    with pytest.raises(InputError, match=r"more than 2 x 1 x 2 messages .* bucketing"):
        robust.check_rule(robust.bucketing(robust.geometric_median(1)), members)
    robust.check_rule(robust.bucketing(robust.geometric_median(1)), members + 1)
    with pytest.raises(InputError, match=r"2 x 2 messages .* for nnm\(krum\), got 4"):
        robust.check_rule(robust.nnm(robust.krum(1), 2), members)
    for rule in (robust.gts(9), robust.nna(9), robust.ios(9), robust.clipped_gossip(9)):
        robust.check_rule(rule, members)


def test_doubts_are_told():
    members = np.array([7, 6])
    robust.check_rule(robust.krum(2), members[:1])
    with pytest.warns(
        UserWarning, match=r"krum promises .* 2 x 2 \+ 3 .* 6 at agent 1"
    ):
        robust.check_rule(robust.krum(2), members)
    with pytest.warns(UserWarning, match="got 3 at agent 1"):  # buckets
        robust.check_rule(robust.bucketing(robust.krum(1)), members)
    robust.check_rule(robust.cs_plus(2), members)
    with pytest.warns(UserWarning, match="own model of 1 agents, first of agent 1"):
        robust.check_rule(robust.cs_plus(2), np.array([6, 5]))
    weight = np.array([[0.2, 0.4, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25]])
    with pytest.warns(UserWarning, match="own model of 1 agents, first of agent 0"):
        robust.check_rule(robust.cs_plus(1), np.array([4, 4]), weight)
    robust.check_rule(robust.cs_plus(1), np.array([4]), weight[1:])
    robust.check_rule(robust.cs_plus(0), np.array([1]))


def test_a_frozen_agent_is_one_that_keeps_its_model():
    """The warning about CS+ is about what happens."""
    rng = np.random.default_rng(0)
    rule = robust.cs_plus(1)
    weights = rng.dirichlet(np.ones(5), size=200).astype(np.float32)
    members = rng.normal(size=(5, 2)).astype(np.float32)

    @jax.jit
    @jax.vmap
    def coefficients(weight):
        return rule.coefficients(robust.received_from_members(members, weight))

    keeps = np.asarray(coefficients(weights))[:, 0] == 1
    told = np.array(
        [rule.doubt(np.array([5]), weight[None]) is not None for weight in weights]
    )
    assert told.any() and not told.all()
    assert keeps[told].all()


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: robust.median(-1), "Need max_byzantine of 0 or more.*got -1"),
        (lambda: robust.trimmed_mean(1.0), "a whole number, got 1.0"),
        (lambda: robust.krum(True), "a whole number, got True"),
        (lambda: robust.krum(1, closest="nb1"), 'closest of "n-b-2" or "n-b-1"'),
        (lambda: robust.multi_krum(1, 0), "num_selected of 1 or more"),
        (lambda: robust.geometric_median(1, smoothing=0.0), "positive smoothing"),
        (lambda: robust.geometric_median(1, num_iterations=0), "num_iterations of 1"),
        (lambda: robust.geometric_median(1, start="0"), '"own", "mean" or "zero"'),
        (lambda: robust.centered_clipping(0.0), "positive radius, got 0.0"),
        (lambda: robust.centered_clipping(1.0, 0), "num_iterations of 1 or more"),
        (lambda: robust.self_centered_clipping(np.inf), "positive radius, got inf"),
        (lambda: robust.self_centered_clipping(np.nan), "positive radius, got nan"),
        (lambda: robust.self_centered_clipping("1"), "positive radius, got 1"),
        (lambda: robust.clipped_gossip(1, step_size=0), "positive step_size"),
        (lambda: robust.cs_plus(-2), "max_byzantine of 0 or more"),
        (lambda: robust.gts(1, step_size=-1.0), "positive step_size"),
        (lambda: robust.nna(None), "a whole number, got None"),
        (lambda: robust.ios(0.5), "a whole number"),
        (lambda: robust.balance(gamma=0, num_rounds=3), "positive gamma"),
        (lambda: robust.balance(kappa=-1, num_rounds=3), "kappa of 0 or more"),
        (lambda: robust.balance(alpha=0.0, num_rounds=3), "alpha above 0 and up to 1"),
        (lambda: robust.balance(num_rounds=0), "num_rounds of 1 or more"),
        (lambda: robust.ubar(1.5), "honest_share above 0 and up to 1"),
        (lambda: robust.ubar(0.5, alpha=1.1), "alpha above 0 and up to 1"),
        (lambda: robust.bucketing(robust.median(1), size=0), "size of 1 or more"),
        (lambda: robust.nnm(robust.median(1), -1), "max_byzantine of 0 or more"),
        (lambda: robust.nnm(robust.ubar(0.5)), "behind nnm, got ubar: the losses"),
        (lambda: robust.bucketing(robust.ubar(0.5)), "behind bucketing, got ubar"),
    ],
)
def test_bad_arguments_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()


def test_what_rules_say_of_themselves():
    assert robust.balance(num_rounds=NUM_ROUNDS).num_rounds == NUM_ROUNDS
    assert robust.nnm(robust.balance(num_rounds=9), B).num_rounds == 9
    assert robust.nnm(robust.bucketing(robust.median(1))).name == (
        "nnm(bucketing(median))"
    )
    assert robust.nnm(robust.trimmed_mean(2)).max_byzantine == 2
    assert robust.nnm(robust.gts(1), 2).min_members == 5
    assert clipping.clip_factor(jnp.zeros(1), 0.0).tolist() == [1.0]
