"""Splits by label: which rows of a data set each agent gets.

Those of Sajina (2025) and Dirichlet shares (Hsu et al. 2019). Each returns row
numbers per agent, for `partition.federated_data`; no two agents share a
row. `split` has them in the form that `federate` takes.
"""

from collections.abc import Sequence

import numpy as np

from p2pjax.types import InputError

_MAX_DRAWS = 1000  # of Dirichlet shares, until each agent has enough


def iid(y: np.ndarray, rng: np.random.Generator, num_agents: int) -> list[np.ndarray]:
    """Shuffled and cut into equal parts."""
    _check_size(y, num_agents)
    return _equal_parts(rng.permutation(len(y)), num_agents)


def pathological(
    y: np.ndarray, rng: np.random.Generator, num_agents: int, shards_per_agent: int = 2
) -> list[np.ndarray]:
    """Sorted by label and cut into shards; each agent gets a few at random.

    Args:
      y: labels `[E]`.
      rng: source of everything random.
      num_agents: N.
      shards_per_agent: how many shards each agent gets.
    """
    num_shards = num_agents * shards_per_agent
    _check_size(y, num_shards)
    shards = _equal_parts(np.argsort(y, kind="stable"), num_shards)
    order = rng.permutation(num_shards).reshape(num_agents, shards_per_agent)
    return [np.concatenate([shards[shard] for shard in own]) for own in order]


def dominant_classes(
    y: np.ndarray,
    rng: np.random.Generator,
    num_agents: int,
    *,
    num_clusters: int = 5,
    dominant: float = 0.8,
    other: float = 0.05,
    same_number: bool = False,
) -> list[np.ndarray]:
    """Each cluster of agents has most of a few classes and a little of the others.

    Agents are numbered cluster by cluster, and classes are dealt to the clusters in
    order.

    Args:
      y: labels `[E]`, from 0.
      rng: source of everything random.
      num_agents: N, a multiple of the clusters.
      num_clusters: which divide the classes evenly.
      dominant: share of a class that goes to the cluster it belongs to.
      other: share that goes to each of the other clusters. 0.05 uses everything up;
        the thesis' split of MNIST has 0.04.
      same_number: whether agents of a cluster get the same number of rows of a class,
        and what does not divide evenly is not used; if not, some get one more.
    """
    num_classes = int(y.max()) + 1
    if num_agents % num_clusters or num_classes % num_clusters:
        raise InputError(
            f"Need clusters that divide {num_agents} agents and {num_classes} classes "
            f"evenly, got {num_clusters}."
        )
    if dominant < 0 or other < 0 or dominant + (num_clusters - 1) * other > 1 + 1e-9:
        raise InputError(
            f"Need shares of a class that add up to at most 1, got {dominant} and "
            f"{num_clusters - 1} times {other}."
        )
    per_cluster = num_agents // num_clusters
    rows: list[list[np.ndarray]] = [[] for _ in range(num_agents)]
    for label in range(num_classes):
        own = rng.permutation(np.flatnonzero(y == label))
        home = label // (num_classes // num_clusters)
        start = 0
        for cluster in range(num_clusters):
            share = dominant if cluster == home else other
            stop = start + round(share * len(own))
            mine = own[start:stop]
            if same_number:
                mine = mine[: len(mine) // per_cluster * per_cluster]
            start = stop
            for place, part in enumerate(np.array_split(mine, per_cluster)):
                rows[cluster * per_cluster + place].append(part)
    return [np.concatenate(parts) for parts in rows]


def clustered_classes(
    y: np.ndarray,
    rng: np.random.Generator,
    num_agents: int,
    labels: Sequence[Sequence[int]],
) -> list[np.ndarray]:
    """Each cluster of agents has classes of its own, dealt evenly to its agents.

    Agents are numbered cluster by cluster. One cluster of all classes is the even split
    of every class, of which rotated images and swapped labels make clusters; pairs of
    classes are the pathological split of the thesis' study of connections.

    Args:
      y: labels `[E]`.
      rng: source of everything random.
      num_agents: N, a multiple of the clusters.
      labels: the classes of every cluster.
    """
    per_cluster, rest = divmod(num_agents, len(labels))
    if rest or not per_cluster:
        raise InputError(
            f"Need a number of agents that {len(labels)} clusters can share equally, "
            f"got {num_agents}: make it a multiple of {len(labels)}."
        )
    rows: list[list[np.ndarray]] = [[] for _ in range(num_agents)]
    for cluster, own_labels in enumerate(labels):
        for label in own_labels:
            own = rng.permutation(np.flatnonzero(y == label))
            if len(own) < per_cluster:
                raise InputError(
                    f"Need an example of class {label} for each of {per_cluster} "
                    f"agents, got {len(own)}: lower the number of agents."
                )
            parts = np.array_split(own, per_cluster)
            # Which agents get one more, where parts are not equal, is chance.
            places = cluster * per_cluster + rng.permutation(per_cluster)
            for place, part in zip(places, parts, strict=True):
                rows[place].append(part)
    return [rng.permutation(np.concatenate(parts)) for parts in rows]


def dirichlet(
    y: np.ndarray,
    rng: np.random.Generator,
    num_agents: int,
    alpha: float,
    *,
    min_size: int = 0,
) -> list[np.ndarray]:
    """The agents' shares of each class are drawn from a Dirichlet distribution.

    Small `alpha` gives few agents most of a class, large `alpha` equal shares.

    Args:
      y: labels `[E]`.
      rng: source of everything random.
      num_agents: N.
      alpha: above 0.
      min_size: all shares are drawn anew, at most 1000 times, until each agent has so
        many rows. With 0 agents may end up with few rows or none; `split.dirichlet`
        asks for as many as an agent needs.
    """
    if not alpha > 0:
        raise InputError(f"Need a positive alpha, got {alpha}.")
    _check_size(y, num_agents)
    if len(y) >= num_agents * min_size:
        for _ in range(_MAX_DRAWS):
            rows = _dirichlet_once(y, rng, num_agents, alpha)
            if min(map(len, rows)) >= min_size:
                return rows
    raise InputError(
        f"Need at least {min_size} examples for each of {num_agents} agents, got fewer "
        f"in each draw of {len(y)} examples with alpha {alpha}: raise alpha, or lower "
        "the number of agents or min_size."
    )


def _dirichlet_once(
    y: np.ndarray, rng: np.random.Generator, num_agents: int, alpha: float
) -> list[np.ndarray]:
    rows: list[list[np.ndarray]] = [[] for _ in range(num_agents)]
    for label in np.unique(y):
        own = rng.permutation(np.flatnonzero(y == label))
        shares = np.cumsum(rng.dirichlet(np.full(num_agents, alpha)))
        cuts = np.round(shares[:-1] * len(own)).astype(int)
        for agent, part in enumerate(np.split(own, cuts)):
            rows[agent].append(part)
    return [np.concatenate(parts) for parts in rows]


def dirichlet_equal_sizes(
    y: np.ndarray, rng: np.random.Generator, num_agents: int, alpha: float
) -> list[np.ndarray]:
    """Agents of one size, whose shares of labels are drawn from a Dirichlet law.

    As Hsu et al. (2019) do: each agent in turn, in a random order, draws its examples
    one by one from classes with its own shares, those that are used up left out. So
    later agents get what is left. Fewer than N examples are not used.

    Args:
      y: labels `[E]`.
      rng: source of everything random.
      num_agents: N.
      alpha: above 0; small values give each agent few classes.

    >>> y = np.arange(1000) % 10
    >>> rows = dirichlet_equal_sizes(y, np.random.default_rng(0), 8, 0.1)
    >>> set(map(len, rows)), len(set(np.concatenate(rows).tolist()))
    ({125}, 1000)
    """
    if not alpha > 0:
        raise InputError(f"Need a positive alpha, got {alpha}.")
    _check_size(y, num_agents)
    left = [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]
    rows: list[np.ndarray] = [np.empty(0, int)] * num_agents
    for agent in rng.permutation(num_agents):
        shares = rng.dirichlet(np.full(len(left), alpha))
        wanted, own = len(y) // num_agents, []
        while wanted:
            sizes = np.asarray([len(rest) for rest in left])
            chances = np.where(sizes > 0, shares, 0.0)
            if not chances.sum() > 1e-12:  # none of its classes is left
                chances = sizes.astype(float)
            drawn = rng.multinomial(wanted, chances / chances.sum())
            for label, number in enumerate(np.minimum(drawn, sizes)):
                own.append(left[label][:number])
                left[label] = left[label][number:]
                wanted -= int(number)
        rows[agent] = np.concatenate(own)
    return rows


def histograms(y: np.ndarray, rows: list[np.ndarray], num_classes: int) -> np.ndarray:
    """How often each agent has each label, `[N, k]`."""
    return np.stack([np.bincount(y[own], minlength=num_classes) for own in rows])


def _equal_parts(rows: np.ndarray, num_parts: int) -> list[np.ndarray]:
    """Parts of the same size; rows that are left over are not used."""
    size = len(rows) // num_parts
    return list(rows[: size * num_parts].reshape(num_parts, size))


def _check_size(y: np.ndarray, num_parts: int) -> None:
    if num_parts < 1 or len(y) < num_parts:
        raise InputError(
            f"Need at least one example for each of {num_parts} parts, got {len(y)}: "
            "lower the number of agents."
        )
