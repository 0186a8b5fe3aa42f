"""What attackers send in formats that look at whole leaves, against plain loops.

Their messages take the place of honest ones and pass the same format: the largest
numbers of a hostile model, random ones, random levels.
"""

from functools import partial

import adversity_reference as plain
import adversity_worlds as worlds
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from adversity_worlds import class_worlds, route_of, setting, the_key
from test_adverse_gossip import (
    COMPLETE,
    NUM_AGENTS,
    WIDE,
    big_exchange,
    largest,
    quadratic,
    quadratic_world,
    rounds,
)

import p2pjax as pj
from p2pjax.exchange import attacks, channel, pipeline, robust
from p2pjax.exchange.attacks.base import Hostile
from p2pjax.exchange.pipeline import Attackers, begin, deliver, make_exchange, transmit

SLOW = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("compiled_quickly")
GIVEN = setting(0, 14, 5)
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-8)


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield


def mimicked(world, rows, i, j):
    """The first honest agent that shares the class with the receiver."""
    return rows[plain.honest(world, i)[0]]


ATTACKS = {
    "sign_flip": worlds.ATTACKS["sign_flip"],  # the first: it needs what was before
    "alie": worlds.ATTACKS["alie"],
    "foe": worlds.ATTACKS["foe"],
    "mimic": (attacks.mimic((0,)), mimicked),
    "gaussian": (
        attacks.gaussian((0,), std=1e-12, around="own"),
        lambda world, rows, i, j: rows[j],
    ),
}
FORMATS = {
    "top_k": channel.top_k(0.4),
    "random_k": channel.random_k(0.4),
    "qsgd": channel.qsgd(15),
    "stochastic": channel.quantize(8, stochastic=True),
}


def sender_keys(size):
    return jax.random.split(jax.random.fold_in(the_key(), pipeline.ENCODE), size)


def draws_of(key, number, size, dtype):
    return np.asarray(
        jax.random.uniform(jax.random.fold_in(key, number), (size,), dtype)
    )


class Formats:
    """Formats of one class as loops over senders and parts."""

    def __init__(self, name, world, first):
        self.name, self.world, self.first = name, world, first
        self.keys = sender_keys(len(world.own))

    def key(self, j, is_hostile):
        return self.keys[j] if is_hostile else jax.random.split(self.keys[j])[1]

    def mask(self, j, row, is_hostile):
        """Which numbers are sent; honest senders know what they sent before."""
        found = np.zeros(len(row), bool)
        for number, part in enumerate(self.world.parts):
            size = part.stop - part.start
            if self.name == "top_k":
                last = 0 if is_hostile else self.world.before[j][part]
                score = np.abs(row[part] - last)
            else:
                key = self.key(j, is_hostile)
                score = draws_of(key, self.first + number, size, jnp.float32)
            count = max(1, int(0.4 * size + 1e-9))
            chosen = sorted(range(size), key=lambda at: (-score[at], at))[:count]
            found[[part.start + at for at in chosen]] = True
        return found

    def decoded(self, j, row, is_hostile):
        found = np.zeros(len(row))
        key = self.key(j, is_hostile)
        for number, part in enumerate(self.world.parts):
            x = row[part]
            draws = draws_of(key, self.first + number, len(x), jnp.float64)
            if self.name == "stochastic":
                scale = np.abs(x).max() / 127
                found[part] = np.floor(x / scale + draws) * scale
                continue
            norm = np.sqrt((x**2).sum())
            exact = 15 * np.abs(x) / norm
            level = np.floor(exact) + (draws < exact - np.floor(exact))
            found[part] = np.sign(x) * norm * level / 15
        return found


def expected(name, attack, rule=None, given=GIVEN):
    """Leaves after an exchange, receiver by receiver."""
    found = [leaf.copy() for leaf in jax.tree.leaves(given.models)]
    hostile, first = ATTACKS[attack][1], 0
    for number, (world, places) in enumerate(class_worlds(given)):
        formats = Formats(name, world, first)
        first += len(world.parts)
        new, statistics = world.own.copy(), world.statistics.copy()
        decoded = world.own
        if name not in ("top_k", "random_k"):
            decoded = np.stack(
                [formats.decoded(j, row, False) for j, row in enumerate(world.own)]
            )
        for i in range(len(new)):
            if world.owner[i] == plain.LOCAL:
                continue
            heard = []
            for k in plain.sent_slots(world, i)[0]:
                j = world.slots[i, k]
                if not world.arrived[i, k]:
                    continue
                bad = bool(world.is_byzantine[j])
                row = hostile(world, decoded, i, j) if bad else decoded[j]
                weight = world.weight[i, k]
                gap = world.statistics[j] - world.statistics[i]
                if decoded is world.own:
                    mask = formats.mask(j, row, bad)
                    new[i] += weight * np.where(mask, row - world.own[i], 0)
                    statistics[i] += weight * gap
                    continue
                row = formats.decoded(j, row, True) if bad else row
                heard.append((k, row, world.statistics[j]))
                if rule is None:
                    new[i] += weight * (row - decoded[i])
                    statistics[i] += weight * gap
            if rule is not None:
                apply = worlds.rule_of(rule, given, number)
                new[i], statistics[i] = plain.ruled(world, apply, i, heard)
        worlds.write(found, places, False, new)
        worlds.write(found, places, True, statistics)
    return found


def exchanged(given, choice, *, name, rule=None):
    """The same in the package, with one of all attacks."""
    chosen = [attack for attack, _ in ATTACKS.values()]

    def hostile(scene):
        def rows(attack):
            sent = worlds.at_scale(attack.hostile(scene), attack.scale)
            return jnp.broadcast_to(sent, scene.rows.shape)

        return Hostile(jax.lax.switch(choice, [partial(rows, one) for one in chosen]))

    attack = chosen[0]._replace(hostile=hostile, scale=1.0)
    rule = None if rule is None else worlds.CASES[rule].rule
    plan = worlds.plan_of(given.slots.shape[0])
    exchange = make_exchange(plan, FORMATS[name], attack, rule)
    key, t = the_key(), jnp.int32(worlds.T)
    memory = begin(exchange, key, given.before, Attackers(given.is_byzantine))
    sent, memory = transmit(exchange, key, t, given.models, memory, given.before)
    models, *_ = deliver(
        exchange,
        key,
        t,
        sent,
        given.models,
        given.models,
        route_of(given),
        given.arrived,
    )
    return jax.tree.leaves(models), memory.sender


def check(found, wanted):
    for new, old in zip(found, wanted, strict=True):
        close(new, old)


@pytest.mark.parametrize(
    "name, rule",
    [
        ("top_k", None),
        pytest.param("qsgd", None, marks=SLOW),
        pytest.param("random_k", None, marks=SLOW),
        pytest.param("stochastic", None, marks=SLOW),
        pytest.param("qsgd", "median", marks=SLOW),
        pytest.param("qsgd", "clipped_gossip", marks=SLOW),
        pytest.param("stochastic", "multi_krum", marks=SLOW),
    ],
)
def test_in_numpy(name, rule, double_precision):
    """All attacks, losses and several owner classes in one program."""
    run = jax.jit(partial(exchanged, name=name, rule=rule))
    for choice, attack in enumerate(ATTACKS):
        found, _ = run(GIVEN, choice)
        check(found, expected(name, attack, rule))


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW) for name in FORMATS])
def test_honest_senders_know_nothing_of_attacks(name, double_precision):
    """Where no agent attacks, an exchange is what it is without an attack."""
    nobody = GIVEN._replace(is_byzantine=np.zeros(GIVEN.size, bool))
    found, sender = jax.jit(partial(exchanged, name=name))(nobody, 0)

    @jax.jit
    def quiet(given):
        exchange = make_exchange(worlds.plan_of(GIVEN.size), FORMATS[name])
        key, t = the_key(), jnp.int32(worlds.T)
        memory = begin(exchange, key, given.before)
        sent, memory = transmit(exchange, key, t, given.models, memory)
        own, route = given.models, route_of(given)
        models, *_ = deliver(exchange, key, t, sent, own, own, route, given.arrived)
        return jax.tree.leaves(models), memory.sender if memory else ()

    wanted, remembered = quiet(nobody)
    check(found, wanted)
    check(jax.tree.leaves(sender), jax.tree.leaves(remembered))


@SLOW
def test_attackers_see_noisy_models():
    """Who copies an honest agent sends what that agent sends."""
    given = channel.chain(channel.noise(0.5), channel.top_k(1.0))
    plan = worlds.plan_of(GIVEN.size)
    exchange = make_exchange(plan, given, attacks.mimic((0,), agent=5))
    models = jax.tree.map(jnp.asarray, GIVEN.models)
    key, t = the_key(), jnp.int32(0)
    attackers = Attackers(jnp.arange(GIVEN.size) == 0)

    @jax.jit
    def run(models):
        memory = begin(exchange, key, models, attackers)
        return transmit(exchange, key, t, models, memory)[0]

    sent = run(models)
    assert sent.assault is None
    for leaf in "bcd":
        rows = np.asarray(sent.rows["params"][leaf])
        np.testing.assert_array_equal(rows[0], rows[5])
        assert (rows[5] != np.asarray(models["params"][leaf])[5]).any()
    statistics = sent.rows["batch_stats"]["mean"]  # never attacked
    close(statistics[0], models["batch_stats"]["mean"][0])


@SLOW
def test_attackers_remember_what_they_saw():
    """With all of a model sent, all is as it is with exact messages."""
    start = np.random.default_rng(4).normal(size=(6, 5)).astype(np.float32)
    found = []
    for given in (channel.PERFECT, channel.top_k(1.0)):
        method = pj.dpsgd(
            quadratic(),
            optax.sgd(0.1),
            COMPLETE,
            batch_size=1,
            attack=attacks.mimic((0,), "direction"),
            channel=given,
        )
        states = rounds(method, quadratic_world(2 * start), {"x": start}, 3)
        found.append([(s.variables.params["x"], s.memory.attack) for s in states])
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        close(one, other, atol=1e-5)


def top_two(values):
    mask = np.zeros(values.shape, bool)
    order = np.argsort(-np.abs(values), axis=1, kind="stable")
    np.put_along_axis(mask, order[:, :2], True, 1)
    return mask


@SLOW
def test_rounds_of_dpsgd():
    """Honest agents send what changed most; attackers what is largest."""
    start = np.random.default_rng(2).normal(size=(6, 5)).astype(np.float32)
    byzantine = np.array([1, 4])
    method = pj.dpsgd(
        quadratic(),
        optax.sgd(0.0),
        COMPLETE,
        batch_size=1,
        attack=attacks.alie((1, 4), 2.0),
        channel=channel.top_k(0.4),
    )
    states = rounds(method, quadratic_world(start), {"x": start}, 3)
    x, last = start.astype(float), np.zeros((6, 5))
    for state in states:
        mask = top_two(x - last)
        last = np.where(mask, x, last)
        known = np.delete(x, byzantine, axis=0)
        rows = x.copy()
        rows[byzantine] = known.mean(0) + 2 * known.std(0, ddof=1)
        mask[byzantine] = top_two(rows)[byzantine]
        new = x.copy()
        for i in range(6):
            for j in np.delete(np.arange(6), i):
                new[i] += np.where(mask[j], rows[j] - x[i], 0) / 6
        x = new
        close(state.variables.params["x"], x, atol=1e-5)


@pytest.mark.parametrize(
    "given, rule",
    [
        (channel.top_k(0.1), None),
        (channel.random_k(0.1), None),
        (channel.qsgd(15), robust.median(1)),
    ],
    ids=["top_k", "random_k", "qsgd"],
)
def test_no_receiver_has_copies(given, rule):
    run, shapes = big_exchange(rule, attacks.alie((2,), 1.5), given)
    assert largest(jax.make_jaxpr(run)(*shapes).jaxpr) == NUM_AGENTS * WIDE


@pytest.mark.parametrize(
    "name, rule",
    [
        ("qsgd", robust.clipped_gossip(1)),
        pytest.param("qsgd", robust.median(1), marks=SLOW),
        pytest.param("top_k", None, marks=SLOW),
    ],
)
def test_hostile_numbers_are_contained(name, rule):
    """A rule drops what is no number; without one it reaches those who hear it."""
    start = np.random.default_rng(2).normal(size=(6, 5)).astype(np.float32)
    attack = attacks.foe((1,), 1.0)._replace(
        hostile=lambda scene: Hostile(jnp.full_like(scene.rows[:1], jnp.nan))
    )
    graph = COMPLETE if rule is not None else pj.graphs.ring(6)
    method = pj.dpsgd(
        quadratic(),
        optax.sgd(0.0),
        graph,
        batch_size=1,
        attack=attack,
        aggregate=rule,
        channel=FORMATS[name],
    )
    (state,) = rounds(method, quadratic_world(start), {"x": start})
    is_finite = np.isfinite(state.variables.params["x"]).all(1)
    honest = [0, 2, 3, 4, 5]
    wanted = [rule is not None or i not in (0, 2) for i in honest]
    assert is_finite[honest].tolist() == wanted
