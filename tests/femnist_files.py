"""Writes tiny files of FEMNIST's public formats, for the tests of its loader."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from p2pjax.datasets.loaders import femnist
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError

INK, PAPER = 0.0, 1.0  # in LEAF and TensorFlow Federated


def picture(pixel: int, value: float = INK) -> list[float]:
    """A sheet of paper with one pixel of another value, flat as LEAF has it."""
    image = [PAPER] * 784
    image[pixel] = value
    return image


def leaf(**labels: list[int]) -> dict:
    """LEAF's JSON: the ink of an example with label y is at pixel y."""
    return {
        "users": list(labels),
        "num_samples": [len(y) for y in labels.values()],
        "user_data": {
            user: {"x": [picture(label) for label in y], "y": y}
            for user, y in labels.items()
        },
    }


def write_json(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_hdf5(path: Path, **labels: list[int]) -> Path:
    with h5py.File(path, "w") as file:
        for user, y in labels.items():
            pixels = np.reshape([picture(label) for label in y], (-1, 28, 28))
            file[f"examples/{user}/pixels"] = pixels.astype(np.float32)
            file[f"examples/{user}/label"] = np.array(y, np.int32)
    return path


def write_npz(path: Path, **changes: object) -> Path:
    arrays: dict = {
        "x": np.zeros((3, 28, 28), np.uint8),
        "y": np.array([0, 61, 7], np.uint8),
        "user": np.array([3, 1, 3], np.uint16),
    }
    np.savez(path, **{**arrays, **changes})
    return path


def check_loaded(examples: Examples, y: list[int], user: list[int]) -> None:
    """Checks labels and users, and that all ink is at pixel y, as in `leaf`."""
    np.testing.assert_array_equal(examples.y, y)
    np.testing.assert_array_equal(examples.user, user)
    assert (examples.y.dtype, examples.user.dtype) == (np.int32, np.int32)
    assert examples.x.dtype == np.uint8
    expected = np.zeros((len(y), 784), np.uint8)
    expected[np.arange(len(y)), y] = 255
    np.testing.assert_array_equal(examples.x, expected.reshape(-1, 28, 28))
    assert examples.num_classes == 62
    assert examples.is_test is None


def check_refused(path: Path, *facts: object) -> None:
    """Checks that loading ends in one sentence that states all the facts."""
    with pytest.raises(InputError) as error:
        femnist.load(path)
    for fact in facts:
        assert str(fact) in str(error.value)
    assert "\n" not in str(error.value)
