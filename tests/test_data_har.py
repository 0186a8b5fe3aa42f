"""Human activities: the archive, the published files, their stand-in."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from p2pjax.datasets.loaders import har
from p2pjax.types import InputError

GOOD = {
    "x": np.linspace(-1, 1, 4 * 561, dtype=np.float32).reshape(4, 561),
    "y": np.array([0, 5, 2, 2], np.uint8),
    "user": np.array([30, 1, 1, 30], np.uint8),
}


def write(path, **changes):
    """Writes GOOD with some arrays changed; None drops one."""
    arrays = {k: v for k, v in {**GOOD, **changes}.items() if v is not None}
    np.savez(path, **arrays)
    return path


def write_published(folder, part, rows):
    (folder / part).mkdir(parents=True)
    names = {"x": "X", "y": "y", "user": "subject"}
    for name, published in names.items():
        values = GOOD[name][rows] + (1 if name == "y" else 0)
        form = "% .7e" if name == "x" else "%d"
        np.savetxt(folder / part / f"{published}_{part}.txt", values, form)


def check(examples, rows):
    np.testing.assert_allclose(examples.x, GOOD["x"][rows], atol=1e-6)
    np.testing.assert_array_equal(examples.y, GOOD["y"][rows])
    np.testing.assert_array_equal(examples.user, GOOD["user"][rows])
    assert examples.x.dtype == np.float32
    assert examples.y.dtype == examples.user.dtype == np.int32
    assert examples.num_classes == 6
    assert examples.is_test is None


@pytest.mark.parametrize("by_folder", [False, True])
def test_archive(tmp_path, by_folder):
    path = write(tmp_path / "uci_har_all.npz")
    check(har.load(tmp_path if by_folder else str(path)), range(4))


def test_published_files(tmp_path):
    write_published(tmp_path, "train", [0, 2])
    check(har.load(tmp_path), [0, 2])
    write_published(tmp_path, "test", [1, 3])
    check(har.load(tmp_path), [0, 2, 1, 3])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": np.array([0, 6, 1, 1])}, "y must lie in 0..5, found 6"),
        ({"y": np.array([0, 1])}, "same length, found x 4, y 2, user 4"),
        ({"user": None}, "has only x, y: add user"),
        ({"x": np.zeros((4, 5), np.float32)}, r"floats \[examples, 561\], the publ"),
        ({"x": np.full((4, 561), np.nan)}, "finite float32 numbers, found 2244 NaN"),
    ],
)
def test_refuses_arrays_it_cannot_use(tmp_path, changes, words):
    path = write(tmp_path / "own.npz", **changes)
    with pytest.raises(InputError, match=words) as error:
        har.load(path)
    assert str(path) in str(error.value)


def test_says_which_file_it_needs(tmp_path):
    needed = r"Human activity recognition needs one uci_har\*\.npz"
    with pytest.raises(InputError, match=needed + ".*does not exist"):
        har.load(tmp_path / "none")
    needed = r"needs train/X_train.txt or one uci_har\*\.npz in .*empty folder"
    with pytest.raises(InputError, match=needed):
        har.load(tmp_path)
    for name in ("uci_har_a.npz", "uci_har_b.npz"):
        write(tmp_path / name)
    with pytest.raises(InputError, match="uci_har_a.npz, uci_har_b.npz: name the file"):
        har.load(tmp_path)


def test_refuses_published_files_it_cannot_use(tmp_path):
    write_published(tmp_path, "train", [0, 1])
    subjects = tmp_path / "train" / "subject_train.txt"
    subjects.write_text("1\n")
    with pytest.raises(InputError, match="same length, found x 2, y 2, user 1"):
        har.load(tmp_path)
    subjects.write_text("one\n")
    with pytest.raises(
        InputError, match="subject_train.txt must be a table of numbers"
    ):
        har.load(tmp_path)
    subjects.unlink()
    with pytest.raises(InputError, match=r"subject_train.txt must be .* is missing"):
        har.load(tmp_path)


def test_the_real_file(real_data):
    path = real_data / "uci_har_561_train21.npz"
    if not path.exists():
        pytest.skip(f"needs the real {path.name} in {real_data}")
    examples = har.load(path)
    assert examples.x.shape == (7352, 561)
    assert (examples.x.min(), examples.x.max()) == (-1, 1)
    people, sizes = np.unique(examples.user, return_counts=True)
    assert (len(people), sizes.min(), sizes.max()) == (21, 281, 409)


def test_synthetic_people_differ_and_have_something_in_common():
    examples = har.synthetic(4, 240)
    assert examples.x.dtype == np.float32
    assert np.abs(examples.x).max() < 1
    fewer = har.synthetic(2, 240)
    np.testing.assert_array_equal(examples.x[:480], fewer.x)
    assert (har.synthetic(2, 240, seed=1).x != fewer.x).any()
    x, y = examples.x.reshape(4, 240, 561), examples.y.reshape(4, 240)
    assert all(np.bincount(own).tolist() == [40] * 6 for own in y)
    at_home, abroad = [], []
    for person in range(4):
        fitted = LogisticRegression(max_iter=50, tol=1e-2)
        fitted.fit(x[person, :180], y[person, :180])
        for other in range(4):
            score = fitted.score(x[other, 180:], y[other, 180:])
            (at_home if other == person else abroad).append(score)
    assert np.mean(at_home) > 0.85
    assert 0.3 < np.mean(abroad) < np.mean(at_home) - 0.2


@pytest.mark.parametrize("given", [(0, 5, 0), (2, 0, 0), (2, 5, -1)])
def test_synthetic_refuses(given):
    with pytest.raises(InputError, match=f"got {given[0]} people, {given[1]}"):
        har.synthetic(*given)
