"""Folders of idx files: MNIST's names and EMNIST's."""

import numpy as np
import pytest
from idx_files import NAMES, tiny, write

from p2pjax.datasets.loaders import idx
from p2pjax.types import InputError


@pytest.mark.parametrize("packed", [False, True])
def test_like_mnist(tmp_path, packed):
    examples = idx.load(str(write(tmp_path, packed=packed)))
    arrays = tiny()
    np.testing.assert_array_equal(examples.x[:3], arrays["x_train"])
    np.testing.assert_array_equal(examples.x[3:], arrays["x_test"])
    assert examples.y.tolist() == [3, 0, 9, 1, 7]
    assert examples.y.dtype == examples.user.dtype == np.int32
    assert examples.is_test.tolist() == [False] * 3 + [True] * 2
    assert examples.user.tolist() == [0] * 5
    assert examples.num_classes == 10


def test_emnist_is_turned_upright(tmp_path):
    for name in ("letters", "balanced"):
        write(tmp_path, f"emnist-{name}-", packed=True, test="test")
    (tmp_path / "emnist-letters-mapping.txt").write_text("1 65 97\n")
    with pytest.raises(InputError, match=r"begin with 'emnist-balanced-', 'emnist-le"):
        idx.load(tmp_path)
    examples = idx.load(tmp_path / "emnist-letters-test-labels-idx1-ubyte.gz")
    upright = tiny()["x_train"].transpose(0, 2, 1)
    np.testing.assert_array_equal(examples.x[:3], upright)


def test_images_of_another_size(tmp_path):
    """And of more classes than ten."""
    small = {
        "x_train": np.zeros((3, 5, 4), np.uint8),
        "x_test": np.zeros((2, 5, 4), np.uint8),
        "y_test": np.array([1, 46], np.uint8),
    }
    examples = idx.load(write(tmp_path, **small))
    assert examples.x.shape == (5, 5, 4)
    assert examples.num_classes == 47
    write(tmp_path, x_test=np.zeros((2, 4, 4), np.uint8), x_train=small["x_train"])
    with pytest.raises(InputError, match=r"same size, found \[5, 4\] and \[4, 4\]"):
        idx.load(tmp_path)


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="idx files needs train-images-idx3.*is an em"):
        idx.load(tmp_path)
    (tmp_path / "other.txt").touch()
    with pytest.raises(InputError, match="needs train-images-idx3"):
        idx.load(tmp_path / "other.txt")
    write(tmp_path)
    (tmp_path / NAMES["y_test"]).unlink()
    with pytest.raises(InputError, match="found t10k-images.*: add test labels"):
        idx.load(tmp_path)
    write(tmp_path, y_train=np.zeros(2, np.uint8))
    with pytest.raises(InputError, match="must have the same length"):
        idx.load(tmp_path)
