"""How far mixings leave agents from agreement: of matrices, on the host.

`analysis` asks these questions of graphs.
"""

from typing import NamedTuple

import numpy as np

# Below this part of what it was before a mixing, disagreement is round-off of float32.
ROUND_OFF = 1e-5


class Disagreement(NamedTuple):
    """What is left after a sequence of mixings of how much models differ."""

    matrix: np.ndarray  # [N, N], scaled: models -> their differences from the mean
    log_scale: float  # of the factor it was divided by
    exact_after: int | None  # mixings after which all agents agree; None: never do


def disagreement(matrices: np.ndarray) -> Disagreement:
    """(I - J) times the product of row-stochastic matrices `[G, N, N]`.

    It is scaled after each mixing, so that long sequences do not end in round-off.
    """
    num_agents = matrices.shape[-1]
    left = np.eye(num_agents) - 1 / num_agents
    log_scale = 0.0
    size = np.linalg.norm(left)
    for number, matrix in enumerate(matrices):
        if size > 0:
            left, log_scale = left / size, log_scale + float(np.log(size))
        left = matrix @ left
        left -= left.mean(0)
        size = np.linalg.norm(left)
        if size <= ROUND_OFF:
            return Disagreement(np.zeros_like(left), 0.0, number + 1)
    return Disagreement(left, log_scale, None)


def per_mixing(size: float, log_scale: float, num_matrices: int) -> float:
    """A factor per mixing of one that a whole sequence has."""
    if size <= 0:
        return 0.0
    return float(np.exp((np.log(size) + log_scale) / num_matrices))


def de_biased(matrices: np.ndarray) -> np.ndarray:
    """Row-stochastic matrices of what push-sum makes of models, `[G, N, N]`.

    Models are divided by weights that are mixed along; where rows sum to 1 these stay
    1.
    """
    found, before = [], np.ones(matrices.shape[-1])
    for matrix in matrices:
        after = matrix @ before
        found.append(matrix * before / after[:, None])
        before = after
    return np.stack(found)
