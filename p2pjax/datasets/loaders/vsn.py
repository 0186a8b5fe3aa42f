"""Vehicle sensor network: which of two vehicles passes, by sensor node.

M. F. Duarte and Y. H. Hu (2004), "Vehicle classification in distributed sensor
networks". 23 nodes hear and feel assault amphibian vehicles (AAV) and dragon wagons
(DW) go by; an example is 50 acoustic and 50 seismic features. `synthetic` stands in
where the file is not at hand.
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
from p2pjax.datasets.loaders.files import find_archive
from p2pjax.datasets.loaders.npz import read_arrays
from p2pjax.datasets.stacking import Examples
from p2pjax.host_memory import check_room
from p2pjax.types import FederatedData, InputError, Split

CLASSES = ("AAV", "DW")  # the class id is the position


NUM_FEATURES = 100  # 50 acoustic, then 50 seismic


# The synthetic sensors: everything is relative to the noise of one feature, and the
# whole is scaled to the spread of the real features at the end.
_NUM_MODES = 3  # ways in which a vehicle may sound, e.g. speeds


_MODE_SPREAD = 0.45  # of the centres of classes and modes, per feature


_TURN = 0.07  # entries of the matrix that turns a sensor's feature space


_SHIFT = 0.5  # of a sensor's features


_SCALE = 0.16


def load(data_dir: str | Path) -> Examples:
    """Loads the examples of all sensors; users keep the nodes' own numbers.

    Args:
        data_dir: an npz archive, or a folder with one vsn*.npz, of x (floats
            [E, 100]), y (0 AAV, 1 DW) and user (the sensor).

    Returns:
        The examples, x as float32, features as they are in the file.

    Raises:
        InputError: nothing found, or the file cannot be used.
    """
    path = find_archive(Path(data_dir), "vsn*.npz", "The vehicle sensor network")
    arrays = read_arrays(path, ("x", "y", "user"))
    source = str(path)
    x = as_features(
        arrays["x"], NUM_FEATURES, "50 acoustic and then 50 seismic features", source
    )
    y = as_labels(arrays["y"], len(CLASSES), source)
    user = as_users(number_names(arrays["user"], source, "user"), source)
    check_lengths(source, x=x, y=y, user=user)
    return Examples(x, y, user, len(CLASSES))


def synthetic(num_sensors: int = 23, size: int = 400, seed: int = 0) -> Examples:
    """Made-up examples of the same shape: two classes, sensors that differ.

    Not a model of vehicles. Each class has a few modes, normal clouds around centres
    that all sensors share. A sensor turns the feature space by a rotation of its own,
    a moderate one, and shifts every feature: what one sensor learned helps another,
    but not as much as learning itself. Classes are equally frequent, up to one.

    Sensor u's examples follow from the seed, u and size, not from num_sensors.

    Args:
        num_sensors: users, numbered from 0.
        size: examples of each.
        seed: 0 or more.

    Raises:
        InputError: no sensors or no examples.
    """
    if num_sensors < 1 or size < 1 or seed < 0:
        raise InputError(
            "Need at least one sensor, one example of each and a seed of 0 or more, "
            f"got {num_sensors} sensors, {size} examples and seed {seed}."
        )
    centers = np.random.default_rng([seed, 0]).normal(
        scale=_MODE_SPREAD, size=(len(CLASSES), _NUM_MODES, NUM_FEATURES)
    )
    # As they are, and four times as doubles while those of one sensor are drawn.
    num_bytes = size * NUM_FEATURES * (4 * num_sensors + 4 * 8)
    check_room(num_bytes, f"{size} examples of each of {num_sensors} sensors")
    x = np.empty((num_sensors, size, NUM_FEATURES), np.float32)
    y = np.empty((num_sensors, size), np.int32)
    for sensor in range(num_sensors):
        rng = np.random.default_rng([seed, 1, sensor])
        labels = rng.permutation(np.arange(size) % len(CLASSES))
        modes = rng.integers(0, _NUM_MODES, size)
        own = centers[labels, modes] + rng.normal(size=(size, NUM_FEATURES))
        shift = rng.normal(scale=_SHIFT, size=NUM_FEATURES)
        x[sensor] = (own @ _rotation(rng) + shift) * _SCALE
        y[sensor] = labels
    return Examples(
        x.reshape(-1, NUM_FEATURES),
        y.reshape(-1),
        np.repeat(np.arange(num_sensors, dtype=np.int32), size),
        len(CLASSES),
    )


def standardize(world: FederatedData) -> FederatedData:
    """Gives every feature of every agent's training set mean 0 and deviation 1.

    Each agent uses the statistics of its own training examples, for all its splits:
    it cannot see the others' data, and must not look at its tests. A feature that is
    constant in training is only shifted. Padding becomes zero.
    """
    x = np.asarray(world.train.examples["x"], np.float64)  # [N, M, features]
    real = _is_real(world.train)
    size = np.asarray(world.train.size, np.float64)[:, None, None]
    mean = np.where(real, x, 0).sum(1, keepdims=True) / size
    variance = np.where(real, np.square(x - mean), 0).sum(1, keepdims=True) / size
    deviation = np.sqrt(variance)
    # What rounding leaves of a constant feature is not a deviation.
    deviation = np.where(deviation > 1e-6 * np.abs(mean), deviation, 1)

    def apply(data: Split) -> Split:
        scaled = (np.asarray(data.examples["x"], np.float64) - mean) / deviation
        scaled = np.where(_is_real(data), scaled, 0).astype(np.float32)
        return data._replace(examples={**data.examples, "x": scaled})

    return world._replace(
        train=apply(world.train), valid=apply(world.valid), test=apply(world.test)
    )


def _is_real(data: Split) -> np.ndarray:
    """`[N, M, 1]`: not padding."""
    num_examples = data.examples["x"].shape[1]
    return (np.arange(num_examples) < np.asarray(data.size)[:, None])[..., None]


def _rotation(rng: np.random.Generator) -> np.ndarray:
    """A random rotation not far from none (Cayley transform), [100, 100]."""
    entries = rng.normal(scale=_TURN, size=(NUM_FEATURES, NUM_FEATURES))
    skew = (entries - entries.T) / 2
    identity = np.eye(NUM_FEATURES)
    return np.linalg.solve(identity - skew, identity + skew)
