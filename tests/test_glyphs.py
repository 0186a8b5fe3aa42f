"""Procedural handwriting: reproducible, balanced, legible, and personal."""

import numpy as np
import pytest

from p2pjax.datasets.loaders.glyph_strokes import ALPHABET, FORMS
from p2pjax.datasets.loaders.glyphs import glyphs
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError


def _pixels(examples: Examples) -> np.ndarray:  # [E, 784]
    return examples.x.reshape(len(examples.x), -1) / 255


def _centroids(x: np.ndarray, y: np.ndarray, num_classes: int) -> np.ndarray:
    return np.stack([x[y == label].mean(axis=0) for label in range(num_classes)])


def _nearest(x: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    return ((centroids**2).sum(axis=1) - 2 * x @ centroids.T).argmin(axis=1)


def test_shapes_types_and_range():
    examples = glyphs(3, 70)
    assert examples.x.shape == (210, 28, 28)
    assert examples.x.dtype == np.uint8
    assert examples.y.dtype == examples.user.dtype == np.int32
    assert examples.num_classes == 62
    assert examples.is_test is None
    np.testing.assert_array_equal(examples.user, np.repeat([0, 1, 2], 70))
    assert np.median(examples.x.max(axis=(1, 2))) > 230  # ink is 255 on 0
    assert np.median(examples.x) == 0


def test_every_character_has_forms_in_the_order_of_femnist():
    assert len(ALPHABET) == 62
    assert set(FORMS) == set(ALPHABET)
    assert ALPHABET[10] == "A"
    assert ALPHABET[36] == "a"
    assert sum(len(forms) > 1 for forms in FORMS.values()) >= 30


def test_same_seed_same_examples_and_other_seed_others():
    first, again, other = glyphs(2, 20), glyphs(2, 20), glyphs(2, 20, seed=1)
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.y, again.y)
    assert not np.array_equal(first.x, other.x)


@pytest.mark.parametrize("num_classes", [10, 62])
def test_more_users_extend_the_set(num_classes):
    few = glyphs(2, 150, seed=5, num_classes=num_classes)
    many = glyphs(4, 150, seed=5, num_classes=num_classes)
    np.testing.assert_array_equal(few.x, many.x[:300])
    np.testing.assert_array_equal(few.y, many.y[:300])
    np.testing.assert_array_equal(few.user, many.user[:300])
    assert not np.array_equal(many.x[:150], many.x[150:300])


@pytest.mark.parametrize(
    ("num_classes", "samples"), [(10, 1), (10, 40), (10, 47), (62, 62), (62, 100)]
)
def test_each_users_classes_are_balanced_and_shuffled(num_classes, samples):
    examples = glyphs(2, samples, num_classes=num_classes)
    labels = examples.y.reshape(2, samples)
    for own in labels:
        counts = np.bincount(own, minlength=num_classes)
        assert len(counts) == num_classes
        assert counts.max() - counts.min() <= 1
    if samples >= num_classes:
        assert not np.array_equal(labels[0], np.sort(labels[0]))
        assert not np.array_equal(labels[0], labels[1])


def test_every_class_has_a_sensible_amount_of_ink_inside_the_frame():
    examples = glyphs(24, 62 * 2)
    ink = _pixels(examples).mean(axis=1)
    assert ink.min() > 0.01
    assert ink.max() < 0.4
    for label, char in enumerate(ALPHABET):
        assert 0.03 < ink[examples.y == label].mean() < 0.22, char
    border = np.ones((28, 28), bool)
    border[1:-1, 1:-1] = False
    assert examples.x[:, border].mean() < 2  # hardly any ink is cut off


def test_writers_differ_more_from_each_other_than_from_themselves():
    writers = 8
    examples = glyphs(writers, 10 * 24, num_classes=10)
    x, y = _pixels(examples), examples.y
    half = np.arange(len(y)) % 2
    means = np.stack(
        [
            [
                _centroids(x[chosen], y[chosen], 10)
                for chosen in ((examples.user == u) & (half == h) for h in range(2))
            ]
            for u in range(writers)
        ]
    )  # [writers, halves, 10, 784]
    apart = np.square(means[:, None, 0] - means[None, :, 1]).mean(axis=3)  # [w, w, 10]
    own = np.eye(writers, dtype=bool)
    within, between = apart[own].mean(axis=0), apart[~own].mean(axis=0)  # [10]
    assert (between > 4 * within).all()


def test_a_writers_hand_is_the_same_whatever_is_written():
    digits = glyphs(1, 10 * 30, num_classes=10)
    everything = glyphs(2, 62 * 30)
    x, y = _pixels(everything), everything.y
    means = _centroids(_pixels(digits), digits.y, 10)
    same, other = (
        np.square(_centroids(x[chosen], y[chosen], 62)[:10] - means).mean()
        for chosen in (everything.user == 0, everything.user == 1)
    )
    assert 4 * same < other


def test_digits_of_unseen_writers_are_recognisable_but_not_trivial():
    examples = glyphs(24, 60, num_classes=10)
    x, y, known = _pixels(examples), examples.y, examples.user < 16
    guess = _nearest(x[~known], _centroids(x[known], y[known], 10))
    assert 0.6 < (guess == y[~known]).mean() < 0.95


def test_own_letter_forms_help():
    writers = 8
    examples = glyphs(writers, 62 * 6)
    order = np.lexsort((examples.y, examples.user))
    x = _pixels(examples)[order].reshape(writers, 62, 6, 784)
    means = x[:, :, :4].mean(axis=2)  # [writers, 62, 784]
    unseen = x[:, :, 4:].reshape(writers, 62 * 2, 784)
    labels = np.repeat(np.arange(62), 2)
    pooled = np.mean([_nearest(own, means.mean(axis=0)) == labels for own in unseen])
    alone = np.mean(
        [_nearest(own, mean) == labels for own, mean in zip(unseen, means, strict=True)]
    )
    assert pooled > 0.4
    assert alone > pooled + 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_users": 0}, "at least one writer, but num_users is 0: set num_users"),
        ({"samples_per_user": -1}, "samples_per_user is -1: set samples_per_user to 1"),
        ({"num_classes": 26}, "num_classes is 26: set num_classes to 10 or 62"),
        ({"seed": -3}, "seed is -3: set seed to 0"),
    ],
)
def test_errors_say_what_to_change(arguments, message):
    with pytest.raises(InputError, match=message):
        glyphs(**({"num_users": 1, "samples_per_user": 1} | arguments))
