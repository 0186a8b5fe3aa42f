"""One exchange that is compressed, attacked, lossy and robust, against plain loops."""

from functools import partial

import adversity_worlds as worlds
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adversity_worlds import NUM_ATTACHED, PER_RECEIVER, expected, setting
from robust_cases import CASES

SLOW = pytest.mark.slow
NARROW = setting(0, 26, 6)  # pairs of messages one by one
WIDE = setting(1, 11, 10)  # by products of all agents, mixed by a matrix
close = partial(np.testing.assert_allclose, rtol=0, atol=1e-8)


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield


def compiled(**options):
    return jax.jit(partial(worlds.exchanged, **options))


def check(found, wanted, is_told=None):
    for new, old in zip(found, wanted, strict=True):
        is_told = slice(None) if is_told is None else is_told
        close(np.asarray(new)[is_told], old[is_told])


# Means of the nearest are often equal, and rounding decides which of them krum takes.
RULES = [name for name in CASES if name != "nnm_krum"]
FAST = ("clipped_gossip",)


@pytest.mark.parametrize(
    "rule", [n if n in FAST else pytest.param(n, marks=SLOW) for n in RULES]
)
def test_rules_under_attacks(rule, double_precision, compiled_quickly):
    """Every attack on receivers, losses, several owner classes, in one program."""
    run = compiled(rule=rule, names=PER_RECEIVER)
    for choice, name in enumerate(PER_RECEIVER):
        check(run(NARROW, choice), expected(NARROW, attack=name, rule=rule))
    nobody = NARROW._replace(is_byzantine=np.zeros(NARROW.size, bool))
    check(run(nobody, 0), expected(nobody, rule=rule))


NO_RULE = {"no rule": None} | {name: name for name in CASES}


@pytest.mark.parametrize(
    "rule, format",
    [
        ("no rule", "uniform8"),
        pytest.param("no rule", "half", marks=SLOW),
        pytest.param("no rule", "exact", marks=SLOW),
        pytest.param("gts", "half", marks=SLOW),
        pytest.param("gts", "uniform8", marks=SLOW),
        pytest.param("median", "half", marks=SLOW),
        pytest.param("median", "uniform8", marks=SLOW),
    ],
)
def test_formats_under_attacks(rule, format, double_precision, compiled_quickly):
    """What attackers send has the format of other messages."""
    run = compiled(rule=NO_RULE[rule], names=PER_RECEIVER, format=format)
    for choice, name in enumerate(PER_RECEIVER):
        wanted = expected(NARROW, attack=name, rule=NO_RULE[rule], encode=format)
        check(run(NARROW, choice), wanted)


@pytest.mark.parametrize(
    "rule, format",
    [
        ("no rule", "uniform8"),
        pytest.param("no rule", "exact", marks=SLOW),
        ("krum", "exact"),
        pytest.param("gts", "half", marks=SLOW),
        pytest.param("nnm_trimmed_mean", "uniform8", marks=SLOW),
        pytest.param("trimmed_mean", "uniform8", marks=SLOW),
    ],
)
def test_attacks_of_senders(rule, format, double_precision, compiled_quickly):
    """Each attacker sends something of its own; all agents hear all others."""
    rule = NO_RULE[rule]
    run = compiled(rule=rule, names=("sign_flip",), format=format)
    check(run(WIDE), expected(WIDE, attack="sign_flip", rule=rule, encode=format))


@pytest.mark.parametrize(
    "rule, format",
    [
        ("ios", "exact"),
        pytest.param("no rule", "exact", marks=SLOW),
        pytest.param("no rule", "uniform8", marks=SLOW),
        pytest.param("median", "half", marks=SLOW),
        pytest.param("bucketing_nnm_median", "exact", marks=SLOW),
        pytest.param("multi_krum", "exact", marks=SLOW),
    ],
)
def test_attached_attackers(rule, format, double_precision, compiled_quickly):
    given, names = worlds.with_attached(NARROW), ("alie", "dissensus")
    rule, options = NO_RULE[rule], {"num_attached": NUM_ATTACHED}
    run = compiled(rule=rule, names=names, format=format, **options)
    for choice, name in enumerate(names):
        wanted = expected(given, attack=name, rule=rule, encode=format, **options)
        check(run(given, choice), wanted)


@pytest.mark.parametrize("format", ["half", pytest.param("uniform8", marks=SLOW)])
def test_formats_alone(format, double_precision, compiled_quickly):
    for given in (NARROW, WIDE):
        check(compiled(format=format)(given), expected(given, encode=format))


def broken(given):
    """One agent has lost a parameter, one a variance; others send infinity."""
    models = jax.tree.map(np.copy, given.models)
    models["params"]["b"][4, 2] = np.nan
    models["batch_stats"]["var"][6, 1, 0] = np.nan
    models["params"]["d"][9, 0, 1, 1] = -np.inf
    models["params"]["a"][9, 3, 0] = np.inf  # in another class of the same message
    models["params"]["a"][8, 2, 1] = np.inf  # which not all of its receivers share
    return given._replace(models=models), ~np.isin(np.arange(given.size), [4, 6, 8, 9])


FAST_BROKEN = ("trimmed_mean", "cs_plus")


@pytest.mark.parametrize(
    "rule", [n if n in FAST_BROKEN else pytest.param(n, marks=SLOW) for n in RULES]
)
def test_what_is_not_finite_is_not_there(rule, double_precision, compiled_quickly):
    given, is_sound = broken(NARROW)
    run = jax.jit(partial(worlds.delivered, rule=rule))
    found, _, rejected = run(given)
    found = jax.tree.leaves(found)
    check(found, expected(given, rule=rule), is_sound)
    for leaf in found:
        assert np.isfinite(np.asarray(leaf)[is_sound]).all()
    wanted = worlds.rejected(given)[is_sound]
    assert {0, 1, 2} <= set(wanted)
    np.testing.assert_array_equal(np.asarray(rejected)[is_sound], wanted)


@pytest.mark.parametrize(
    "rule", [n if n == "multi_krum" else pytest.param(n, marks=SLOW) for n in CASES]
)
def test_hostile_numbers_are_contained(rule, compiled_quickly):
    """In single precision: what attackers send overflows, or is no number."""
    given = jax.tree.map(lambda leaf: jnp.asarray(leaf), NARROW)
    bad = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 3e38, -1e30, 1e19])
    run = jax.jit(partial(worlds.sent_numbers, rule=rule))
    is_honest = ~NARROW.is_byzantine
    for number in bad:
        for leaf in run(given, number):
            assert np.isfinite(np.asarray(leaf)[is_honest]).all(), float(number)
