"""Your own npz data, and the safe opening of npz archives."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from p2pjax.datasets.loaders import npz
from p2pjax.types import InputError

GOOD = {
    "x": np.arange(6, dtype=np.uint8).reshape(3, 2),
    "y": np.array([0, 2, 1]),
    "user": np.array([5, 5, 7], np.uint16),
}
WORDS = ["train", "test", "train"]


def write(folder: Path, **changes: object) -> Path:
    """Writes GOOD with some arrays changed; None drops one."""
    arrays = {k: v for k, v in {**GOOD, **changes}.items() if v is not None}
    path = folder / "own.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_load_returns_the_arrays(tmp_path):
    examples = npz.load(write(tmp_path))
    np.testing.assert_array_equal(examples.x, GOOD["x"])
    np.testing.assert_array_equal(examples.y, [0, 2, 1])
    np.testing.assert_array_equal(examples.user, [5, 5, 7])
    assert examples.x.dtype == np.uint8
    assert examples.y.dtype == examples.user.dtype == np.int32
    assert examples.num_classes == 3
    assert examples.is_test is None


def test_load_takes_a_path_as_text_and_compressed(tmp_path):
    np.savez_compressed(tmp_path / "own.npz", **GOOD)
    assert npz.load(str(tmp_path / "own.npz")).num_classes == 3


def test_load_uses_the_given_num_classes(tmp_path):
    assert npz.load(write(tmp_path, num_classes=7)).num_classes == 7


def test_users_are_there_unless_they_need_not_be(tmp_path):
    found = npz.load(write(tmp_path), needs_user=False)
    np.testing.assert_array_equal(found.user, [5, 5, 7])
    path = write(tmp_path, user=None)
    np.testing.assert_array_equal(npz.load(path, needs_user=False).user, [0, 0, 0])
    with pytest.raises(InputError, match="add user with numpy.savez"):
        npz.load(path)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.uint8, np.uint8),
        (np.float32, np.float32),
        (np.float64, np.float32),
        (np.float16, np.float32),
        (np.int64, np.int32),
        (np.int16, np.int32),
        (np.bool_, np.float32),
    ],
)
def test_load_keeps_or_narrows_the_dtype(tmp_path, given, kept):
    x = np.array([[0, 1], [1, 0], [1, 1]], given)
    loaded = npz.load(write(tmp_path, x=x)).x
    assert loaded.dtype == kept
    np.testing.assert_array_equal(loaded, x)


def test_names_are_numbered_in_sorted_order(tmp_path):
    names, writers = np.array(["owl", "ant", "bee"]), np.array(["zoé", "zoé", "Ann"])
    for kind in (np.asarray, lambda a: np.char.encode(a, "utf-8")):
        examples = npz.load(write(tmp_path, y=kind(names), user=kind(writers)))
        np.testing.assert_array_equal(examples.y, [2, 0, 1])
        np.testing.assert_array_equal(examples.user, [1, 1, 0])
        assert examples.y.dtype == examples.user.dtype == np.int32
        assert examples.num_classes == 3
    assert np.unique(names)[examples.y].tolist() == names.tolist()


def test_names_in_an_array_of_objects_are_refused(tmp_path):
    """They could only be read by running a pickle."""
    path = write(tmp_path, y=np.array(["a", "b", "c"], object))
    with pytest.raises(InputError, match="pickled objects"):
        npz.load(path)


def test_users_may_be_left_out_where_they_are_not_needed(tmp_path):
    path = write(tmp_path, user=None)
    with pytest.raises(InputError, match="has only x, y: add user"):
        npz.load(path)
    examples = npz.load(path, needs_user=False)
    np.testing.assert_array_equal(examples.user, [0, 0, 0])
    assert examples.user.dtype == np.int32
    own = npz.load(write(tmp_path), needs_user=False)
    np.testing.assert_array_equal(own.user, [5, 5, 7])


@pytest.mark.parametrize(
    "split",
    [[0, 1, 0], [False, True, False], WORDS, [word.encode() for word in WORDS]],
)
def test_load_reads_the_split(tmp_path, split):
    is_test = npz.load(write(tmp_path, split=np.array(split))).is_test
    assert is_test is not None
    assert is_test.dtype == bool
    np.testing.assert_array_equal(is_test, [False, True, False])


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"y": None}, ["x, y, user", "has only x, user", "add y"]),
        ({"y": np.array([0, 1])}, ["same length", "x 3, y 2, user 3"]),
        ({"user": np.array([0])}, ["same length", "user 1"]),
        ({"y": np.array([0, -1, 1])}, ["y must lie in 0..", "found -1"]),
        ({"y": np.array([0, 1.5, 1])}, ["y must be whole numbers", "float64"]),
        ({"y": np.array(["a", "", ""])}, ["y must have a name", "found 2 empty"]),
        ({"user": np.array([b"", b"b", b"c"])}, ["user must have a name", "1 empty"]),
        ({"y": np.array([["a"], ["b"], ["c"]])}, ["y must have shape", "[3, 1]"]),
        ({"y": np.array(["a", "b", "c"]), "num_classes": 2}, ["0..1", "found 2"]),
        ({"y": np.zeros((3, 1), int)}, ["y must have shape [examples]", "[3, 1]"]),
        ({"y": np.int64(3)}, ["y must have shape [examples]", "found []"]),
        ({"user": np.array([0, -4, 1])}, ["user must lie in 0..", "found -4"]),
        ({"user": np.array([0, 2**31, 1])}, ["user must lie", "found 2147483648"]),
        ({"user": np.array([0.0, 1, 1])}, ["user must be whole numbers", "float64"]),
        ({"x": np.array([[0], [np.nan], [1]])}, ["finite", "1 NaN or infinite"]),
        ({"x": np.array([[0], [1e300], [1]])}, ["finite", "1 NaN or infinite"]),
        ({"x": np.array([[0], [2**40], [1]])}, ["fit int32", str(2**40), "float32"]),
        ({"x": np.array([["a"], ["b"], ["c"]])}, ["x must be numbers", "<U1 [3, 1]"]),
        ({"x": np.ones(3, complex)}, ["x must be numbers", "complex128"]),
        ({"x": np.float32(3)}, ["x must be numbers", "float32 []"]),
        (
            {"x": np.zeros((0, 2)), "y": np.zeros(0, int), "user": np.zeros(0, int)},
            ["at least one example", "[0, 2]"],
        ),
        ({"num_classes": 2}, ["y must lie in 0..1", "found 2"]),
        ({"num_classes": 0}, ["num_classes must be", "found int64 0"]),
        ({"num_classes": [3, 4]}, ["num_classes must be one", "[3, 4]"]),
        ({"num_classes": 3.5}, ["num_classes must be", "3.5"]),
        ({"split": np.array([0, 2, 1])}, ["split must be", "[0, 2, 1]"]),
        ({"split": np.array(["train", "dev", "test"])}, ["split must be", "dev"]),
        ({"split": np.array([0, 1])}, ["same length", "x 3, split 2"]),
        ({"split": np.array([0.0, 1, 0])}, ["split must be", "float64"]),
    ],
)
def test_load_refuses_bad_arrays(tmp_path, changes, facts):
    path = write(tmp_path, **changes)
    with pytest.raises(InputError) as error:
        npz.load(path)
    for fact in [str(path), *facts]:
        assert fact in str(error.value)
    assert "\n" not in str(error.value)


def test_pickled_objects_are_refused_and_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    path = write(tmp_path, x=np.array([Trap(), Trap(), Trap()], object))
    with pytest.raises(InputError, match=r"pickled objects.*save it as plain arrays"):
        npz.load(path)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(
        InputError, match=r"another format.*: write it with numpy\.savez"
    ):
        npz.load(path)
    assert not (tmp_path / "sprung").exists()


def test_an_object_array_that_nobody_asked_for_does_no_harm(tmp_path):
    path = write(tmp_path, notes=np.array([{}, None], object))
    assert npz.load(path).num_classes == 3


def test_missing_folder_or_empty_file(tmp_path):
    with pytest.raises(InputError, match=r"none\.npz must be an npz.*is missing"):
        npz.load(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"must be an npz.*is a folder"):
        npz.load(tmp_path)
    (tmp_path / "empty.npz").touch()
    with pytest.raises(InputError, match=r"must be an npz.*x, y, user.*is empty"):
        npz.load(tmp_path / "empty.npz")


@pytest.mark.parametrize("kept", [2, 3, 30, 200, -1])
def test_a_cut_off_archive(tmp_path, kept):
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"must be an npz archive .* cut off"):
        npz.load(path)


def test_every_single_damaged_byte_is_an_input_error_or_harmless(tmp_path):
    path = write(tmp_path)
    raw = path.read_bytes()
    for position in range(2, len(raw), 5):
        damaged = bytearray(raw)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            examples = npz.load(path)
        except InputError:
            continue
        np.testing.assert_array_equal(examples.x, GOOD["x"])


def test_another_file_in_place_of_an_archive(tmp_path):
    path = tmp_path / "own.npz"
    path.write_text("x,y,user\n1,2,3\n")
    with pytest.raises(InputError, match="of another format"):
        npz.load(path)
    with path.open("wb") as file:
        np.save(file, GOOD["x"])
    with pytest.raises(InputError, match="of another format"):
        npz.load(path)
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x.npy", "y.npy", "user.npy"):
            archive.writestr(name, "no array")
    with pytest.raises(InputError, match=r"own\.npz must be an npz"):
        npz.load(path)
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(InputError, match="has only nothing: add x, y, user"):
        npz.load(path)


def test_read_arrays_returns_what_was_asked_for(tmp_path):
    arrays = npz.read_arrays(write(tmp_path), ["y"], optional=["user", "split"])
    assert list(arrays) == ["y", "user"]
