"""Splits whose clusters of agents see the world differently: turned, relabelled, ..."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from p2pjax.datasets import partition
from p2pjax.datasets._assignment import (
    Assignment,
    Request,
    Splitter,
    blocks,
    check_clusters,
)
from p2pjax.datasets._row_splits import iid
from p2pjax.types import FederatedData, InputError

# (data, [N] the cluster of each agent) -> what the clusters make of the data
Transform = Callable[[FederatedData, np.ndarray], FederatedData]


def rotated(num_clusters: int, base: Splitter = iid()) -> Splitter:
    """The images of each cluster of agents are turned, those of the first are not.

    Two clusters differ by half a turn, three and four by quarters. As in Ghosh et al.
    (2020), "An efficient framework for clustered federated learning",
    https://arxiv.org/abs/2006.04088. Agents are numbered cluster by cluster.

    >>> import p2pjax.datasets as datasets
    >>> datasets.digits(num_agents=4, split=rotated(2)).cluster.tolist()
    [0, 0, 1, 1]

    Args:
      num_clusters: 1 to 4; where it does not divide the agents evenly, clusters differ
        by one agent.
      base: who gets which examples. Agents of two clusters of the base stay apart.
    """
    turns = {1: (0,), 2: (0, 2), 3: (0, 1, 2), 4: (0, 1, 2, 3)}.get(num_clusters)
    if turns is None:
        raise InputError(
            f"Need 1 to 4 clusters, one per quarter turn, got {num_clusters}."
        )

    def transform(request: Request, rng: np.random.Generator) -> Transform:
        if len(request.shape) < 2 or request.shape[0] != request.shape[1]:
            raise InputError(
                f"Need square images to rotate, got inputs of shape "
                f"{list(request.shape)}: choose another split."
            )
        return lambda data, group: partition.rotate(data, np.take(turns, group))

    return _varied(num_clusters, base, transform)


def permuted(num_clusters: int, base: Splitter = iid()) -> Splitter:
    """The labels of each cluster of agents are permuted, those of the first are not.

    As in Sattler, Mueller, Samek (2020), "Clustered federated learning",
    https://arxiv.org/abs/1910.01991. Agents are numbered cluster by cluster; no two
    clusters have the same permutation.

    >>> import p2pjax.datasets as datasets
    >>> datasets.digits(num_agents=4, split=permuted(4)).cluster.tolist()
    [0, 1, 2, 3]

    Args:
      num_clusters: 1 or more.
      base: who gets which examples. Agents of two clusters of the base stay apart.
    """
    check_clusters(num_clusters)

    def transform(request: Request, rng: np.random.Generator) -> Transform:
        num_classes = int(request.y.max()) + 1
        tables = _distinct_orders(rng, num_classes, num_clusters, "classes")
        return lambda data, group: partition.relabel(data, tables[group])

    return _varied(num_clusters, base, transform)


def swapped(pairs: Sequence[tuple[int, int]], base: Splitter = iid()) -> Splitter:
    """Two labels are exchanged in each cluster of agents but the first.

    Agents are numbered cluster by cluster.

    >>> import p2pjax.datasets as datasets
    >>> swaps = swapped([(0, 1), (2, 3)])  # and a cluster that keeps its labels
    >>> datasets.digits(num_agents=6, split=swaps).cluster.tolist()
    [0, 0, 1, 1, 2, 2]

    Args:
      pairs: the labels that change places in clusters 1, 2, ...
      base: who gets which examples. Agents of two clusters of the base stay apart.
    """
    try:
        pairs = [(int(one), int(other)) for one, other in pairs]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Need pairs of two labels, such as [(0, 1)], got {pairs}."
        ) from error
    if not pairs or len({frozenset(pair) for pair in pairs if len(set(pair)) == 2}) < (
        len(pairs)
    ):
        raise InputError(
            f"Need pairs of two labels, no pair twice, got {pairs}: one per cluster "
            "beside the first, which keeps its labels."
        )

    def transform(request: Request, rng: np.random.Generator) -> Transform:
        num_classes = int(request.y.max()) + 1
        tables = np.tile(np.arange(num_classes), (len(pairs) + 1, 1))
        for cluster, (one, other) in enumerate(pairs, start=1):
            if min(one, other) < 0 or max(one, other) >= num_classes:
                raise InputError(
                    f"Need labels to swap from 0 to {num_classes - 1}, got {one} and "
                    f"{other}."
                )
            tables[cluster, [one, other]] = other, one
        return lambda data, group: partition.relabel(data, tables[group])

    return _varied(len(pairs) + 1, base, transform)


def permuted_features(num_clusters: int, base: Splitter = iid()) -> Splitter:
    """The inputs (pixels) of each cluster change places, those of the first do not.

    Permuted MNIST of Goodfellow et al. (2013), "An empirical investigation of
    catastrophic forgetting", https://arxiv.org/abs/1312.6211. Agents are numbered
    cluster by cluster; no two clusters have the same order.

    >>> import p2pjax.datasets as datasets
    >>> data = datasets.digits(num_agents=4, split=permuted_features(2))
    >>> data.train.examples["x"].shape[2:], data.cluster.tolist()
    ((8, 8, 1), [0, 0, 1, 1])

    Args:
      num_clusters: 1 or more; as many as agents gives each agent an order of its own.
      base: who gets which examples. Agents of two clusters of the base stay apart.
    """
    check_clusters(num_clusters)

    def transform(request: Request, rng: np.random.Generator) -> Transform:
        num_inputs = math.prod(request.shape)
        orders = _distinct_orders(rng, num_inputs, num_clusters, "inputs")
        return lambda data, group: partition.permute_features(data, orders[group])

    return _varied(num_clusters, base, transform)


def _varied(
    num_clusters: int,
    base: Splitter,
    transform: Callable[[Request, np.random.Generator], Transform],
) -> Splitter:
    """The base's agents in clusters of equal size, to which something is done."""

    def split(request: Request, rng: np.random.Generator) -> Assignment:
        inner = base(request, rng)
        count = len(inner.rows)
        if count < num_clusters:
            raise InputError(
                f"Need an agent or more in each of {num_clusters} clusters, got "
                f"{count} agents: raise num_agents or lower num_clusters."
            )
        group = blocks(count, num_clusters)
        change = transform(request, rng)

        def both(data: FederatedData) -> FederatedData:
            return change(inner.transform(data) if inner.transform else data, group)

        cluster = group
        if inner.cluster is not None:
            pairs = np.stack([inner.cluster, group], axis=1)
            cluster = partition.number_rows(pairs)
        return Assignment(inner.rows, cluster, both)

    return split


def _distinct_orders(
    rng: np.random.Generator, size: int, count: int, what: str
) -> np.ndarray:
    """`[count, size]`: different orders of the numbers from 0, the first sorted."""
    if size < 20 and count > math.factorial(size):
        raise InputError(
            f"Need a different order of {size} {what} for each of {count} clusters, "
            f"but there are {math.factorial(size)}: lower num_clusters."
        )
    found = {tuple(range(size)): None}
    while len(found) < count:
        found[tuple(rng.permutation(size).tolist())] = None
    return np.asarray(list(found))
