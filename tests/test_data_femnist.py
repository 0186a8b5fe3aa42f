"""FEMNIST: tiny files of each public format, its variants, and the real file."""

import h5py
import numpy as np
import pytest
from femnist_files import check_loaded, leaf, write_hdf5, write_json, write_npz

from p2pjax.datasets.loaders import femnist
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError


def test_npz_by_file_or_folder(tmp_path):
    x = np.arange(3 * 784, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)
    path = write_npz(tmp_path / "femnist_own.npz", x=x)
    for place in (path, str(path), tmp_path):
        examples = femnist.load(place)
        np.testing.assert_array_equal(examples.x, x)
        np.testing.assert_array_equal(examples.y, [0, 61, 7])
        np.testing.assert_array_equal(examples.user, [3, 1, 3])
        assert examples.num_classes == 62


def test_npz_with_names_of_writers(tmp_path):
    path = write_npz(tmp_path / "femnist.npz", user=np.array(["f3", "f1", "f3"]))
    np.testing.assert_array_equal(femnist.load(path).user, [1, 0, 1])


def test_json_merges_train_and_test_of_a_writer(tmp_path):
    write_json(tmp_path / "train" / "all_data_2_train_9.json", leaf(bob=[10], eve=[5]))
    write_json(tmp_path / "train" / "all_data_10_train_9.json", leaf(ann=[61, 0]))
    write_json(tmp_path / "test" / "all_data_2_test_9.json", leaf(eve=[7], dan=[36]))
    write_json(tmp_path / "all_data_0.json", leaf(other=[1]))  # train and test win
    check_loaded(femnist.load(tmp_path), [10, 5, 61, 0, 7, 36], [0, 1, 2, 2, 1, 3])


def test_json_in_one_folder_or_file(tmp_path):
    path = write_json(tmp_path / "all_data_0.json", leaf(bob=[10, 11]))
    write_json(tmp_path / "zzz.json", {"unrelated": 1})  # all_data*.json wins
    check_loaded(femnist.load(tmp_path), [10, 11], [0, 0])
    renamed = path.rename(tmp_path / "anything.txt")
    check_loaded(femnist.load(renamed), [10, 11], [0, 0])
    (tmp_path / "zzz.json").unlink()
    renamed.rename(tmp_path / "own.json")
    check_loaded(femnist.load(tmp_path), [10, 11], [0, 0])


def test_json_grey_values_are_exact_and_empty_writers_are_left_out(tmp_path):
    content = leaf(nobody=[], bob=[0])
    content["user_data"]["bob"]["x"] = [[grey / 255 for grey in range(256)] + [1] * 528]
    content["user_data"]["removed"] = {"x": [], "y": []}  # LEAF leaves such behind
    examples = femnist.load(write_json(tmp_path / "all_data.json", content))
    expected = [*range(255, -1, -1), *[0] * 528]
    np.testing.assert_array_equal(examples.x.reshape(-1), expected)
    np.testing.assert_array_equal(examples.user, [0])


def test_hdf5_merges_train_and_test_of_a_writer(tmp_path):
    train = write_hdf5(tmp_path / "fed_emnist_train.h5", f0000_14=[3, 40], f0001_41=[9])
    write_hdf5(tmp_path / "fed_emnist_test.h5", f0001_41=[61], f0002_01=[12])
    check_loaded(femnist.load(tmp_path), [3, 40, 9, 61, 12], [0, 0, 1, 1, 2])
    check_loaded(femnist.load(train), [3, 40, 9], [0, 0, 1])


def test_hdf5_labels_may_be_a_column(tmp_path):
    path = write_hdf5(tmp_path / "one.h5", bob=[3, 40])
    with h5py.File(path, "r+") as file:
        del file["examples/bob/label"]
        file["examples/bob/label"] = np.array([[3], [40]], np.int32)
    check_loaded(femnist.load(path), [3, 40], [0, 0])


def every_class() -> Examples:
    y = np.arange(62, dtype=np.int32)
    x = y.astype(np.uint8)[:, None, None].repeat(28, 1).repeat(28, 2)
    return Examples(x, y, y % 5, 62, y % 2 == 0)


def test_variant_a_keeps_all():
    examples = every_class()
    assert femnist.variant(examples, "a") is examples


def test_variant_m_merges_the_cases_of_15_letters():
    merged = femnist.variant(every_class(), "m")
    assert merged.num_classes == 47
    assert merged.y.dtype == np.int32
    lower = {
        c: int(merged.y[36 + i]) for i, c in enumerate("abcdefghijklmnopqrstuvwxyz")
    }
    np.testing.assert_array_equal(merged.y[:36], range(36))
    assert [lower[c] for c in "abdefghnqrt"] == list(range(36, 47))
    for c in "cijklmopsuvwxyz":
        assert lower[c] == 10 + ord(c) - ord("a")


def test_variant_d_drops_letters_everywhere():
    only = femnist.variant(every_class(), "d")
    np.testing.assert_array_equal(only.y, range(10))
    np.testing.assert_array_equal(only.x[:, 0, 0], range(10))
    np.testing.assert_array_equal(only.user, np.arange(10) % 5)
    assert only.is_test is not None
    np.testing.assert_array_equal(only.is_test, np.arange(10) % 2 == 0)
    assert only.num_classes == 10
    assert femnist.variant(only, "d") is only


def test_bad_variants():
    with pytest.raises(InputError, match="one of a, m, d, found 'x'"):
        femnist.variant(every_class(), "x")
    digits = femnist.variant(every_class(), "d")
    with pytest.raises(InputError, match=r"'m' needs examples of 62.*found 10 classes"):
        femnist.variant(digits, "m")
    with pytest.raises(InputError, match=r"'d' needs examples of 62.*found 47 classes"):
        femnist.variant(femnist.variant(every_class(), "m"), "d")
    letters = every_class()._replace(y=np.full(62, 40, np.int32))
    with pytest.raises(InputError, match="needs digits, found none among 62"):
        femnist.variant(letters, "d")


def test_the_real_file(real_data):
    path = real_data / "femnist_leaf.npz"
    if not path.exists():
        pytest.skip(f"needs the real {path}")
    examples = femnist.load(path)
    assert examples.x.shape == (33980, 28, 28)
    assert len(np.unique(examples.user)) == 200
    assert len(np.unique(examples.y)) == 62
    corners = examples.x[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert corners.mean() < 1  # the background is 0 ...
    assert examples.x.max() == 255  # ... and ink 255
    only = femnist.variant(examples, "d")
    assert len(only.y) == np.count_nonzero(examples.y < 10)
    assert np.unique(only.y).tolist() == list(range(10))
    merged = femnist.variant(examples, "m")
    assert len(merged.y) == 33980
    assert np.unique(merged.y).tolist() == list(range(47))
    assert np.count_nonzero(merged.y == 12) == np.isin(examples.y, (12, 38)).sum()  # C
