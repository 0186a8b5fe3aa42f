"""Splits by label: published divergences, disjoint rows, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pjax.datasets import label_skew
from p2pjax.datasets.loaders import mnist
from p2pjax.evaluation import statistics
from p2pjax.types import InputError


def mean_jsd(y, rows):
    return statistics.mean_jsd(label_skew.histograms(y, rows, 10))


def balanced(size):
    return np.random.default_rng(9).permutation(np.arange(size) % 10)


@pytest.mark.parametrize(
    "split, expected, tolerance",
    [
        (label_skew.iid, 0.0057, 0.001),
        (label_skew.pathological, 0.8116, 0.02),
        (lambda *args: label_skew.dominant_classes(*args, other=0.04), 0.5229, 0.02),
    ],
    ids=["iid", "pathological", "practical"],
)
def test_divergences_of_the_thesis(real_data, split, expected, tolerance):
    """100 agents on MNIST, mean over pairs."""
    examples = mnist.load(real_data)
    y = examples.y[~examples.is_test]
    found = mean_jsd(y, split(y, np.random.default_rng(0), 100))
    assert found == pytest.approx(expected, abs=tolerance)


@given(
    seed=st.integers(0, 100),
    size=st.integers(60, 300),
    split=st.sampled_from(["iid", "pathological", "dominant_classes", "dirichlet"]),
)
def test_no_two_agents_share_a_row(seed, size, split):
    rng, y = np.random.default_rng(seed), balanced(size)
    arguments = (0.3,) if split == "dirichlet" else ()
    rows = getattr(label_skew, split)(y, rng, 10, *arguments)
    assert len(rows) == 10
    every = np.concatenate(rows)
    assert len(set(every.tolist())) == len(every)
    assert every.size == 0 or (every.min() >= 0 and every.max() < size)


def test_practical_shares():
    y = balanced(10_000)
    rows = label_skew.dominant_classes(y, np.random.default_rng(0), 10)
    counts = label_skew.histograms(y, rows, 10)
    # Agents 0 and 1 are the first cluster, which owns classes 0 and 1.
    np.testing.assert_array_equal(counts[0, :2], [400, 400])
    np.testing.assert_array_equal(counts[0, 2:], [25] * 8)
    np.testing.assert_array_equal(counts[9, 8:], [400, 400])


def test_pathological_agents_have_few_classes():
    y = balanced(1000)
    rows = label_skew.pathological(y, np.random.default_rng(0), 10)
    counts = label_skew.histograms(y, rows, 10)
    assert ((counts > 0).sum(1) <= 2).all()
    np.testing.assert_array_equal(counts.sum(1), [100] * 10)


class TestOfClusters:
    pairs = tuple((first, first + 1) for first in range(0, 10, 2))

    def counts(self, y, num_agents, labels):
        rng = np.random.default_rng(0)
        rows = label_skew.clustered_classes(y, rng, num_agents, labels)
        every = np.concatenate(rows)
        assert len(set(every.tolist())) == len(every)
        return label_skew.histograms(y, rows, 10)

    def test_one_cluster_of_all_classes_is_even(self):
        counts = self.counts(balanced(2000), 20, [range(10)])
        np.testing.assert_array_equal(counts, np.full((20, 10), 10))

    def test_pairs_of_classes(self):
        """Shards of the thesis: 250 of each of two classes, 100 agents, 50,000."""
        counts = self.counts(balanced(50_000), 100, self.pairs)
        for agent, own in enumerate(counts):
            expected = np.zeros(10)
            expected[list(self.pairs[agent // 20])] = 250
            np.testing.assert_array_equal(own, expected)

    def test_vehicles_and_animals(self):
        labels = ((0, 1, 8, 9), (2, 3, 4, 5, 6, 7))
        counts = self.counts(balanced(50_000), 100, labels)
        assert set(counts[0]) == {0, 100}
        np.testing.assert_array_equal(counts.sum(1), [400] * 50 + [600] * 50)

    def test_what_is_left_over_goes_to_some(self):
        counts = self.counts(balanced(130), 5, [range(10)])
        assert set(counts.ravel()) == {2, 3}
        assert counts.sum() == 130
        assert len(set(counts.argmax(0))) > 1  # not always the same agents

    def test_refusals(self):
        with pytest.raises(InputError, match="5 clusters can share equally, got 12"):
            self.counts(balanced(100), 12, self.pairs)
        with pytest.raises(InputError, match="class 0 for each of 4 agents, got 3"):
            self.counts(balanced(30), 20, self.pairs)


def test_alpha_moves_shares_from_unequal_to_equal():
    y = balanced(10_000)
    spread = [
        mean_jsd(y, label_skew.dirichlet(y, np.random.default_rng(0), 20, alpha))
        for alpha in (0.1, 1.0, 100.0)
    ]
    assert spread[0] > 0.4 > spread[1] > 0.05 > spread[2]


def test_dirichlet_is_drawn_anew_until_each_agent_has_enough():
    y = balanced(1000)

    def sizes(seed, **options):
        rng = np.random.default_rng(seed)
        return list(map(len, label_skew.dirichlet(y, rng, 20, 0.05, **options)))

    once = [sizes(seed) for seed in range(20)]
    enough = [sizes(seed, min_size=3) for seed in range(20)]
    assert min(map(min, once)) == 0
    assert min(map(min, enough)) >= 3
    assert all(sum(own) == 1000 for own in enough)
    kept = [one == other for one, other in zip(once, enough, strict=True)]
    assert kept == [min(own) >= 3 for own in once]  # a good first draw stays
    with pytest.raises(InputError, match=r"at least 60 examples for each of 20 agents"):
        sizes(0, min_size=60)
    with pytest.raises(InputError, match="with alpha 0.05: raise alpha, or lower the"):
        sizes(0, min_size=45)


def test_impossible_splits_are_refused():
    y, rng = balanced(50), np.random.default_rng(0)
    with pytest.raises(InputError, match="for each of 60 parts, got 50"):
        label_skew.iid(y, rng, 60)
    with pytest.raises(InputError, match="for each of 60 parts, got 50"):
        label_skew.pathological(y, rng, 30)
    with pytest.raises(InputError, match="evenly, got 3"):
        label_skew.dominant_classes(y, rng, 10, num_clusters=3)
    with pytest.raises(InputError, match="at most 1, got 0.9"):
        label_skew.dominant_classes(y, rng, 10, dominant=0.9)
    with pytest.raises(InputError, match="positive alpha, got 0"):
        label_skew.dirichlet(y, rng, 10, 0)
