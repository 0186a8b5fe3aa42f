"""CIFAR-10: tiny files of each published format, and real ones."""

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from p2pjax.datasets.loaders import cifar10
from p2pjax.types import InputError


def tiny(num: int, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose red, green and blue differ, and labels from `first` on."""
    x = (np.arange(num * 3072) * 7 % 251).astype(np.uint8).reshape(num, 32, 32, 3)
    return x, (first + np.arange(num)) % 10


def write_batches(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """As published: rows of 1024 red, 1024 green and 1024 blue pixels."""
    names = [*cifar10.BATCHES["train"], *cifar10.BATCHES["test"]]
    every = [tiny(2, number) for number in range(len(names))]
    for name, (x, y) in zip(names, every, strict=True):
        batch = {
            b"batch_label": name.encode(),
            b"labels": y.tolist(),
            b"data": x.transpose(0, 3, 1, 2).reshape(2, 3072),
            b"filenames": [b"a.png", b"b.png"],
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    x, y = (np.concatenate(parts) for parts in zip(*every, strict=True))
    return x, y


def write_npz(path: Path, **changes: np.ndarray) -> None:
    (x, y), (x_test, y_test) = tiny(3, 0), tiny(2, 5)
    arrays = {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}
    np.savez(path, **{**arrays, **changes})


def refused(path: Path, *facts: str) -> None:
    with pytest.raises(InputError) as error:
        cifar10.load(path)
    for fact in facts:
        assert fact in str(error.value)


@pytest.mark.parametrize("inside", [True, False])
def test_python_batches(tmp_path, inside):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    x, y = write_batches(folder)
    examples = cifar10.load(tmp_path if inside else folder)
    np.testing.assert_array_equal(examples.x, x)
    np.testing.assert_array_equal(examples.y, y)
    assert (examples.x.dtype, examples.y.dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(examples.is_test, [0] * 10 + [1] * 2)
    assert examples.num_classes == 10
    assert not examples.user.any()


def test_batches_written_before_numpy_2(tmp_path):
    write_batches(tmp_path)
    path = tmp_path / "data_batch_1"
    old = path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"numpy.core" in old
    path.write_bytes(old)
    assert len(cifar10.load(tmp_path).y) == 12


def test_npz_as_folder_and_file(tmp_path):
    write_npz(tmp_path / "cifar10_part.npz")
    for path in (tmp_path, tmp_path / "cifar10_part.npz"):
        examples = cifar10.load(path)
        np.testing.assert_array_equal(examples.x[:3], tiny(3, 0)[0])
        np.testing.assert_array_equal(examples.y, [0, 1, 2, 5, 6])
        np.testing.assert_array_equal(examples.is_test, [0, 0, 0, 1, 1])


def test_files_that_cannot_be_used(tmp_path):
    refused(tmp_path, "cifar-10-batches-py or one cifar10*.npz", "empty folder")
    write_npz(tmp_path / "cifar10.npz", x_train=np.zeros((3, 28, 28), np.uint8))
    refused(tmp_path, "x_train must be uint8 images [examples, 32, 32, 3]")
    write_npz(tmp_path / "cifar10.npz", y_train=np.array([0, 1, 10]))
    refused(tmp_path, "10")
    write_npz(tmp_path / "cifar10_b.npz")
    refused(tmp_path, "one cifar10*.npz", "cifar10.npz, cifar10_b.npz: name the file")


def test_batches_that_cannot_be_used(tmp_path):
    write_batches(tmp_path)
    path = tmp_path / "data_batch_3"
    whole = path.read_bytes()
    path.write_bytes(whole[:-400])
    refused(tmp_path, "data_batch_3", "cut off")
    path.write_bytes(pickle.dumps([1, 2]))
    refused(tmp_path, "data_batch_3", "holds something else")
    path.unlink()
    refused(tmp_path, "data_batch_3", "is missing")


class _Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_nothing_in_a_batch_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_batches(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": _Harmful()}))
    refused(tmp_path, "arrays of numbers only", "mkdir, which is never loaded")
    assert not (tmp_path / "harm").exists()


def test_tensorflow_datasets(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    with tfds.testing.mock_data(num_examples=3):
        examples = cifar10.load_tfds(tmp_path, download=True)
    assert (examples.x.shape, examples.x.dtype) == ((6, 32, 32, 3), np.uint8)
    np.testing.assert_array_equal(examples.is_test, [0] * 3 + [1] * 3)
    needed = re.escape("image [32, 32, 3] and label")
    with (
        tfds.testing.mock_data(num_examples=2),
        pytest.raises(InputError, match=needed),
    ):
        cifar10.images_tfds.load_tfds("mnist", tmp_path, True, (32, 32, 3))


def test_the_real_part(real_data):
    if not (real_data / "cifar10_20k.npz").exists():
        pytest.skip("no cifar10_20k.npz among the real data")
    examples = cifar10.load(real_data)
    assert examples.x.shape == (25_000, 32, 32, 3)
    np.testing.assert_array_equal(
        np.bincount(examples.y[~examples.is_test]), [2000] * 10
    )
    assert examples.is_test.sum() == 5000
