"""Private gossip averaging: the report's example, its bounds, sums, losses."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from partial_worlds import PartialWorld

from p2pjax.exchange import attacks, channel, robust
from p2pjax.exchange.owner_classes import Block, MixPlan, OwnerClass
from p2pjax.partial.exchanges import Exchanges
from p2pjax.partial.per_model import Situation
from p2pjax.partial.private_gossip import (
    corrected,
    expected_error,
    privacy_bounds,
    private_gossip,
)
from p2pjax.types import InputError

VECTORS = json.loads(
    (Path(__file__).parent / "vectors" / "private_gossip.json").read_text()
)
WORLD = PartialWorld()


def plan_of(size, width=1):
    owner = np.zeros(size, int)
    return MixPlan((OwnerClass(owner, (Block(0, (0,), (width,)),)),))


def one_round(averaging, seed=0, num_rounds=1, t=0):
    inputs = averaging.plan(np.random.default_rng(seed), num_rounds)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[t]), inputs)


def literal(values, exchanges):
    """Value and error of each agent, as the rule is written."""
    value, error = np.array(values, float), np.zeros(len(values))
    for (a, b), (r, q) in exchanges:
        for agent, own in ((a, r), (b, q)):
            error[agent] += value[agent] - own
            value[agent] = (r + q) / 2
    return value, error


def test_the_worked_example():
    vector = VECTORS["bft19_example"]
    exchanges = [(e["pair"], e["fake"]) for e in vector["exchanges"]]
    value, error = literal(vector["x"], exchanges)
    after = vector["after 2 exchanges of everybody"]
    np.testing.assert_allclose(value, after["value"])
    np.testing.assert_allclose(error, after["error"])
    plan = plan_of(4)
    averaging = private_gossip(2, cycles=1).among(Situation(plan))
    noise = len(one_round(averaging).first) - 4
    x = [jnp.asarray(vector["x"], jnp.float32)[:, None]]
    for wave in (exchanges[:2], exchanges[2:]):
        fake = np.zeros((4, 1), np.float32)
        first, second = np.zeros((2, noise + 4), np.int32)
        for f, ((a, b), (r, q)) in enumerate(wave):
            fake[[a, b], 0], first[f], second[f] = (r, q), a, b
        x = corrected(x, [fake], plan, averaging, Exchanges(first, second))
    np.testing.assert_allclose(x[0][:, 0], vector["after the correction"])
    for pairs, wanted in (
        (((0, 1), (2, 3)), "then plain pairs (0,1),(2,3)"),
        (((0, 2), (1, 3)), "then (0,2),(1,3)"),
    ):
        first, second = np.zeros((2, noise + 4), np.int32)
        for f, (a, b) in enumerate(pairs):
            first[noise + f], second[noise + f] = a, b
        clear = averaging.combine(Exchanges(first, second), np.zeros(4, int), None)
        x = [clear(x[0])]
        np.testing.assert_allclose(x[0][:, 0], vector[wanted], rtol=1e-6)


@pytest.mark.parametrize("vector", VECTORS["bft19_bounds"])
def test_bounds(vector):
    found = privacy_bounds(vector["tau"], vector["p"], vector["theta"])
    wanted = [
        vector[k] for k in ("direct <=", "first order <=", "survival >=", "escape >=")
    ]
    np.testing.assert_allclose(found, wanted, atol=1e-8)


def test_bounds_of_a_corrupt_majority():
    assert math.isnan(privacy_bounds(0.6, 3).survival)
    assert privacy_bounds(0.0, 3, 1.0) == (0, 0, 1, 1)


@pytest.mark.parametrize("size", [2, 5, 8, 9])
def test_each_member_has_its_exchanges_of_noise(size):
    """An odd number rests in turn; no agent is in two exchanges of a wave."""
    level, cycles = 3, 2
    averaging = private_gossip(level, cycles=cycles).among(Situation(plan_of(size)))
    inputs = averaging.plan(np.random.default_rng(0), 20)
    noise = inputs.first.shape[1] - cycles * size
    waves = noise // (size // 2)
    assert waves <= level + (0 if size % 2 == 0 else level)
    for first, second in zip(inputs.first, inputs.second, strict=True):
        ends = np.stack([first[:noise], second[:noise]], 1)
        used = ends[ends[:, 0] != ends[:, 1]]
        assert np.bincount(used.ravel(), minlength=size).min() >= level
        for wave in ends.reshape(waves, -1):
            assert len(set(wave)) == len(wave)


@pytest.fixture(scope="module")
def many():
    """Values of 200 agents after a phase of noise and after all, and before."""
    plan = plan_of(200, 40)
    level, spread, bound = 4, 3.0, 2.0
    realisation = private_gossip(level, cycles=3, spread=spread, bound=bound)
    averaging = realisation.among(Situation(plan))
    inputs = one_round(averaging)
    x = [jax.random.normal(jax.random.key(0), (200, 40))]

    @jax.jit
    def run(x):
        noisy = averaging.disturb(jax.random.key(1), inputs, x, plan, None)
        return noisy[0], averaging.combine(inputs, np.zeros(200, int), None)(noisy[0])

    noisy, after = run(x)
    return np.asarray(x[0]), np.asarray(noisy), np.asarray(after)


def test_noise_cancels_to_the_mean(many):
    x, noisy, after = many
    assert np.abs(noisy - x).mean() > 2  # what is sent says little of the value
    np.testing.assert_allclose(noisy.mean(0), x.mean(0), atol=2e-6)
    np.testing.assert_allclose(after.mean(0), x.mean(0), atol=2e-6)


def test_the_error_is_as_expected(many):
    x, noisy, after = many
    variance = x.var(0).mean()
    for cycles, found in ((0, noisy), (3, after)):
        wanted = expected_error(4, cycles, 3.0, 2.0, variance)
        assert found.var(0).mean() == pytest.approx(wanted, rel=0.1)
    columns = (noisy - x).T  # columns have noise of their own
    assert np.abs(np.corrcoef(columns)[0, 1:]).max() < 0.35


def test_rounds_count_all_exchanges_and_reach_the_mean():
    """Partial models in the engine: what is local stays, members near their mean."""
    level, cycles = 2, 25
    owners, x, (found,), info, _ = WORLD.averaged(private_gossip(level, cycles=cycles))
    for column in range(x.shape[1]):
        owner = owners[:, column]
        for n in range(WORLD.SIZE):
            wanted = x[n, column]
            if owner[n] >= 0:
                wanted = x[owner == owner[n], column].mean()
            assert found[n, column] == pytest.approx(wanted, abs=1e-5)
    assert (found[owners < 0] == x[owners < 0]).all()
    # Of model 0 four members, of model 1 three, who rest in turn: three matchings.
    noise = np.array([4 * level, 3 * 2])
    clear = 2 * cycles * np.array([4, 3])
    np.testing.assert_allclose(info.models.messages[0].sum(0), noise + clear)


def test_lost_messages_leave_no_agent_unprotected():
    """Sums stay; who lacks exchanges of noise sends nothing in the clear."""
    plan, level = plan_of(7, 2), 3
    lost = 0.6
    averaging = private_gossip(level, cycles=4).among(Situation(plan, 1, lost))
    owner = np.zeros(7, int)
    x = [jax.random.normal(jax.random.key(0), (7, 2))]
    inputs = averaging.plan(np.random.default_rng(0), 40)

    @jax.jit
    def run(key, inputs):
        arrived = ~jax.random.bernoulli(key, lost, (7, inputs.first.shape[0]))
        arrived = averaging.together(inputs, arrived)
        settled = averaging.settle(inputs, x, plan, arrived)
        noisy = averaging.disturb(key, settled, x, plan, arrived)
        return settled, arrived, averaging.combine(settled, owner, arrived)(noisy[0])

    num_noise = inputs.first.shape[1] - 4 * 7
    short, spared = 0, 0
    for t in range(40):
        one = jax.tree.map(lambda leaf: jnp.asarray(leaf[t]), inputs)  # noqa: B023
        settled, arrived, after = jax.tree.map(np.asarray, run(jax.random.key(t), one))
        np.testing.assert_allclose(after.mean(0), x[0].mean(0), atol=1e-5)
        takes = settled.first != settled.second
        reaches = takes & arrived[settled.first, np.arange(len(takes))]
        ends = np.stack([settled.first, settled.second], 1)
        had = np.bincount(ends[:num_noise][reaches[:num_noise]].ravel(), minlength=7)
        clear = set(ends[num_noise:][takes[num_noise:]].ravel().tolist())
        assert all(had[agent] >= level for agent in clear)
        short += (had < level).sum()
        spared += (~takes[:num_noise]).sum()
    assert short < 0.02 * 40 * 7
    assert spared > 0


def test_noise_in_the_first_averaging_only():
    realisation = private_gossip(2, cycles=1, every_averaging=False)
    averaging = realisation.among(Situation(plan_of(4), average_every=2))
    inputs = averaging.plan(np.random.default_rng(0), 4)
    has_noise = (inputs.first != inputs.second)[:, :-4].any(1)
    assert has_noise.tolist() == [True, True, False, False]
    assert (inputs.first != inputs.second)[:, -4:].all()


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: private_gossip(0), "level and cycles of 1 or more"),
        (lambda: private_gossip(spread=0.0), "a spread above 0"),
        (lambda: private_gossip(bound=math.inf), "a bound above 0"),
        (lambda: privacy_bounds(1.0, 3), "from 0 to below 1"),
        (
            lambda: WORLD.method(private_gossip(), channel=channel.quantize(16)),
            "noise cancels only if",
        ),
        (
            lambda: WORLD.method(
                private_gossip(), aggregate=robust.balance(num_rounds=2)
            ),
            "noise cancels only if",
        ),
        (
            lambda: WORLD.method(
                private_gossip(), attack=attacks.sign_flip((1,), of="model", scale=1.0)
            ),
            "noise cancels only if",
        ),
        (
            lambda: WORLD.method(
                private_gossip(every_averaging=False), channel=channel.drop(0.1)
            ),
            "in every averaging where messages are lost",
        ),
        (
            lambda: WORLD.method(private_gossip(), drift_threshold=0.1),
            "no drift_threshold",
        ),
    ],
)
def test_refusals(build, message):
    with pytest.raises(InputError, match=message):
        build()
