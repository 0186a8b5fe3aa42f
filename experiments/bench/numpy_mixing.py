"""Mixing by scipy's sparse matrix product."""

from collections.abc import Callable

import numpy as np
from scipy import sparse

from experiments.bench import inputs


def whole(num_agents: int, num_columns: int, degree: int) -> Callable[[], float]:
    """Counts mixes."""
    ids = inputs.peer_ids(num_agents, degree)
    rows = np.repeat(np.arange(num_agents), ids.shape[1])
    weight = np.full(ids.size, 1 / ids.shape[1], np.float32)
    shape = (num_agents, num_agents)
    matrix = sparse.csr_matrix((weight, (rows, ids.ravel())), shape)
    held = np.ones((num_agents, num_columns), np.float32)

    def run() -> float:
        nonlocal held
        held = matrix @ held
        return 1.0

    return run
