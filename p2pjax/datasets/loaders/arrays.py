"""Checks and conversions of arrays that came out of a file.

Every function takes `source`, where the array came from, to say so in its errors.
"""

import numpy as np

from p2pjax.types import InputError

INT32_LIMIT = 2**31


def as_labels(
    values: np.ndarray, num_classes: int, source: str, name: str = "y"
) -> np.ndarray:
    """Class ids [E] as int32, checked to lie in 0 .. num_classes - 1."""
    advice = f"number the {num_classes} classes from 0 and drop other examples"
    return _whole_numbers(values, num_classes, source, name, advice)


def as_users(values: np.ndarray, source: str, name: str = "user") -> np.ndarray:
    """User ids [E] as int32, checked to be 0 or more."""
    return _whole_numbers(values, INT32_LIMIT, source, name, "number users from 0")


def number_names(values: np.ndarray, source: str, name: str) -> np.ndarray:
    """Names `[E]` (an array of strings) as numbers in their sorted order, from 0.

    `np.unique(values)[number]` gives the names back. All else stays as it is.

    Raises:
        InputError: some name is empty.
    """
    if values.dtype.kind not in "US" or values.ndim != 1:
        return values
    names, numbers = np.unique(values, return_inverse=True)
    if len(names) and not names[0]:
        raise InputError(
            f"{source}: {name} must have a name for each example, found "
            f"{np.count_nonzero(numbers == 0)} empty ones: fill or drop them"
        )
    return numbers.astype(np.int32)


def finite_floats(values: np.ndarray, source: str, name: str = "x") -> np.ndarray:
    """Floats as float32, checked to be finite."""
    with np.errstate(over="ignore"):  # too large becomes infinite: refused below
        values = values.astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise InputError(
            f"{source}: {name} must be finite float32 numbers, found "
            f"{np.count_nonzero(~np.isfinite(values))} NaN or infinite values: "
            "fill or drop them"
        )
    return values


def as_images(
    values: np.ndarray,
    source: str,
    name: str = "x",
    shape: tuple[int, ...] = (28, 28),
) -> np.ndarray:
    """Images [E, *shape], checked to be uint8 already."""
    if values.dtype != np.uint8 or values.shape[1:] != shape:
        raise InputError(
            f"{source}: {name} must be uint8 images [examples, "
            f"{', '.join(map(str, shape))}], found {values.dtype} "
            f"{list(values.shape)}: reshape it and scale it to 255"
        )
    return values


def as_features(
    x: np.ndarray, num_features: int, content: str, source: str
) -> np.ndarray:
    """Features [E, num_features] as float32, checked to be finite."""
    if x.dtype.kind != "f" or x.ndim != 2 or x.shape[1] != num_features:
        raise InputError(
            f"{source}: x must be floats [examples, {num_features}], {content}, found "
            f"{x.dtype} {list(x.shape)}: save these columns only"
        )
    return finite_floats(x, source)


def ink_from_paper(values: np.ndarray, source: str, name: str) -> np.ndarray:
    """Turns floats with paper 1 and ink 0 into uint8 with paper 0 and ink 255.

    Args:
        values: [E, 28, 28] or flat [E, 784], numbers in 0..1.
        source: where they came from.
        name: what they are called there.

    Returns:
        uint8 [E, 28, 28].
    """
    if values.dtype.kind not in "uif" or values.shape[1:] not in ((28, 28), (784,)):
        raise InputError(
            f"{source}: {name} must be numbers [examples, 28, 28] or [examples, 784], "
            f"found {values.dtype} {list(values.shape)}: resize the images"
        )
    if values.size and not (values.min() >= 0 and values.max() <= 1):  # NaN fails too
        raise InputError(
            f"{source}: {name} must be numbers in 0..1 with background 1, found "
            f"{values.min():g}..{values.max():g}: rescale them and remove NaN"
        )
    ink = np.rint((1 - values.astype(np.float64)) * 255)
    return ink.astype(np.uint8).reshape(-1, 28, 28)


def check_lengths(source: str, **arrays: np.ndarray) -> None:
    """Checks that all arrays have one entry per example, and that none is empty."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(
            f"{source}: {', '.join(arrays)} must have the same length, found {found}: "
            "give one entry per example in each"
        )
    empty = [name for name, array in arrays.items() if not array.size]
    if empty:
        raise InputError(
            f"{source}: at least one example is needed, and one number in each, found "
            f"none in {', '.join(empty)}: get the file again or choose other data"
        )


def _whole_numbers(
    values: np.ndarray, limit: int, source: str, name: str, advice: str
) -> np.ndarray:
    if values.ndim != 1:
        raise InputError(
            f"{source}: {name} must have shape [examples], found {list(values.shape)}: "
            "give one whole number per example"
        )
    if values.size and values.dtype.kind not in "ui":
        raise InputError(
            f"{source}: {name} must be whole numbers of an integer dtype, found "
            f"{values.dtype}: convert it, e.g. {name}.astype('int32')"
        )
    outside = values[(values < 0) | (values >= limit)] if values.size else values
    if outside.size:
        raise InputError(
            f"{source}: {name} must lie in 0..{limit - 1}, found {outside[0]} "
            f"({outside.size} such entries): {advice}"
        )
    return values.astype(np.int32)
