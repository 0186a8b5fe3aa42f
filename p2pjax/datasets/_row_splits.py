"""Splits that say who gets which examples."""

import math
from collections.abc import Sequence

import numpy as np

from p2pjax.datasets import label_skew
from p2pjax.datasets._assignment import (
    Assignment,
    Request,
    Splitter,
    blocks,
    check_clusters,
    required_agents,
)
from p2pjax.types import InputError


def by_user() -> Splitter:
    """One user per agent, with all examples of that user.

    Agents are in the order of the users' ids. Without `num_agents` each user is an
    agent, with it the users who have most examples are (ties in the order of ids).

    >>> import p2pjax.datasets as datasets
    >>> x, y = np.zeros((6, 2)), np.array([0, 1, 0, 1, 0, 1])
    >>> users = ["ann", "bob", "ann", "bob", "ann", "bob"]
    >>> datasets.federate(x, y, users, split=by_user()).train.size.tolist()
    [2, 2]
    """

    def split(request: Request, rng: np.random.Generator) -> Assignment:
        if request.users is None:
            raise InputError(
                "Need to know the users to split by user, got none: give users, or "
                "another split such as split.iid()."
            )
        users, sizes = np.unique(request.users, return_counts=True)
        count = len(users) if request.num_agents is None else request.num_agents
        if count > len(users):
            raise InputError(
                f"Need {count} users, one per agent, but the data has {len(users)}: "
                "lower num_agents."
            )
        chosen = np.sort(np.argsort(-sizes, kind="stable")[:count])
        smallest = chosen[sizes[chosen].argmin()]
        if sizes[smallest] < request.min_size:
            enough = np.count_nonzero(sizes >= request.min_size)
            raise InputError(
                f"Need {request.min_size} examples or more of each user, but user "
                f"{users[smallest]} has {sizes[smallest]}: give num_agents, at most "
                f"{enough}, to take the largest users."
            )
        return Assignment([np.flatnonzero(request.users == users[n]) for n in chosen])

    return split


def iid() -> Splitter:
    """Equal parts of the shuffled examples: agents differ by chance only.

    What cannot be divided equally, fewer than N examples, is left out.

    >>> import p2pjax.datasets as datasets
    >>> datasets.digits(num_agents=10, split=iid()).train.size.tolist()
    [143, 143, 143, 143, 143, 143, 143, 143, 143, 143]
    """

    def split(request: Request, rng: np.random.Generator) -> Assignment:
        return Assignment(label_skew.iid(request.y, rng, required_agents(request)))

    return split


def dirichlet(
    alpha: float, min_size: int = 2, *, equal_sizes: bool = False
) -> Splitter:
    """The agents' shares of each class are drawn from a Dirichlet distribution.

    Hsu, Qi, Brown (2019), "Measuring the effects of non-identical data distribution for
    federated visual classification", https://arxiv.org/abs/1909.06335. All examples are
    used. A draw that leaves an agent with fewer than `min_size` examples is drawn anew,
    at most 1000 times.

    >>> import p2pjax.datasets as datasets
    >>> data = datasets.digits(num_agents=16, split=dirichlet(0.3), seed=0)
    >>> int(data.train.size.sum() + data.test.size.sum())
    1797

    Args:
      alpha: above 0. Small values give few agents most of a class, large ones equal
        shares.
      min_size: examples of each agent; one to train, one to test and, if validation
        examples are asked for, one to validate are needed anyway.
      equal_sizes: whether each agent has as many examples as the others, and draws its
        own shares of the classes, as in the paper; else the agents' shares of each
        class are drawn, and with them their sizes.
    """
    if not (alpha > 0 and math.isfinite(alpha)):
        raise InputError(f"Need a positive alpha, got {alpha}: try 0.3.")
    if min_size < 0:
        raise InputError(f"Need a min_size of 0 or more, got {min_size}: raise it.")

    def split(request: Request, rng: np.random.Generator) -> Assignment:
        if equal_sizes:
            number = required_agents(request)
            needed = max(min_size, request.min_size)
            if len(request.y) // number < needed:
                raise InputError(
                    f"Need at least {needed} examples for each of {number} agents, "
                    f"got {len(request.y)} in all: lower the number of agents."
                )
            return Assignment(
                label_skew.dirichlet_equal_sizes(request.y, rng, number, alpha)
            )
        return Assignment(
            label_skew.dirichlet(
                request.y,
                rng,
                required_agents(request),
                alpha,
                min_size=max(min_size, request.min_size),
            )
        )

    return split


def pathological(shards_per_agent: int = 2) -> Splitter:
    """Sorted by label and cut into shards of equal size; each agent gets a few.

    McMahan et al. (2017), "Communication-efficient learning of deep networks from
    decentralized data", https://arxiv.org/abs/1602.05629. Examples of a class are
    shuffled. What cannot be divided equally is left out.

    >>> import p2pjax.datasets as datasets
    >>> data = datasets.digits(num_agents=10, split=pathological())
    >>> max(len(set(y)) for y in data.train.examples["y"].tolist()) <= 4
    True

    Args:
      shards_per_agent: 1 or more. A shard has one class, or two where classes meet.
    """
    if shards_per_agent < 1:
        raise InputError(
            f"Need one shard per agent or more, got {shards_per_agent}: try 2."
        )

    def split(request: Request, rng: np.random.Generator) -> Assignment:
        order = rng.permutation(len(request.y))
        shards = label_skew.pathological(
            request.y[order], rng, required_agents(request), shards_per_agent
        )
        return Assignment([order[rows] for rows in shards])

    return split


def practical(
    num_clusters: int = 5, dominant: float = 0.8, other: float | None = None
) -> Splitter:
    """Each cluster of agents has most of a few classes and a little of the others.

    The practical heterogeneous setting of Huang et al. (2021), "Personalized cross-silo
    federated learning on non-IID data", https://arxiv.org/abs/2007.03797. Agents are
    numbered cluster by cluster, classes are dealt to the clusters in order.

    >>> import p2pjax.datasets as datasets
    >>> data = datasets.digits(num_agents=10, split=practical(), seed=0)
    >>> own = data.train.examples["y"][0, :data.train.size[0]]
    >>> bool((own <= 1).mean() > 0.7)
    True

    Args:
      num_clusters: which divides the agents and the classes evenly.
      dominant: share of a class that goes to the cluster it belongs to.
      other: share that goes to each of the other clusters; None divides what is left
        equally, so that all examples are used (up to rounding).
    """
    check_clusters(num_clusters)
    if other is None:
        other = 0.0 if num_clusters == 1 else (1 - dominant) / (num_clusters - 1)
    share = other

    def split(request: Request, rng: np.random.Generator) -> Assignment:
        count = required_agents(request)
        rows = label_skew.dominant_classes(
            request.y,
            rng,
            count,
            num_clusters=num_clusters,
            dominant=dominant,
            other=share,
        )
        return Assignment(rows, blocks(count, num_clusters))

    return split


def clustered_classes(labels: Sequence[Sequence[int]]) -> Splitter:
    """Each cluster of agents has classes of its own, dealt evenly to its agents.

    Agents are numbered cluster by cluster. Examples of classes that are in no cluster
    are left out.

    >>> import p2pjax.datasets as datasets
    >>> halves = clustered_classes([(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)])
    >>> datasets.digits(num_agents=4, split=halves).cluster.tolist()
    [0, 0, 1, 1]

    Args:
      labels: the classes of each cluster; the number of clusters divides the agents
        evenly.
    """
    owned = [tuple(own) for own in labels]
    every = [label for own in owned for label in own]
    if not owned or not all(owned) or len(set(every)) < len(every):
        raise InputError(
            "Need one class or more of each cluster and no class in two of them, got "
            f"{owned}."
        )

    def split(request: Request, rng: np.random.Generator) -> Assignment:
        count = required_agents(request)
        rows = label_skew.clustered_classes(request.y, rng, count, owned)
        return Assignment(rows, blocks(count, len(owned)))

    return split
