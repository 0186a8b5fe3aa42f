"""Who owns a parameter between cells of several models."""

import contextlib
import itertools

import numpy as np
import pytest

from p2pjax.partial import ownership, schemes
from p2pjax.partial.ownership import NEUTRAL, _Owners
from p2pjax.types import LOCAL


def owners(depends, num_models, cross_model=False):
    return _Owners(schemes.dependency_closure(depends, num_models), cross_model)


def test_a_model_below_two_others_owns_what_all_three_share():
    """Folded two by two, the unrelated pair came to LOCAL first, and stayed there."""
    found = owners(((2, 0), (2, 1)), 3)
    for order in itertools.permutations((0, 1, 2)):
        assert found.owner(list(order)) == 2
    assert found.owner([0, 1]) == LOCAL


@pytest.mark.parametrize("cross_model", [False, True])
def test_any_order_of_axes_gives_the_same_owner(cross_model):
    rng = np.random.default_rng(0)
    for _ in range(20):
        pairs = [(a, b) for a in range(5) for b in range(a) if rng.random() < 0.3]
        with pytest.warns() if _is_implied(pairs) else contextlib.nullcontext():
            found = owners(tuple(pairs), 5, cross_model)
        for models in itertools.combinations([*range(5), LOCAL, NEUTRAL], 3):
            results = {found.owner(list(m)) for m in itertools.permutations(models)}
            assert len(results) == 1, models


def test_of_two_models_it_is_the_table():
    below = schemes.dependency_closure(((1, 0),), 3)
    for cross_model in (False, True):
        table = ownership.lowest_owner(below, cross_model)
        found = _Owners(below, cross_model)
        for a, b in itertools.product(range(3), repeat=2):
            assert found.owner([a, b]) == table[a, b]
        assert found.owner([0, LOCAL]) == LOCAL
        assert found.owner([NEUTRAL, 2]) == 2
        assert found.owner([NEUTRAL, NEUTRAL]) == NEUTRAL


def test_three_unrelated_models_share_by_themselves_across_models():
    found = owners((), 4, cross_model=True)
    pairs = {found.owner([a, b]) for a, b in itertools.combinations(range(4), 2)}
    triples = {found.owner(list(t)) for t in itertools.combinations(range(4), 3)}
    assert len(pairs) == 6 and len(triples) == 4
    assert not (pairs | set(range(4))) & triples
    assert owners((), 4).owner([0, 1, 2]) == LOCAL


def _is_implied(pairs):
    direct = np.zeros((5, 5), int)
    for a, b in pairs:
        direct[a, b] = 1
    reach = direct.copy()
    for _ in range(5):
        reach = ((reach + reach @ direct) > 0).astype(int)
    return bool((direct * (direct @ reach) > 0).any())
