"""Splits of examples into agents' data, padding and batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pjax.datasets import partition
from p2pjax.datasets.stacking import Examples
from p2pjax.training import samplers
from p2pjax.types import InputError


def examples_of(sizes):
    """Users with the given numbers of examples; x is the row's own number."""
    user = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.arange(len(user))
    return Examples(rows[:, None].astype(np.float32), rows % 3, user, 3)


def test_by_user_takes_the_largest_users_and_cuts_them():
    examples = examples_of([5, 9, 7, 9, 6])
    world = partition.by_user(
        examples, np.random.default_rng(0), num_agents=3, train_size=4, test_size=3
    )
    train, test = (
        split.examples["x"][..., 0].astype(int) for split in (world.train, world.test)
    )
    assert train.shape == (3, 4)
    assert test.shape == (3, 3)
    for agent, user in enumerate((1, 3, 2)):  # by size, ties by id
        own = [*train[agent], *test[agent]]
        assert (examples.user[own] == user).all()
        assert len(set(own)) == 7
    np.testing.assert_array_equal(world.train.examples["y"], train % 3)
    assert world.train.examples["y"].dtype == np.int32
    assert world.valid.size.tolist() == [0, 0, 0]
    assert world.cluster.tolist() == [0, 0, 0]


def test_by_user_shuffles_by_the_given_generator():
    def rows(seed):
        return partition.by_user(
            examples_of([50, 50]),
            np.random.default_rng(seed),
            num_agents=2,
            train_size=30,
            test_size=10,
        ).train.examples["x"]

    assert (rows(0) == rows(0)).all()
    assert (rows(0) != rows(1)).any()


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"num_agents": 6}, "Need 6 users, one per agent, but the data has 5"),
        (
            {"num_agents": 4},
            r"of each of 4 users, but user 4 has only 6 \(3 users have 7\)",
        ),
        ({"num_agents": 0}, "at least one agent"),
        ({"num_agents": 1, "test_size": 0}, "one test example"),
    ],
)
def test_by_user_refuses(sizes, message):
    with pytest.raises(InputError, match=message):
        partition.by_user(
            examples_of([5, 9, 7, 9, 6]),
            np.random.default_rng(0),
            **{"train_size": 4, "test_size": 3} | sizes,
        )


def test_by_user_keeps_the_split_of_the_data():
    examples = examples_of([6, 6])
    examples = examples._replace(is_test=np.arange(12) % 3 == 0)
    world = partition.by_user(
        examples, np.random.default_rng(0), num_agents=2, train_size=3, test_size=2
    )
    assert (world.train.examples["x"] % 3 != 0).all()
    assert (world.test.examples["x"] % 3 == 0).all()
    with pytest.raises(InputError, match="has only 6, 4 of them for training"):
        partition.by_user(
            examples, np.random.default_rng(0), num_agents=2, train_size=2, test_size=3
        )


def test_share_of_users_keeps_all_that_the_drawn_users_have():
    sizes = np.array([4, 9, 8, 1, 12])
    examples = examples_of(sizes)
    users = set()
    for seed in range(8):
        world = partition.sample_users(
            examples,
            np.random.default_rng(seed),
            num_agents=2,
            test_share=0.25,
            min_size=4,
        )
        for n in range(2):
            train, test = (
                split.examples["x"][n, : split.size[n], 0].astype(int)
                for split in (world.train, world.test)
            )
            rows = np.sort(np.concatenate([train, test]))
            (user,) = np.unique(examples.user[rows])
            np.testing.assert_array_equal(rows, np.flatnonzero(examples.user == user))
            assert len(test) == round(sizes[user] / 4)
            users.add(int(user))
        np.testing.assert_array_equal(world.cluster, [0, 0])
    assert users == {0, 1, 2, 4}
    tiny = partition.sample_users(
        examples_of([2]), np.random.default_rng(0), num_agents=1, test_share=0.9
    )
    assert (tiny.train.size, tiny.test.size) == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_agents": 0}, "got 0, 0.25 and 2"),
        ({"test_share": 1.0}, "a test share between 0 and 1"),
        ({"min_size": 1}, "users of 2 examples or more"),
        ({"min_size": 5}, "Need 2 users of 5 examples or more.* the data has 1"),
    ],
)
def test_share_of_users_refuses(options, message):
    options = {"num_agents": 2, "test_share": 0.25, "min_size": 2, **options}
    with pytest.raises(InputError, match=message):
        partition.sample_users(examples_of([4, 9]), np.random.default_rng(0), **options)


def test_dealt_examples_belong_to_one_user_each():
    examples = examples_of([10, 10])
    rng = np.random.default_rng(0)
    dealt = partition.assign_random_users(examples, rng, num_users=3, size=5)
    rows = dealt.x[:, 0].astype(int)
    assert len(set(rows)) == 15
    assert (rows != np.sort(rows)).any()
    np.testing.assert_array_equal(dealt.y, examples.y[rows])
    np.testing.assert_array_equal(dealt.user, np.repeat([0, 1, 2], 5))
    for num_users, size in ((0, 5), (3, 0), (3, 7)):
        with pytest.raises(InputError, match=f"at most 20 .* got {num_users} users"):
            partition.assign_random_users(examples, rng, num_users=num_users, size=size)


def test_permute_features_gives_every_agent_its_order():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (20, 2, 3)).astype(np.uint8)
    examples = Examples(x, np.arange(20) % 3, np.arange(20) % 2, 3)
    world = partition.by_user(examples, rng, num_agents=2, train_size=6, test_size=3)
    orders = np.array([[0, 1, 2, 3, 4, 5], [5, 0, 4, 1, 3, 2]])
    after = partition.permute_features(world, orders)
    for before, now in ((world.train, after.train), (world.test, after.test)):
        one, other = (split.examples["x"] for split in (before, now))
        assert other.dtype == np.uint8
        np.testing.assert_array_equal(one[0], other[0])
        flat = one[1].reshape(-1, 6)[:, orders[1]]
        np.testing.assert_array_equal(other[1].reshape(-1, 6), flat)
        np.testing.assert_array_equal(before.examples["y"], now.examples["y"])
    assert after.valid.examples["x"].shape == (2, 0, 2, 3)
    np.testing.assert_array_equal(after.cluster, [0, 1])
    with pytest.raises(InputError, match=r"order of the 6 inputs .* got \[2, 4\]"):
        partition.permute_features(world, orders[:, :4])


def test_agents_without_examples_are_refused():
    rows, none = np.arange(3), np.arange(0)
    with pytest.raises(InputError, match=r"one training example .* agents \[1\]"):
        partition.federated_data(examples_of([3]), [rows, none], [rows, rows])
    with pytest.raises(InputError, match=r"one test example .* agents \[0\]"):
        partition.federated_data(examples_of([3]), [rows], [none])


def test_ragged_agents_are_padded_and_padding_is_invalid():
    world = partition.federated_data(
        examples_of([10]), [np.arange(2), np.arange(5)], [np.arange(3), np.arange(1)]
    )
    assert world.train.size.tolist() == [2, 5]
    assert world.train.examples["x"].shape == (2, 5, 1)
    batch = samplers.whole_set(
        {name: leaf[1] for name, leaf in world.test.examples.items()},
        world.test.size[1],
    )
    assert batch["valid"].tolist() == [True, False, False]


@settings(max_examples=25)
@given(st.integers(1, 50), st.integers(1, 60), st.integers(0, 10**6))
def test_cyclic_window_uses_examples_evenly(size, batch_size, step):
    indices = np.asarray(
        samplers.cyclic_window(batch_size)(
            jax.random.key(0), np.int32(step), np.int32(size)
        ).indices
    )
    expected = (step * batch_size + np.arange(batch_size)) % size
    np.testing.assert_array_equal(indices, expected)


def test_with_replacement_stays_within_an_agents_examples():
    draw = jax.vmap(samplers.with_replacement(8), (0, None, None))
    keys = jax.random.split(jax.random.key(0), 200)
    indices = np.asarray(draw(keys, jnp.int32(0), jnp.int32(3)).indices)
    assert set(indices.ravel().tolist()) == {0, 1, 2}
    assert len(np.unique(indices, axis=0)) > 100


class TestShortened:
    def world(self):
        """Agent 0 has classes 0 and 1, agent 1 mostly class 2."""
        y = np.array([0, 1] * 6 + [2] * 8 + [0, 1], np.int32)
        examples = Examples(np.arange(22.0)[:, None], y, np.zeros(22, int), 3)
        rows = [np.arange(12), np.arange(12, 22)]
        return partition.federated_data(examples, rows, rows)

    def labels(self, world):
        train = world.train
        return [
            np.bincount(y[:size], minlength=3).tolist()
            for y, size in zip(train.examples["y"], train.size, strict=True)
        ]

    def test_as_many_of_every_class(self):
        world = partition.subsample_train(self.world(), 7)
        assert self.labels(world) == [[3, 3, 0], [1, 1, 2]]
        # The first ones stay, in their order.
        assert world.train.examples["x"][0, :6, 0].tolist() == [0, 1, 2, 3, 4, 5]
        assert world.test.size.tolist() == [12, 10]

    def test_classes_keep_their_shares(self):
        world = partition.subsample_train(self.world(), 7, proportional=True)
        assert self.labels(world) == [[4, 3, 0], [0, 0, 7]]

    def test_refusals(self):
        with pytest.raises(InputError, match="one training example or more, got 0"):
            partition.subsample_train(self.world(), 0)
        with pytest.raises(InputError, match="3 classes of agent 1, got a size of 2"):
            partition.subsample_train(self.world(), 2)
