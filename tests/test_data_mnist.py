"""MNIST: tiny files of each published format, and the real ones."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from idx_files import NAMES, idx_bytes, tiny

from p2pjax.datasets.loaders import mnist
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError


def write_idx(folder: Path, **changes: np.ndarray) -> None:
    for key, array in {**tiny(), **changes}.items():
        (folder / NAMES[key]).write_bytes(idx_bytes(array))


def check(examples: Examples, users: list[int]) -> None:
    arrays = tiny()
    for loaded, key in ((examples.x, "x"), (examples.y, "y")):
        expected = np.concatenate((arrays[f"{key}_train"], arrays[f"{key}_test"]))
        np.testing.assert_array_equal(loaded, expected)
    assert (examples.x.dtype, examples.y.dtype) == (np.uint8, np.int32)
    assert examples.is_test is not None
    np.testing.assert_array_equal(examples.is_test, [0, 0, 0, 1, 1])
    assert examples.is_test.dtype == bool
    np.testing.assert_array_equal(examples.user, users)
    assert examples.user.dtype == np.int32
    assert examples.num_classes == 10


def refused(path: Path, *facts: object) -> None:
    with pytest.raises(InputError) as error:
        mnist.load(path)
    for fact in facts:
        assert str(fact) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("dotted", [False, True])
def test_idx_in_every_spelling(tmp_path, zipped, dotted):
    for key, array in tiny().items():
        name = NAMES[key].replace("-idx", ".idx") if dotted else NAMES[key]
        raw = idx_bytes(array)
        path = tmp_path / (name + ".gz" if zipped else name)
        path.write_bytes(gzip.compress(raw) if zipped else raw)
    check(mnist.load(str(tmp_path)), [0] * 5)


def test_gzip_is_known_by_content(tmp_path):
    write_idx(tmp_path)
    path = tmp_path / NAMES["x_train"]
    path.write_bytes(gzip.compress(path.read_bytes()))
    plain = tmp_path / NAMES["y_test"]
    plain.rename(tmp_path / f"{plain.name}.gz")
    check(mnist.load(tmp_path), [0] * 5)


def test_keras_archive_by_file_or_folder(tmp_path):
    np.savez(tmp_path / "mnist.npz", **tiny())
    check(mnist.load(tmp_path), [0] * 5)
    check(mnist.load(tmp_path / "mnist.npz"), [0] * 5)


def test_writers_beside(tmp_path):
    write_idx(tmp_path)
    ids = {"w_train": np.array([4, 0, 4]), "w_test": np.array([2, 0], np.uint16)}
    np.savez(tmp_path / "mnist_writer_ids.npz", **ids)
    check(mnist.load(tmp_path), [4, 0, 4, 7, 5])


def test_bad_writers(tmp_path):
    write_idx(tmp_path)
    path = tmp_path / "mnist_writer_ids.npz"
    np.savez(path, w_train=np.arange(3), w_test=np.arange(3))
    refused(tmp_path, path, "one id per image, 3 and 2", "found 3 and 3")
    np.savez(path, w_train=np.arange(3))
    refused(tmp_path, path, "w_train, w_test", "has only w_train")
    np.savez(path, w_train=np.array([0, -1, 0]), w_test=np.arange(2))
    refused(tmp_path, path, "w_train must lie in", "found -1")
    np.savez(path, w_train=np.array([0, 2**31 - 1, 0]), w_test=np.arange(2))
    refused(tmp_path, path, "w_test must lie in", "found 2147483648")


def test_nothing_there(tmp_path):
    wanted = [*NAMES.values(), "(or .gz)", "mnist.npz"]
    refused(tmp_path / "none", *wanted, tmp_path / "none", "does not exist")
    refused(tmp_path, *wanted, "is an empty folder", "data/README.md")
    write_idx(tmp_path)
    (tmp_path / NAMES["y_test"]).unlink()
    refused(tmp_path, f"needs {NAMES['y_test']} (or .gz) or mnist.npz", "holds t10k")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"y_train": np.zeros(2, np.uint8)}, ["same length", "ubyte 3", "ubyte 2"]),
        (
            {"y_test": np.array([1, 10], np.uint8)},
            ["0..9", "found 10", NAMES["y_test"]],
        ),
        ({"x_test": np.zeros((2, 27, 28), np.uint8)}, ["[2, 27, 28]", NAMES["x_test"]]),
        (
            {
                "x_test": np.zeros((0, 28, 28), np.uint8),
                "y_test": np.zeros(0, np.uint8),
            },
            ["at least one example", NAMES["x_test"]],
        ),
    ],
)
def test_bad_idx_arrays(tmp_path, changes, facts):
    write_idx(tmp_path, **changes)
    refused(tmp_path, tmp_path, *facts)


def test_damaged_idx(tmp_path):
    write_idx(tmp_path)
    path = tmp_path / NAMES["x_train"]
    raw = path.read_bytes()
    path.write_bytes(b"")
    refused(tmp_path, path, "idx3", "is empty")
    path.write_bytes(raw[:-1])
    refused(tmp_path, path, "2352 bytes for shape [3, 28, 28]", "2351", "cut off")
    path.write_bytes(raw + b"0")
    refused(tmp_path, path, "2352 bytes", "2353", "too long")
    path.write_bytes(raw[:7])
    refused(tmp_path, path, "16 bytes of header", "only 7 bytes", "cut off")
    path.write_bytes(raw[:2])
    refused(tmp_path, path, "starts with 00000803", "but starts with 0000:")
    path.write_bytes(idx_bytes(tiny()["y_train"]))
    refused(tmp_path, path, "00000803", "starts with 00000801", "check the file's name")
    for damaged in (gzip.compress(raw)[:-9], gzip.compress(raw)[:30], b"\x1f\x8bzip"):
        path.write_bytes(damaged)
        refused(tmp_path, path, "idx3", "may be cut off", "get it again")
    path.write_bytes(gzip.compress(b""))
    refused(tmp_path, path, "00000803", "starts with nothing")


def test_bad_archives(tmp_path):
    path = tmp_path / "mnist.npz"
    np.savez(path, x=1)
    refused(tmp_path, path, "x_train, y_train, x_test, y_test", "has only x")
    np.savez(path, **{**tiny(), "y_train": np.array([0, -1, 2])})
    refused(tmp_path, path, "y_train must lie in 0..9", "found -1")
    np.savez(path, **{**tiny(), "x_test": np.zeros((2, 28, 28))})
    refused(tmp_path, path, "x_test must be uint8 images", "float64 [2, 28, 28]")
    np.savez(path, **{**tiny(), "y_test": np.array([1, 2, 3])})
    refused(tmp_path, path, "same length", "x_test 2, y_test 3")
    path.write_bytes(path.read_bytes()[:-40])
    refused(path, path, "npz archive", "may be cut off")


def test_the_real_files(real_data):
    for name in ("mnist.npz", "mnist_writer_ids.npz"):
        if not (real_data / name).exists():
            pytest.skip(f"needs the real {name} in {real_data}")
    examples = mnist.load(real_data)
    assert examples.x.shape == (70000, 28, 28)
    assert examples.is_test is not None
    assert np.flatnonzero(examples.is_test).tolist() == list(range(60000, 70000))
    np.testing.assert_array_equal(examples.y[:5], [5, 0, 4, 1, 9])
    np.testing.assert_array_equal(examples.y[60000:60005], [7, 2, 1, 0, 4])
    assert len(np.unique(examples.user[:60000])) == 539
    assert len(np.unique(examples.user[60000:])) == 297
    assert len(np.unique(examples.user)) == 539 + 297
