"""How the examples of a data set are split among agents: `pj.split`.

Each function returns a `Splitter`, for `federate` and the functions of `pj.datasets`:

    >>> import p2pjax.datasets as datasets
    >>> data = datasets.digits(num_agents=10, split=practical(num_clusters=5))
    >>> data.cluster.tolist()
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]

A split of your own is a function of a `Request`, which tells what there is to split,
and of the source of everything random; it returns an `Assignment`:

    >>> import numpy as np
    >>> def odd_and_even(request, rng):
    ...     rows = [np.flatnonzero(request.y % 2 == n) for n in range(2)]
    ...     return Assignment(rows, cluster=np.arange(2))
    >>> data = datasets.digits(num_agents=2, split=odd_and_even)
    >>> set((data.test.examples["y"][0] % 2).tolist())
    {0}
"""

from p2pjax.datasets._assignment import Assignment, Request, Splitter
from p2pjax.datasets._cluster_shifts import (
    permuted,
    permuted_features,
    rotated,
    swapped,
)
from p2pjax.datasets._row_splits import (
    by_user,
    clustered_classes,
    dirichlet,
    iid,
    pathological,
    practical,
)

__all__ = [
    "Assignment",
    "Request",
    "Splitter",
    "by_user",
    "clustered_classes",
    "dirichlet",
    "iid",
    "pathological",
    "permuted",
    "permuted_features",
    "practical",
    "rotated",
    "swapped",
]

# None of them is a splitter before it is called: `federate` says so.
CONSTRUCTORS = (
    by_user,
    clustered_classes,
    dirichlet,
    iid,
    pathological,
    permuted,
    permuted_features,
    practical,
    rotated,
    swapped,
)
