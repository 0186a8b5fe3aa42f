"""The data side of the front door: `federate`, `split` and the data sets by name."""

import gzip
import struct

import femnist_files
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pjax import datasets
from p2pjax.datasets import federate, split
from p2pjax.datasets.loaders import digits as digits_loader
from p2pjax.types import InputError

SPLITS = {
    "iid": split.iid(),
    "dirichlet": split.dirichlet(0.3),
    "pathological": split.pathological(),
    "practical": split.practical(),
    "halves": split.clustered_classes([range(5), range(5, 10)]),
    "rotated": split.rotated(2),
    "permuted": split.permuted(5),
    "swapped": split.swapped([(0, 1)]),
    "permuted_features": split.permuted_features(2),
}
USES_ALL = ("dirichlet", "halves")
CLUSTERS = {
    "practical": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
    "permuted": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
    "halves": [0] * 5 + [1] * 5,
    "rotated": [0] * 5 + [1] * 5,
    "swapped": [0] * 5 + [1] * 5,
    "permuted_features": [0] * 5 + [1] * 5,
}


def real(part, agent, name="x"):
    """An agent's examples without padding."""
    return np.asarray(part.examples[name])[agent, : int(part.size[agent])]


def numbered(size, num_classes=10):
    """Examples whose input is their row, so that rows can be followed."""
    y = np.random.default_rng(9).permutation(np.arange(size) % num_classes)
    return np.arange(size, dtype=np.float32)[:, None], y


def rows_of(data, agent):
    parts = (data.train, data.valid, data.test)
    return np.concatenate([real(part, agent)[:, 0] for part in parts]).astype(int)


def same(one, other):
    np.testing.assert_equal(one._asdict(), other._asdict())


@pytest.mark.parametrize("name", SPLITS)
def test_each_split_on_digits(name):
    options = {"num_agents": 10, "split": SPLITS[name], "valid_fraction": 0.1}
    data = datasets.digits(**options, seed=3)
    same(data, datasets.digits(**options, seed=3))
    same(data, datasets.digits(**options, seed=np.random.default_rng(3)))
    other = datasets.digits(**options, seed=4)
    assert not np.array_equal(data.test.examples["x"], other.test.examples["x"])
    for part in (data.train, data.valid, data.test):
        x, y = part.examples["x"], part.examples["y"]
        assert (x.dtype, y.dtype, part.size.dtype) == (np.uint8, np.int32, np.int32)
        assert x.shape[2:] == (8, 8, 1)
        assert (x.shape[1], y.shape[1]) == (part.size.max(), part.size.max())
        is_padding = np.arange(x.shape[1]) >= part.size[:, None]
        assert part.size.min() >= 1
        assert not x[is_padding].any()
    assert data.cluster.tolist() == CLUSTERS.get(name, [0] * 10)
    assert data.cluster.dtype == np.int32
    total = data.train.size + data.valid.size + data.test.size
    np.testing.assert_allclose(data.test.size, 0.2 * total, atol=0.51)
    np.testing.assert_allclose(data.valid.size, 0.1 * total, atol=0.51)


@settings(max_examples=30)
@given(
    name=st.sampled_from(["iid", "dirichlet", "pathological", "practical", "halves"]),
    size=st.integers(200, 400),
    valid=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1000),
)
def test_no_row_twice_and_each_with_its_label(name, size, valid, seed):
    x, y = numbered(size)
    data = federate(
        x, y, num_agents=10, split=SPLITS[name], valid_fraction=valid, seed=seed
    )
    rows = np.concatenate([rows_of(data, agent) for agent in range(10)])
    assert len(np.unique(rows)) == len(rows)
    if name in USES_ALL:
        assert len(rows) == size
    elif name != "practical":  # which may lose some in rounding
        assert len(rows) > size - (20 if name == "pathological" else 10)
    for part in (data.train, data.valid, data.test):
        for agent in range(10):
            labels = y[real(part, agent)[:, 0].astype(int)]
            np.testing.assert_array_equal(real(part, agent, "y"), labels)
    assert (data.valid.size > 0).all() == (valid > 0)


@settings(max_examples=50)
@given(
    size=st.integers(3, 40),
    test=st.floats(0.01, 0.6),
    valid=st.floats(0.01, 0.39),
)
def test_each_part_has_an_example(size, test, valid):
    x, y = numbered(size)
    data = federate(
        *(x, y, np.zeros(size, int)), test_fraction=test, valid_fraction=valid
    )
    sizes = [int(part.size[0]) for part in (data.train, data.valid, data.test)]
    assert min(sizes) >= 1
    assert sum(sizes) == size


@pytest.mark.parametrize("valid_fraction", [0.0, 0.1])
def test_dirichlet_leaves_no_agent_empty(valid_fraction):
    for seed in range(10):
        data = datasets.digits(
            num_agents=16,
            split=split.dirichlet(0.05, min_size=5),
            valid_fraction=valid_fraction,
            seed=seed,
        )
        total = data.train.size + data.valid.size + data.test.size
        assert total.min() >= 5
        assert total.sum() == 1797
    # What each part needs is more than a small min_size.
    data = datasets.digits(
        num_agents=16, split=split.dirichlet(0.05, min_size=0), valid_fraction=0.1
    )
    assert data.valid.size.min() >= 1
    with pytest.raises(InputError, match=r"at least 2 .* alpha 0.001: raise alpha"):
        datasets.digits(num_agents=64, split=split.dirichlet(0.001))


class TestClusters:
    """What is done to clusters, against the images as they were."""

    def agents(self, changed, num_agents=4):
        return datasets.digits(num_agents=num_agents, split=changed)

    def images(self):
        """The label of each image that there is."""
        examples = digits_loader.load()
        return {image.tobytes(): y for image, y in zip(*examples[:2], strict=True)}

    def test_rotated_images_are_turned_back(self):
        known = self.images()
        data = self.agents(split.rotated(4))
        for part in (data.train, data.test):
            for agent in range(4):
                back = np.rot90(real(part, agent)[..., 0], -agent, (1, 2))
                labels = [known[image.tobytes()] for image in back]
                np.testing.assert_array_equal(labels, real(part, agent, "y"))
        half = self.agents(split.rotated(2), 2)
        back = np.rot90(real(half.train, 1)[..., 0], 2, (1, 2))
        assert all(image.tobytes() in known for image in back)

    @pytest.mark.parametrize(
        "changed",
        [split.permuted(4), split.swapped([(0, 1), (2, 3), (8, 9)])],
        ids=["permuted", "swapped"],
    )
    def test_labels_change_by_cluster(self, changed):
        known = self.images()
        data = self.agents(changed, 8)
        tables = {}
        for part in (data.train, data.test):
            for agent in range(8):
                images = zip(
                    real(part, agent)[..., 0], real(part, agent, "y"), strict=True
                )
                for image, label in images:
                    place = data.cluster[agent], known[image.tobytes()]
                    assert tables.setdefault(place, label) == label
        table = np.array([[tables[c, y] for y in range(10)] for c in range(4)])
        assert len(np.unique(table, axis=0)) == 4
        np.testing.assert_array_equal(table[0], np.arange(10))
        np.testing.assert_array_equal(np.sort(table, axis=1), [range(10)] * 4)

    def test_swaps_are_those_asked_for(self):
        x, y = numbered(400, 4)
        data = federate(x, y, num_agents=4, split=split.swapped([(1, 3)]))
        for agent, table in enumerate([[0, 1, 2, 3]] * 2 + [[0, 3, 2, 1]] * 2):
            was = y[real(data.train, agent)[:, 0].astype(int)]
            np.testing.assert_array_equal(
                np.take(table, was), real(data.train, agent, "y")
            )

    def test_features_change_places_alike_in_a_cluster(self):
        x = np.tile(np.arange(6.0), (80, 1))
        y = np.arange(80) % 2
        data = federate(x, y, num_agents=4, split=split.permuted_features(2))
        for part in (data.train, data.test):
            orders = part.examples["x"].reshape(4, -1, 6)
            assert (orders[:2] == np.arange(6)).all()
            assert len(np.unique(orders[2:].reshape(-1, 6), axis=0)) == 1
            assert (orders[2] != orders[0]).any()

    def test_clusters_of_a_base_stay_apart(self):
        data = self.agents(split.rotated(2, base=split.practical(5)), 10)
        assert data.cluster.tolist() == [0, 0, 1, 1, 2, 3, 4, 4, 5, 5]
        twice = self.agents(split.permuted(4, base=split.rotated(2)))
        assert twice.cluster.tolist() == [0, 1, 2, 3]

    def test_users_can_be_the_base(self):
        x, y = numbered(60)
        users = np.arange(60) % 6
        data = federate(x, y, users, split=split.permuted(3, base=split.by_user()))
        assert data.cluster.tolist() == [0, 0, 1, 1, 2, 2]
        for agent in range(6):
            assert set(users[rows_of(data, agent)]) == {agent}

    def test_uneven_clusters_differ_by_one_agent(self):
        data = self.agents(split.rotated(3), 7)
        assert sorted(np.bincount(data.cluster)) == [2, 2, 3]


def test_shares_of_practical_use_all_examples():
    x, y = numbered(1000)
    for num_clusters, dominant, other in ((2, 0.8, 0.2), (5, 0.6, 0.1), (1, 1.0, 0)):
        chosen = split.practical(num_clusters, dominant)
        data = federate(x, y, num_agents=10, split=chosen, test_fraction=0.5)
        rows = [rows_of(data, agent) for agent in range(10)]
        assert sum(map(len, rows)) == 1000
        counts = np.bincount(y[rows[0]], minlength=10)
        per_cluster = 10 // num_clusters
        assert counts[0] == dominant * 100 / per_cluster
        if other:
            assert counts[-1] == other * 100 / per_cluster


class TestUsers:
    users = np.array(["cy"] * 5 + ["ann"] * 9 + ["bob"] * 7)
    x, y = numbered(21)

    def agents(self, **options):
        data = federate(self.x, self.y, self.users, **options)
        found = [rows_of(data, agent) for agent in range(len(data.cluster))]
        assert all(len(set(self.users[rows])) == 1 for rows in found)
        return [(str(self.users[rows[0]]), len(rows)) for rows in found]

    @pytest.mark.parametrize("options", [{}, {"split": split.by_user()}])
    def test_each_user_is_an_agent(self, options):
        assert self.agents(**options) == [("ann", 9), ("bob", 7), ("cy", 5)]

    def test_or_the_largest(self):
        assert self.agents(num_agents=2) == [("ann", 9), ("bob", 7)]
        assert self.agents(num_agents=1, valid_fraction=0.2) == [("ann", 9)]

    def test_numbers_will_do(self):
        users = np.unique(self.users, return_inverse=True)[1]
        same(federate(self.x, self.y, users), federate(self.x, self.y, self.users))

    def test_they_play_no_role_in_other_splits(self):
        options = {"num_agents": 3, "split": split.iid()}
        same(
            federate(self.x, self.y, self.users, **options),
            federate(self.x, self.y, **options),
        )

    def test_refusals(self):
        with pytest.raises(InputError, match="Need 4 users.* the data has 3: lower"):
            self.agents(num_agents=4)
        users = np.array(["one", *self.users[1:]])
        with pytest.raises(InputError, match="user one has 1: give num_agents, at mos"):
            federate(self.x, self.y, users)
        with pytest.raises(InputError, match="at most 3, to take the largest users"):
            federate(self.x, self.y, users)


@pytest.mark.parametrize(
    ("given_x", "dtype"),
    [
        (np.uint8, np.uint8),
        (np.float64, np.float32),
        (np.float32, np.float32),
        (np.float16, np.float32),
        (np.int64, np.int32),
        (np.uint16, np.int32),
        (bool, np.float32),
    ],
)
def test_dtypes(given_x, dtype):
    x = np.arange(40).reshape(20, 2).astype(given_x)
    for y in (np.arange(20) % 2 == 0, (np.arange(20) % 3).astype(np.uint8)):
        data = federate(x, y, num_agents=2, split=split.iid())
        for part in (data.train, data.valid, data.test):
            assert part.examples["x"].dtype == dtype
            assert part.examples["y"].dtype == np.int32
    as_lists = federate(x.tolist(), y.tolist(), num_agents=2, split=split.iid())
    assert set(as_lists.test.examples["y"].ravel().tolist()) <= {0, 1, 2}


def test_names_of_classes_are_numbered_in_sorted_order():
    x, numbers = numbered(40, num_classes=3)
    names = np.array(["ant", "bee", "cat"])[numbers]
    for y in (names, names.tolist(), names.astype(bytes)):
        same(
            federate(x, y, num_agents=4, split=split.iid()),
            federate(x, numbers, num_agents=4, split=split.iid()),
        )
    users = np.array(["u", "t"])[np.arange(40) % 2]
    by_name = federate(x, names, users)
    same(by_name, federate(x, numbers, 1 - np.arange(40) % 2))


X, Y = np.zeros((20, 2)), np.arange(20) % 2


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((X, Y[:19]), {}, "got 20 x, 19 y: give arrays of the same length"),
        ((X, Y, Y[:5]), {}, "in x, y, users, got 20 x, 20 y, 5 users"),
        ((np.where(np.eye(20, 2), np.nan, X), Y), {}, "got 2 that are NaN or infinite"),
        ((X + np.inf, Y), {}, "got 40 that are NaN or infinite: fill them or drop"),
        ((X + 1e300, Y), {}, "finite float32 numbers x, got 40"),
        ((X.astype(int) + 2**40, Y), {}, "fit int32, got 1099511627776 to"),
        ((X.astype(object), Y), {}, "x as an array of numbers, got dtype object"),
        ((X.astype(str), Y), {}, "x as an array of numbers, got dtype <U"),
        (([[1], [1, 2]], [0, 1]), {}, "x as an array of numbers, got parts of differ"),
        ((X[:, 0], Y), {}, r"x of shape \[examples, ...\], got \[20\]"),
        (
            (X, Y.astype(float)),
            {},
            "y as an array of whole numbers or names, got dtype float",
        ),
        (
            (X, Y.astype(object)),
            {},
            "y as an array of whole numbers or names, got dtype object",
        ),
        ((X, np.where(Y, "a", "")), {}, "name of each .* got 10 empty ones: fill"),
        ((X, Y - 1), {}, r"number the classes from 0, got -1 to 0: np.unique"),
        ((X, np.eye(20)[:, :2].astype(int)), {}, r"got \[20, 2\]: .* y.argmax\(-1\)"),
        ((X, Y, Y + 0.5), {}, "users as an array of whole numbers or names, got dtype"),
        ((X, Y, Y[:, None]), {}, r"users of shape \[examples\], got \[20, 1\]"),
        (([], []), {}, r"Need examples to split, got x of shape \[0\]"),
        ((X[:, :0], Y), {}, r"Need examples to split, got x of shape \[20, 0\]"),
        ((X, Y), {"num_agents": 0}, "Need one agent or more, a whole number, got 0"),
        ((X, Y), {"num_agents": 2.5}, "Need one agent or more, a whole number, got 2"),
        ((X, Y), {"num_agents": None}, "give num_agents"),
        ((X, Y), {"test_fraction": 0.0}, "above 0 and below 1, got 0.0"),
        ((X, Y), {"test_fraction": 1.0}, "above 0 and below 1, got 1.0"),
        ((X, Y), {"test_fraction": None}, "above 0 and below 1, got None"),
        ((X, Y), {"valid_fraction": -0.1}, "at least 0 and below 1, got -0.1"),
        ((X, Y), {"valid_fraction": np.nan}, "at least 0 and below 1, got nan"),
        ((X, Y), {"valid_fraction": 0.8}, "leave something to train on, got a test_fr"),
        ((X, Y), {"split": None}, "Need a split, or users .* got neither"),
        ((X, Y), {"split": split.by_user()}, "users to split by user, got none"),
        ((X, Y), {"split": "iid"}, "such as .* got 'iid': call one of"),
        ((X, Y), {"split": split.iid}, "got iid: call .* with parentheses"),
        ((X, Y), {"seed": None}, "as seed, got None"),
        ((X, Y), {"seed": -1}, "as seed, got -1"),
        ((X, Y), {"num_agents": 20}, "one training example .* none of agent 0, which"),
        ((X, Y), {"num_agents": 21}, "for each of 21 parts, got 20: lower the number"),
        (
            (X, Y),
            {"num_agents": 10, "valid_fraction": 0.1},
            "none of agent 0, which has 2 examples: lower num_agents",
        ),
        ((X, Y), {"split": split.rotated(2)}, r"square images to rotate, got .* \[2\]"),
        ((X, Y), {"split": split.permuted(3)}, "agent or more in each of 3 clusters"),
        (
            (X, Y),
            {"split": split.permuted(3), "num_agents": 3},
            "order of 2 classes for each of 3 clusters, but there are 2",
        ),
        (
            (X, Y),
            {"split": split.permuted_features(3), "num_agents": 3},
            "order of 2 inputs for each of 3 clusters, but there are 2",
        ),
        ((X, Y), {"split": split.swapped([(0, 2)])}, "from 0 to 1, got 0 and 2"),
        ((X, Y), {"split": split.practical(3)}, "divide 2 agents and 2 classes evenly"),
        (
            (X, Y),
            {"split": split.clustered_classes([[0], [7]])},
            "an example of class 7 for each of 1 agents, got 0",
        ),
    ],
)
def test_refusals(arguments, options, message):
    with pytest.raises(InputError, match=message) as error:
        federate(*arguments, **{"num_agents": 2, "split": split.iid(), **options})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: split.dirichlet(0.0), "positive alpha, got 0.0"),
        (lambda: split.dirichlet(float("inf")), "positive alpha, got inf"),
        (lambda: split.dirichlet(1.0, min_size=-1), "min_size of 0 or more, got -1"),
        (lambda: split.pathological(0), "one shard per agent or more, got 0"),
        (lambda: split.practical(0), "one cluster or more, got 0"),
        (lambda: split.permuted(0), "one cluster or more, got 0"),
        (lambda: split.permuted_features(0), "one cluster or more, got 0"),
        (lambda: split.rotated(5), "1 to 4 clusters, one per quarter turn, got 5"),
        (lambda: split.clustered_classes([]), "one class or more of each cluster"),
        (lambda: split.clustered_classes([[0], []]), "one class or more of each clu"),
        (lambda: split.clustered_classes([[0, 1], [1]]), "no class in two of them"),
        (lambda: split.swapped([]), "pairs of two labels, no pair twice, got"),
        (lambda: split.swapped([(1, 1)]), r"no pair twice, got \[\(1, 1\)\]"),
        (lambda: split.swapped([(0, 1), (1, 0)]), "no pair twice"),
    ],
)
def test_constructors_refuse(construct, message):
    with pytest.raises(InputError, match=message):
        construct()


class TestOwnSplit:
    def refused(self, rows, message):
        with pytest.raises(InputError, match=message):
            federate(X, Y, num_agents=2, split=lambda request, rng: rows)

    def test_is_told_what_it_needs(self):
        def own(request, rng):
            assert request.y.dtype == np.int32
            assert (request.users, request.shape) == (None, (2,))
            assert (request.num_agents, request.min_size) == (None, 3)
            return split.Assignment(np.array_split(rng.permutation(20), 4))

        data = federate(X, Y, split=own, valid_fraction=0.1)
        assert data.cluster.tolist() == [0, 0, 0, 0]

    def test_refusals(self):
        both = [np.arange(10), np.arange(10, 20)]
        self.refused(both, "returns an Assignment, got list")
        self.refused(split.Assignment(both[:1]), "rows of 2 agents .* got 1")
        self.refused(split.Assignment([both[0], both[0]]), "that two agents share")
        none = np.arange(0)
        self.refused(split.Assignment([both[0], none]), "none of agent 1, which has 0")


def test_glyphs():
    options = {"num_agents": 3, "samples_per_user": 20, "num_classes": 10}
    data = datasets.glyphs(**options, seed=1)
    assert data.train.examples["x"].shape == (3, 16, 28, 28, 1)
    assert data.test.size.tolist() == [4] * 3
    same(data, datasets.glyphs(**options, seed=1))
    mixed = datasets.glyphs(**options, num_users=6, split=split.iid())
    assert mixed.train.size.tolist() == [32] * 3
    drawn = [
        datasets.glyphs(**options, seed=np.random.default_rng(seed)) for seed in (5, 5)
    ]
    same(*drawn)


def write_mnist(folder, size=40, test_size=10):
    """Writes gzipped idx files of images that are full of their row's number."""
    y = np.arange(size + test_size) % 10
    x = np.tile(np.arange(size + test_size)[:, None, None], (1, 28, 28))
    for name, part in (("train", slice(size)), ("t10k", slice(size, None))):
        for kind, array in (("images-idx3", x[part]), ("labels-idx1", y[part])):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            packed = gzip.compress(header + array.astype(np.uint8).tobytes())
            (folder / f"{name}-{kind}-ubyte.gz").write_bytes(packed)


def test_mnist(tmp_path):
    write_mnist(tmp_path)
    data = datasets.mnist(tmp_path, num_agents=2, split=split.iid())
    assert data.train.examples["x"].shape == (2, 20, 28, 28, 1)
    own = datasets.mnist(tmp_path, num_agents=2, split=split.iid(), test_fraction=None)
    for agent in range(2):
        assert (real(own.test, agent) >= 40).all()
        assert (real(own.train, agent) < 40).all()
    assert own.test.size.sum() == 10
    with pytest.raises(InputError, match="Need a split, or users"):
        datasets.mnist(tmp_path, num_agents=2)  # one user would have everything
    np.savez(
        tmp_path / "mnist_writer_ids.npz",
        w_train=np.arange(40) % 4,
        w_test=np.zeros(10, int),
    )
    assert datasets.mnist(tmp_path).train.size.tolist() == [8] * 5
    with pytest.raises(InputError, match="one test example .* none of agent 0"):
        datasets.mnist(tmp_path, test_fraction=None)


def test_cifar10(tmp_path):
    x = np.zeros((30, 32, 32, 3), np.uint8)
    y = np.arange(30) % 10
    path = tmp_path / "cifar10_part.npz"
    np.savez(path, x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    data = datasets.cifar10(path, num_agents=3, split=split.iid())
    assert data.train.examples["x"].shape == (3, 8, 32, 32, 3)
    assert data.test.size.tolist() == [2] * 3


def test_femnist(tmp_path):
    content = femnist_files.leaf(ann=[0, 40, 2], bob=[3, 50, 60, 7], cy=[1, 2])
    path = femnist_files.write_json(tmp_path / "all_data.json", content)
    data = datasets.femnist(path)
    assert (data.train.size + data.test.size).tolist() == [3, 4, 2]
    assert data.train.examples["x"].shape[2:] == (28, 28, 1)
    assert datasets.femnist(path, num_agents=2).cluster.tolist() == [0, 0]
    digits = datasets.femnist(path, variant="d", num_agents=3)
    assert max(digits.train.examples["y"].max(), digits.test.examples["y"].max()) < 10
    with pytest.raises(InputError, match="variant must be one of a, m, d, found 'b'"):
        datasets.femnist(path, variant="b")


@pytest.mark.parametrize(
    ("load", "name", "num_features", "num_classes"),
    [(datasets.har, "uci_har", 561, 6), (datasets.vsn, "vsn", 100, 2)],
    ids=["har", "vsn"],
)
def test_features_by_user(tmp_path, load, name, num_features, num_classes):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / f"{name}.npz",
        x=rng.uniform(-1, 1, (30, num_features)),
        y=np.arange(30) % num_classes,
        user=np.repeat([3, 1, 7], 10),
    )
    data = load(tmp_path, valid_fraction=0.2)
    assert data.train.examples["x"].shape == (3, 6, num_features)
    assert data.train.examples["x"].dtype == np.float32
    assert data.valid.size.tolist() == data.test.size.tolist() == [2] * 3
    assert load(tmp_path, num_agents=5, split=split.iid()).train.size.tolist() == (
        [5] * 5
    )


def test_npz(tmp_path):
    path = tmp_path / "own.npz"
    arrays = {
        "x": np.arange(20, dtype=np.uint8)[:, None, None] * np.ones((4, 5), np.uint8),
        "y": np.arange(20) % 2,
        "user": np.arange(20) % 2,
    }
    np.savez(path, **arrays)
    data = datasets.npz(path)
    assert data.train.examples["x"].shape == (2, 8, 4, 5, 1)
    np.savez(path, **arrays, split=np.arange(20) >= 14)
    own = datasets.npz(path, valid_fraction=0.1)
    assert own.test.size.tolist() == [3, 3]
    assert own.valid.size.tolist() == [1, 1]
    assert (own.test.examples["x"] >= 14).all()
    assert (own.train.examples["x"] < 14).all()
    assert datasets.npz(path, test_fraction=0.4).test.size.tolist() == [4, 4]
    np.savez(path, **{**arrays, "x": np.zeros((20, 7))})
    assert datasets.npz(path).train.examples["x"].shape == (2, 8, 7)


def test_tfds(tmp_path):
    tensorflow_datasets = pytest.importorskip("tensorflow_datasets")
    with tensorflow_datasets.testing.mock_data(num_examples=10):
        data = datasets.tfds(
            "fashion_mnist",
            num_agents=2,
            split=split.iid(),
            data_dir=tmp_path,
            download=True,
        )
    assert data.train.examples["x"].shape == (2, 8, 28, 28, 1)


@pytest.mark.parametrize("pairs", [2, [0, 1], [(0, 1, 2)]])
def test_swaps_are_pairs(pairs):
    with pytest.raises(InputError, match="Need pairs of two labels, such as"):
        split.swapped(pairs)
