"""Points of four categories in the plane, of which each of three machines has two.

The toy of T. Leleu and C. Cerisara (2020), "Federated curvature and multi-task
federated machine learning": three groups of points, one test with four categories. Its
numbers are not printed; centres, spread and sizes here are ours. Generated, nothing to
download.
"""

from typing import NamedTuple

import numpy as np

from p2pjax.datasets import partition
from p2pjax.datasets.stacking import Examples
from p2pjax.host_memory import check_room
from p2pjax.types import FederatedData, InputError

CENTERS = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]])


SPREAD = 0.9  # no classifier can tell more than 75.12 % of the points apart


NUM_MACHINES = 3


class Geometry(NamedTuple):
    """Where the four categories lie, and which two each machine has."""

    centers: np.ndarray  # [4, 2]
    spread: float
    held: tuple[tuple[int, int], ...]  # two categories of each machine


# On a line neighbours are as far apart as makes .7512 of the points tellable, too.
_LINE = np.array([[-3.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [3.0, 0.0]])


GEOMETRIES = {
    "square": Geometry(CENTERS, SPREAD, ((0, 1), (1, 2), (2, 3))),  # ours at first
    "diagonals": Geometry(CENTERS, SPREAD, ((0, 2), (1, 3), (2, 3))),  # far apart
    "star": Geometry(CENTERS, SPREAD, ((0, 1), (0, 2), (0, 3))),  # all have one of them
    "line": Geometry(_LINE, 1.0302, ((0, 1), (1, 2), (2, 3))),  # neighbours
}


def points(
    rng: np.random.Generator, sizes: np.ndarray, geometry: str = "square"
) -> Examples:
    """So many points of every category, category by category.

    Args:
        rng: source of everything random.
        sizes: [4].
        geometry: one of `GEOMETRIES`.
    """
    centers, spread, _ = GEOMETRIES[geometry]
    y = np.repeat(np.arange(len(CENTERS), dtype=np.int32), sizes)
    x = centers[y] + rng.normal(scale=spread, size=(len(y), 2))
    return Examples(x.astype(np.float32), y, np.zeros_like(y), len(CENTERS))


def world(
    rng: np.random.Generator,
    train_size: int = 300,
    test_size: int = 400,
    geometry: str = "square",
) -> FederatedData:
    """Each machine has points of two categories; all are tested on all four.

    In a square machine s has categories s and s + 1.

    Args:
        rng: source of everything random.
        train_size: points of every machine, half of each of its categories.
        test_size: points of the common test, a quarter of each category.
        geometry: one of `GEOMETRIES`.

    Raises:
        InputError: sizes that cannot be divided so, or no such geometry.
    """
    if geometry not in GEOMETRIES:
        raise InputError(
            f"Need a geometry among {', '.join(GEOMETRIES)}, got {geometry}."
        )
    if train_size < 2 or train_size % 2 or test_size < 4 or test_size % 4:
        raise InputError(
            "Need a multiple of 2 training points of every machine and a multiple of 4 "
            f"test points, got {train_size} and {test_size}."
        )
    # Of each point two doubles and their noise, two floats, apart and together.
    num_points = NUM_MACHINES * train_size + test_size
    check_room(num_points * (2 * 2 * 8 + 2 * 2 * 4), f"{num_points} points")
    tests = points(rng, np.full(4, test_size // 4), geometry)
    parts, train = [tests], []
    start = test_size
    for machine in range(NUM_MACHINES):
        sizes = np.zeros(4, int)
        sizes[list(GEOMETRIES[geometry].held[machine])] = train_size // 2
        parts.append(points(rng, sizes, geometry))
        train.append(start + rng.permutation(train_size))
        start += train_size
    x = np.concatenate([part.x for part in parts])
    y = np.concatenate([part.y for part in parts])
    together = Examples(x, y, np.zeros_like(y), len(CENTERS))
    return partition.federated_data(
        together, train, [np.arange(test_size)] * NUM_MACHINES
    )
