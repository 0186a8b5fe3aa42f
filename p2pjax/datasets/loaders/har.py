"""Human activities by smartphone: what a person is doing, by person.

D. Anguita et al. (2013), "A public domain dataset for human activity recognition using
smartphones". 30 people wear a phone at the waist; an example is 561 features of 2.56
seconds of its motion. `synthetic` stands in where the files are not at hand.
"""

from pathlib import Path

import numpy as np

from p2pjax.datasets.loaders.arrays import (
    as_features,
    as_labels,
    as_users,
    check_lengths,
    number_names,
)
from p2pjax.datasets.loaders.files import find_archive, not_found, reading
from p2pjax.datasets.loaders.npz import read_arrays
from p2pjax.datasets.loaders.text_files import read_text
from p2pjax.datasets.stacking import Examples
from p2pjax.host_memory import check_room
from p2pjax.types import InputError

CLASSES = (  # the class id is the position; published from 1
    "walking",
    "walking upstairs",
    "walking downstairs",
    "sitting",
    "standing",
    "laying",
)


NUM_FEATURES = 561


DATASET = "Human activity recognition"


PARTS = ("train", "test")  # of the published folder; no person is in both


CONTENT = "the published features of motion"


# The synthetic people: everything is relative to the noise of one feature.
_CENTER_SPREAD = 0.14  # of the classes' centres, per feature


_OWN_SPREAD = 0.14  # of what a person adds to each centre


_SHIFT = 0.5  # of all features of a person


_SCALE = 0.4  # of the whole, before it is squeezed into -1 .. 1


def load(data_dir: str | Path) -> Examples:
    """Loads the examples of all people; users keep the published numbers.

    Args:
        data_dir: an npz archive, or a folder with one uci_har*.npz, of x (floats
            [E, 561]), y (0..5) and user; or the published folder, with X_train.txt,
            y_train.txt and subject_train.txt in its folder train and, unless it is
            left out, the same of test.

    Returns:
        The examples, x as float32; `is_test` is not set, because the published parts
        have different people.

    Raises:
        InputError: nothing found, or a file cannot be used.
    """
    path = Path(data_dir)
    parts = [part for part in PARTS if (path / part / f"X_{part}.txt").exists()]
    if parts:
        texts = [_read_part(path / part, part) for part in parts]
        x, y, user = (np.concatenate(same) for same in zip(*texts, strict=True))
        return Examples(x, y, user, len(CLASSES))
    if path.is_dir() and not list(path.glob("uci_har*.npz")):
        wanted = ("train/X_train.txt", "one uci_har*.npz")
        raise not_found(path, wanted, DATASET)
    path = find_archive(path, "uci_har*.npz", DATASET)
    arrays = read_arrays(path, ("x", "y", "user"))
    return Examples(*_checked(arrays, str(path)), len(CLASSES))


def _read_part(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    arrays = {
        "x": _read_table(folder / f"X_{part}.txt", np.float32),
        "y": _read_table(folder / f"y_{part}.txt", np.int64).reshape(-1) - 1,
        "user": _read_table(folder / f"subject_{part}.txt", np.int64).reshape(-1),
    }
    return _checked(arrays, str(folder))


def _read_table(path: Path, dtype: type) -> np.ndarray:
    content = "a table of numbers"
    lines = read_text(path, content).splitlines()
    with reading(path, content, ValueError):
        return np.loadtxt(lines, dtype=dtype, ndmin=2)


def _checked(
    arrays: dict[str, np.ndarray], source: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = as_features(arrays["x"], NUM_FEATURES, CONTENT, source)
    y = as_labels(arrays["y"], len(CLASSES), source)
    user = as_users(number_names(arrays["user"], source, "user"), source)
    check_lengths(source, x=x, y=y, user=user)
    return x, y, user


def synthetic(num_people: int = 30, size: int = 300, seed: int = 0) -> Examples:
    """Made-up examples of the same shape: six classes, people who differ.

    Not a model of motion. Every class is a normal cloud around a centre that all people
    share, to which each person adds something of its own, and a shift common to all
    its classes. Classes are equally frequent, up to one.

    Person u's examples follow from the seed, u and size, not from num_people.

    Args:
        num_people: users, numbered from 0.
        size: examples of each.
        seed: 0 or more.

    Raises:
        InputError: no people or no examples.
    """
    if num_people < 1 or size < 1 or seed < 0:
        raise InputError(
            "Need at least one person, one example of each and a seed of 0 or more, "
            f"got {num_people} people, {size} examples and seed {seed}."
        )
    shape = (len(CLASSES), NUM_FEATURES)
    centers = np.random.default_rng([seed, 0]).normal(scale=_CENTER_SPREAD, size=shape)
    # As they are, and three times as doubles while those of one person are drawn.
    num_bytes = size * NUM_FEATURES * (4 * num_people + 3 * 8)
    check_room(num_bytes, f"{size} examples of each of {num_people} people")
    x = np.empty((num_people, size, NUM_FEATURES), np.float32)
    y = np.empty((num_people, size), np.int32)
    for person in range(num_people):
        rng = np.random.default_rng([seed, 1, person])
        labels = rng.permutation(np.arange(size) % len(CLASSES))
        own = centers + rng.normal(scale=_OWN_SPREAD, size=shape)
        own = own + rng.normal(scale=_SHIFT, size=NUM_FEATURES)
        x[person] = np.tanh(_SCALE * (own[labels] + rng.normal(size=(size, shape[1]))))
        y[person] = labels
    return Examples(
        x.reshape(-1, NUM_FEATURES),
        y.reshape(-1),
        np.repeat(np.arange(num_people, dtype=np.int32), size),
        len(CLASSES),
    )
