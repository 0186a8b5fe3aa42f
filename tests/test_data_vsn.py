"""The vehicle sensor network: its file, its stand-in, its standardization."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from p2pjax.datasets import partition
from p2pjax.datasets.loaders import vsn
from p2pjax.datasets.stacking import stack_agents
from p2pjax.types import FederatedData, InputError

GOOD = {
    "x": np.linspace(-0.5, 1, 300, dtype=np.float16).reshape(3, 100),
    "y": np.array([0, 1, 1], np.uint8),
    "user": np.array([61, 1, 61], np.uint8),
}


def write(path, **changes):
    """Writes GOOD with some arrays changed; None drops one."""
    arrays = {k: v for k, v in {**GOOD, **changes}.items() if v is not None}
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("by_folder", [False, True])
def test_load_returns_the_arrays(tmp_path, by_folder):
    path = write(tmp_path / "vsn_vehicle.npz", run=np.zeros(3, np.uint8))
    examples = vsn.load(tmp_path if by_folder else str(path))
    np.testing.assert_array_equal(examples.x, GOOD["x"].astype(np.float32))
    np.testing.assert_array_equal(examples.y, [0, 1, 1])
    np.testing.assert_array_equal(examples.user, [61, 1, 61])
    assert examples.x.dtype == np.float32
    assert examples.y.dtype == examples.user.dtype == np.int32
    assert examples.num_classes == 2
    assert examples.is_test is None


def with_one(value):
    x = GOOD["x"].astype(np.float64)
    x[1, 7] = value
    return x


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": np.array([0, 2, 1])}, "y must lie in 0..1, found 2"),
        ({"y": np.array([0, 0.5, 1])}, "y must be whole numbers"),
        ({"y": np.array([0, 1])}, "same length, found x 3, y 2, user 3"),
        ({"user": np.array([0, -1, 1])}, "user must lie in .*found -1"),
        ({"user": None}, "has only x, y: add user"),
        ({"x": np.zeros((3, 50), np.float32)}, r"floats \[examples, 100\].*\[3, 50\]"),
        ({"x": np.zeros(3, np.float32)}, r"floats \[examples, 100\].*float32 \[3\]"),
        ({"x": np.zeros((3, 100), np.uint8)}, "floats .*found uint8"),
        ({"x": with_one(np.nan)}, "finite float32 numbers, found 1 NaN"),
        ({"x": with_one(1e300)}, "finite float32 numbers, found 1 NaN or inf"),
        ({"x": np.array([None] * 3, object)}, "pickled objects"),
        (
            {"x": np.zeros((0, 100)), "y": np.zeros(0, int), "user": np.zeros(0, int)},
            "at least one example",
        ),
    ],
)
def test_load_refuses_arrays_it_cannot_use(tmp_path, changes, words):
    path = write(tmp_path / "own.npz", **changes)
    with pytest.raises(InputError, match=words) as error:
        vsn.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_load_says_which_file_it_needs(tmp_path):
    needed = r"needs one vsn\*\.npz in "
    with pytest.raises(InputError, match=needed + ".*does not exist"):
        vsn.load(tmp_path / "none")
    with pytest.raises(InputError, match=needed + ".*empty folder.*data/README.md"):
        vsn.load(tmp_path)
    write(tmp_path / "own.npz")
    with pytest.raises(InputError, match=needed + ".*holds own.npz"):
        vsn.load(tmp_path)
    for name in ("vsn_a.npz", "vsn_b.npz"):
        write(tmp_path / name)
    with pytest.raises(InputError, match="vsn_a.npz, vsn_b.npz: name the file"):
        vsn.load(tmp_path)
    cut_off = tmp_path / "cut_off.npz"
    cut_off.write_bytes((tmp_path / "own.npz").read_bytes()[:100])
    with pytest.raises(InputError, match="may be cut off"):
        vsn.load(cut_off)


def test_the_real_file(real_data):
    path = real_data / "vsn_vehicle.npz"
    if not path.exists():
        pytest.skip(f"needs the real {path.name} in {real_data}")
    examples = vsn.load(path)
    assert examples.x.shape == (48795, 100)
    assert examples.x.dtype == np.float32
    np.testing.assert_array_equal(np.bincount(examples.y), [22372, 26423])
    sensors, sizes = np.unique(examples.user, return_counts=True)
    numbers = [*range(1, 7), 41, 42, *range(46, 57), *range(58, 62)]
    np.testing.assert_array_equal(sensors, numbers)
    assert (sizes.min(), sizes.max()) == (1432, 2926)


def test_synthetic_follows_from_its_seed():
    examples = vsn.synthetic(num_sensors=3, size=7, seed=5)
    assert examples.x.shape == (21, 100)
    assert examples.x.dtype == np.float32
    assert examples.y.dtype == examples.user.dtype == np.int32
    assert examples.num_classes == 2
    np.testing.assert_array_equal(examples.user, np.repeat([0, 1, 2], 7))
    for sensor in range(3):
        assert np.bincount(examples.y[examples.user == sensor]).tolist() == [4, 3]
    again = vsn.synthetic(num_sensors=3, size=7, seed=5)
    np.testing.assert_array_equal(examples.x, again.x)
    fewer = vsn.synthetic(num_sensors=2, size=7, seed=5)
    np.testing.assert_array_equal(examples.x[:14], fewer.x)
    other = vsn.synthetic(num_sensors=3, size=7, seed=6)
    assert np.abs(examples.x - other.x).max() > 0.1
    assert np.abs(examples.x[:7] - examples.x[7:14]).max() > 0.1


def test_synthetic_sensors_differ_and_have_something_in_common():
    """What one sensor learned helps at another, but less than at home."""
    num_sensors, num_train = 8, 300
    examples = vsn.synthetic(num_sensors, 600)
    assert 0.1 < examples.x.std() < 0.3  # about as the real ones
    x = examples.x.reshape(num_sensors, 600, 100)
    y = examples.y.reshape(num_sensors, 600)
    at_home, abroad = [], []
    for sensor in range(num_sensors):
        fitted = LogisticRegression().fit(x[sensor, :num_train], y[sensor, :num_train])
        for other in range(num_sensors):
            score = fitted.score(x[other, num_train:], y[other, num_train:])
            (at_home if other == sensor else abroad).append(score)
    assert np.mean(at_home) > 0.85
    assert 0.6 < np.mean(abroad) < np.mean(at_home) - 0.1


@pytest.mark.parametrize("given", [(0, 5, 0), (2, 0, 0), (2, 5, -1)])
def test_synthetic_refuses(given):
    with pytest.raises(InputError, match=f"got {given[0]} sensors, {given[1]}"):
        vsn.synthetic(*given)


def test_standardize_uses_the_own_training_rows_only():
    rng = np.random.default_rng(0)

    def split(sizes):  # ragged: the second agent's rows are padded
        return stack_agents(
            [
                {
                    "x": rng.normal(3 + n, 2 + n, (size, 4)).astype(np.float32),
                    "y": np.arange(size, dtype=np.int32),
                }
                for n, size in enumerate(sizes)
            ]
        )

    train, test = split([9, 5]), split([3, 6])
    train.examples["x"][1, :5, 2] = np.float32(0.1)  # constant
    given = train.examples["x"].copy()
    world = FederatedData(train, split([0, 0]), test, np.zeros(2, np.int32))
    after = vsn.standardize(world)
    np.testing.assert_array_equal(train.examples["x"], given)  # untouched
    for n in range(2):
        own = given[n, : train.size[n]].astype(float)
        mean, deviation = own.mean(0), own.std(0)
        if n == 1:
            deviation[2] = 1
        for data, result in ((train, after.train), (test, after.test)):
            real = data.examples["x"][n, : data.size[n]]
            actual = result.examples["x"][n]
            expected = (real - mean) / deviation
            np.testing.assert_allclose(actual[: len(real)], expected, atol=1e-5)
            assert not actual[len(real) :].any()
    assert after.train.examples["x"].dtype == np.float32
    assert after.valid.examples["x"].shape == (2, 0, 4)
    np.testing.assert_array_equal(after.test.examples["y"], test.examples["y"])
    np.testing.assert_array_equal(after.train.size, [9, 5])


def test_standardize_works_on_what_partition_makes():
    world = partition.by_user(
        vsn.synthetic(4, 60),
        np.random.default_rng(0),
        num_agents=3,
        train_size=40,
        test_size=20,
    )
    x = vsn.standardize(world).train.examples["x"]
    np.testing.assert_allclose(x.mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(1), 1, atol=1e-5)
