"""Points of four categories in the plane, of which each of three machines has two.

The toy of T. Leleu and C. Cerisara (2020), "Federated curvature and multi-task
federated machine learning": three groups of points, one test with four categories. Its
numbers are not printed; centres, spread and sizes here are ours. Generated, nothing to
download.
"""

import numpy as np

from p2pjax.datasets import partition
from p2pjax.datasets.stacking import Examples
from p2pjax.host_memory import check_room
from p2pjax.types import FederatedData, InputError

CENTERS = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [-1.0, 1.0]])


SPREAD = 0.9  # no classifier can tell more than 75.12 % of the points apart


NUM_MACHINES = 3


def points(rng: np.random.Generator, sizes: np.ndarray) -> Examples:
    """So many points of every category, category by category.

    Args:
        rng: source of everything random.
        sizes: [4].
    """
    y = np.repeat(np.arange(len(CENTERS), dtype=np.int32), sizes)
    x = CENTERS[y] + rng.normal(scale=SPREAD, size=(len(y), 2))
    return Examples(x.astype(np.float32), y, np.zeros_like(y), len(CENTERS))


def world(
    rng: np.random.Generator, train_size: int = 300, test_size: int = 400
) -> FederatedData:
    """Machine s has points of categories s and s + 1; all are tested on all four.

    Args:
        rng: source of everything random.
        train_size: points of every machine, half of each of its categories.
        test_size: points of the common test, a quarter of each category.

    Raises:
        InputError: sizes that cannot be divided so.
    """
    if train_size < 2 or train_size % 2 or test_size < 4 or test_size % 4:
        raise InputError(
            "Need a multiple of 2 training points of every machine and a multiple of 4 "
            f"test points, got {train_size} and {test_size}."
        )
    # Of each point two doubles and their noise, two floats, apart and together.
    num_points = NUM_MACHINES * train_size + test_size
    check_room(num_points * (2 * 2 * 8 + 2 * 2 * 4), f"{num_points} points")
    tests = points(rng, np.full(4, test_size // 4))
    parts, train = [tests], []
    start = test_size
    for machine in range(NUM_MACHINES):
        sizes = np.zeros(4, int)
        sizes[[machine, machine + 1]] = train_size // 2
        parts.append(points(rng, sizes))
        train.append(start + rng.permutation(train_size))
        start += train_size
    x = np.concatenate([part.x for part in parts])
    y = np.concatenate([part.y for part in parts])
    together = Examples(x, y, np.zeros_like(y), len(CENTERS))
    return partition.federated_data(
        together, train, [np.arange(test_size)] * NUM_MACHINES
    )
