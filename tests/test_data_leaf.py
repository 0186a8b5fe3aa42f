"""LEAF's JSON folders: images, features, and writers who are in several files."""

import numpy as np
import pytest
from femnist_files import check_loaded, leaf, picture, write_hdf5, write_json

from p2pjax.datasets.loaders import femnist
from p2pjax.datasets.loaders import leaf as leaf_loader
from p2pjax.types import InputError


def test_train_and_test(tmp_path):
    write_json(tmp_path / "train" / "a.json", leaf(bob=[10], eve=[5, 3]))
    write_json(tmp_path / "test" / "a.json", leaf(eve=[7], dan=[2]))
    examples = leaf_loader.load(tmp_path)
    assert examples.is_test.tolist() == [False] * 3 + [True] * 2
    assert examples.num_classes == 11
    own = examples._replace(is_test=None, num_classes=62)
    check_loaded(own, [10, 5, 3, 7, 2], [0, 1, 1, 1, 2])
    assert leaf_loader.load(str(tmp_path), num_classes=62).num_classes == 62
    one = leaf_loader.load(tmp_path / "train")
    assert (one.y.tolist(), one.is_test) == ([10, 5, 3], None)


def test_all_data(tmp_path):
    write_json(tmp_path / "all_data_1.json", leaf(bob=[1]))
    write_json(tmp_path / "all_data_0.json", leaf(eve=[4]))
    examples = leaf_loader.load(tmp_path)
    assert (examples.y.tolist(), examples.user.tolist()) == ([4, 1], [0, 1])
    assert examples.is_test is None


COPIES = r"left out 2 of 6 examples, because their users have the same ones"


def test_a_writer_of_two_folders_has_each_image_once(tmp_path):
    """Where it was read first: no image of the training part is tested."""
    write_json(tmp_path / "train" / "a.json", leaf(bob=[10, 11], eve=[5]))
    write_json(tmp_path / "test" / "a.json", leaf(eve=[7, 5], bob=[11]))
    with pytest.warns(UserWarning, match=COPIES):
        examples = leaf_loader.load(tmp_path)
    assert examples.y.tolist() == [10, 11, 5, 7]
    assert examples.user.tolist() == [0, 0, 1, 1]
    assert examples.is_test.tolist() == [False, False, False, True]
    with pytest.warns(UserWarning, match=COPIES):
        check_loaded(femnist.load(tmp_path), [10, 11, 5, 7], [0, 0, 1, 1])


def test_samples_that_overlap(tmp_path):
    """All of a writer is in two files: its user is one, its images are there once."""
    write_json(tmp_path / "all_data_0.json", leaf(bob=[10, 11], eve=[5]))
    write_json(tmp_path / "all_data_1.json", leaf(bob=[10, 11]))
    write_json(tmp_path / "all_data_2.json", leaf(dan=[10], bob=[12]))
    with pytest.warns(UserWarning, match="left out 2 of 7"):
        examples = femnist.load(tmp_path)
    check_loaded(examples, [10, 11, 5, 10, 12], [0, 0, 1, 2, 0])


def test_copies_in_hdf5(tmp_path):
    write_hdf5(tmp_path / "fed_emnist_train.h5", f0000_14=[3, 40])
    write_hdf5(tmp_path / "fed_emnist_test.h5", f0000_14=[40, 1])
    with pytest.warns(UserWarning, match="left out 1 of 4"):
        check_loaded(femnist.load(tmp_path), [3, 40, 1], [0, 0, 0])


def test_what_is_no_copy_stays(tmp_path):
    """Twice in one file, of another writer, or of another class: as published."""
    content = leaf(bob=[10, 10], eve=[10])
    write_json(tmp_path / "all_data_0.json", content)
    other = leaf(bob=[10])
    other["user_data"]["bob"]["y"] = [11]
    write_json(tmp_path / "all_data_1.json", other)
    examples = femnist.load(tmp_path)
    assert examples.y.tolist() == [10, 10, 10, 11]
    assert examples.user.tolist() == [0, 0, 1, 0]


def features(**rows):
    """LEAF's format with features: each user's x, and labels from 0 on."""
    return {
        "users": list(rows),
        "num_samples": [len(x) for x in rows.values()],
        "user_data": {u: {"x": x, "y": list(range(len(x)))} for u, x in rows.items()},
    }


def test_features(tmp_path):
    write_json(tmp_path / "data.json", features(a=[[0.5, -3, 7]], b=[[1, 2, 3]] * 2))
    examples = leaf_loader.load(tmp_path, pixels=False)
    assert examples.x.dtype == np.float32
    np.testing.assert_allclose(examples.x, [[0.5, -3, 7], [1, 2, 3], [1, 2, 3]])
    assert examples.y.tolist() == [0, 0, 1]
    with pytest.raises(InputError, match=r"\[examples, 784\].*resize"):
        leaf_loader.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            features(a=["0.jpg", "1.jpg"]),
            {},
            r"names, texts or others such as '0\.jpg'",
        ),
        (features(a=[[1, 2]], b=[[1]]), {"pixels": False}, r"one shape .* \[1\] and"),
        (features(a=[1, 2]), {"pixels": False}, r"lists of numbers, found int64 \[2\]"),
        (leaf(a=[5]), {"num_classes": 5}, r"0\.\.4, found 5"),
        (features(), {}, "at least one example"),
    ],
)
def test_refusals(tmp_path, content, options, message):
    write_json(tmp_path / "data.json", content)
    with pytest.raises(InputError, match=message):
        leaf_loader.load(tmp_path, **options)


def test_half_a_folder(tmp_path):
    write_json(tmp_path / "test" / "a.json", {"x": [picture(1)]})
    with pytest.raises(InputError, match=r"found only test/\*.json: add train/\*.json"):
        leaf_loader.load(tmp_path)
    with pytest.raises(InputError, match=r"LEAF data needs .* does not exist"):
        leaf_loader.load(tmp_path / "none")
