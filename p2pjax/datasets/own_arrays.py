"""Arrays that a user gives, checked and in the package's dtypes."""

from typing import Any

import numpy as np

from p2pjax.types import InputError

_INT32 = np.iinfo(np.int32)


def as_inputs(x: Any) -> np.ndarray:
    """Numbers `[E, ...]` as uint8, int32 or float32."""
    array = _as_array(x, "x", "buif", "numbers")
    if array.ndim < 2 and array.size:
        raise InputError(
            f"Need x of shape [examples, ...], got {list(array.shape)}: a single "
            "number per example is x[:, None]."
        )
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind in "ui":
        if array.size and (array.min() < _INT32.min or array.max() > _INT32.max):
            raise InputError(
                f"Need whole numbers x that fit int32, got {array.min()} to "
                f"{array.max()}: convert them to float32."
            )
        return array.astype(np.int32)
    with np.errstate(over="ignore"):  # too large becomes infinite: refused below
        array = array.astype(np.float32, copy=False)
    num_bad = np.count_nonzero(~np.isfinite(array))
    if num_bad:
        raise InputError(
            f"Need finite float32 numbers x, got {num_bad} that are NaN or infinite: "
            "fill them or drop their examples."
        )
    return array


def as_labels(y: Any) -> np.ndarray:
    """Class numbers `[E]` as int32; names of classes are numbered in sorted order."""
    array = _as_array(y, "y", "buiUS", "whole numbers or names")
    if array.ndim != 1:
        raise InputError(
            f"Need y of shape [examples], got {list(array.shape)}: give the number of "
            "each example's class, for example y.argmax(-1) of one-hot labels."
        )
    if array.dtype.kind in "US":
        names, array = np.unique(array, return_inverse=True)
        if len(names) and not names[0]:
            raise InputError(
                "Need the name of each example's class as y, got "
                f"{np.count_nonzero(array == 0)} empty ones: fill or drop them."
            )
    if array.size and (array.min() < 0 or array.max() >= _INT32.max):
        raise InputError(
            f"Need labels y that number the classes from 0, got {array.min()} to "
            f"{array.max()}: np.unique(y, return_inverse=True)[1] numbers them so."
        )
    return array.astype(np.int32)


def as_users(users: Any) -> np.ndarray:
    """The user of each example, `[E]`: whole numbers or names."""
    array = _as_array(users, "users", "buiUS", "whole numbers or names")
    if array.ndim != 1:
        raise InputError(
            f"Need users of shape [examples], got {list(array.shape)}: give one per "
            "example."
        )
    return array


def _as_array(values: Any, name: str, kinds: str, wanted: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError as error:  # of lists whose parts differ in length
        raise InputError(
            f"Need {name} as an array of {wanted}, got parts of different shapes: give "
            "all examples the same shape."
        ) from error
    if array.size and array.dtype.kind not in kinds:
        raise InputError(
            f"Need {name} as an array of {wanted}, got dtype {array.dtype}: convert it."
        )
    return array
