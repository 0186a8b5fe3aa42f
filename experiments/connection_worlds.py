"""Agents in clusters: the synthetic and the realistic environments of Sajina (2025).

Agents are numbered cluster by cluster, and `FederatedData.cluster` says who belongs
where. `rotation` and `swap` deal every class evenly and then turn the images, or
exchange two labels, of all clusters but the first. `vehicles_animals` and
`pathological` give every cluster classes of its own, `practical` most of two classes
and a little of the others.
`text` takes users who write in one place: a subreddit, a group of plays, a topic.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from p2pjax.datasets import label_skew, partition, stacking
from p2pjax.datasets.loaders import cifar10, text
from p2pjax.datasets.loaders.text import Corpus, Documents
from p2pjax.datasets.stacking import Examples
from p2pjax.types import FederatedData, InputError

TURNS = {2: (0, 2), 4: (0, 1, 2, 3)}  # quarters, to the left
SWAPS = {2: ((0, 0), (0, 2)), 4: ((0, 0), (0, 1), (2, 3), (4, 5))}
IMAGE_STUDIES = ("rotation", "swap", "vehicles_animals", "pathological", "practical")
STUDIES = (*IMAGE_STUDIES, "text")
VARIED = ("rotation", "swap", "text")  # whose number of clusters can be chosen

# (labels, source of randomness) -> rows of every agent
Split = Callable[[np.ndarray, np.random.Generator], list[np.ndarray]]


class Setup(NamedTuple):
    """What the flags say about the agents and their data."""

    study: str
    num_clusters: int  # of the studies in VARIED
    num_agents: int
    train_size: int | None  # None is all there is
    proportional: bool  # how training examples are left out
    valid_share: float  # of the training examples of each class
    test_share: float  # of each class, where the data has no test part


def cluster_of(setup: Setup, num_classes: int) -> np.ndarray:
    """The true cluster of every agent, `[N]`."""
    labels = _labels_of_clusters(setup, num_classes)
    num_clusters = setup.num_clusters if setup.study in VARIED else len(labels)
    if setup.num_agents % num_clusters:
        raise InputError(
            f"Need a number of agents that {num_clusters} clusters can share equally, "
            f"got {setup.num_agents}: make it a multiple of {num_clusters}."
        )
    return np.repeat(np.arange(num_clusters), setup.num_agents // num_clusters)


def image_world(
    examples: Examples, setup: Setup, rng: np.random.Generator
) -> FederatedData:
    """One run's agents, with training, validation and test images."""
    cluster = cluster_of(setup, examples.num_classes)
    is_test = examples.is_test
    if is_test is None:
        is_test = _held_out(examples.y, setup.test_share, rng)
    train, test = (
        _rows(examples, np.flatnonzero(part), setup, rng)
        for part in (~is_test, is_test)
    )
    world = partition.federated_data(examples, train, test, cluster.astype(np.int32))
    world = partition.hold_out(world, setup.valid_share)
    if setup.train_size is not None:
        world = partition.subsample_train(
            world, setup.train_size, proportional=setup.proportional
        )
    if setup.study == "rotation":
        world = partition.rotate(world, np.take(TURNS[setup.num_clusters], cluster))
    if setup.study == "swap":
        world = partition.relabel(world, _swapped(setup, examples, cluster))
    return world


def _labels_of_clusters(setup: Setup, num_classes: int) -> list[tuple[int, ...]]:
    """Classes of every cluster; all in one where clusters do not differ in them."""
    if setup.study == "vehicles_animals":
        return [cifar10.VEHICLES, cifar10.ANIMALS]
    if setup.study in ("pathological", "practical"):
        return [(first, first + 1) for first in range(0, num_classes - 1, 2)]
    return [tuple(range(num_classes))]


def _rows(
    examples: Examples, part: np.ndarray, setup: Setup, rng: np.random.Generator
) -> list[np.ndarray]:
    """Rows of the data that every agent gets of one part of it."""
    labels = _labels_of_clusters(setup, examples.num_classes)
    size = setup.num_agents
    split: Split = partial(label_skew.clustered_classes, num_agents=size, labels=labels)
    if setup.study == "practical":
        split = partial(
            label_skew.dominant_classes, num_agents=size, num_clusters=len(labels)
        )
    found = split(examples.y[part], rng)
    return [part[rng.permutation(own)] for own in found]


def _held_out(y: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """`[E]` bool: the same share of every class, at random."""
    is_held = np.zeros(len(y), bool)
    for label in np.unique(y):
        own = rng.permutation(np.flatnonzero(y == label))
        is_held[own[: round(share * len(own))]] = True
    return is_held


def _swapped(setup: Setup, examples: Examples, cluster: np.ndarray) -> np.ndarray:
    """`[N, k]`: what becomes of every label."""
    tables = np.tile(np.arange(examples.num_classes), (len(cluster), 1))
    for number, (one, other) in enumerate(SWAPS[setup.num_clusters]):
        own = cluster == number
        tables[own, one], tables[own, other] = other, one
    return tables


def image_worlds(
    examples: Examples, setup: Setup, seed: int, num_runs: int
) -> list[FederatedData]:
    """Split anew in every run; all worlds have the same shapes."""
    return stacking.pad_to_same_size(
        [
            image_world(examples, setup, np.random.default_rng([seed, run]))
            for run in range(num_runs)
        ]
    )


def in_largest_groups(documents: Documents, num_groups: int) -> Documents:
    """Users of the groups that most users belong to."""
    group = documents.group
    if group is None or len(np.unique(group)) < num_groups:
        found = 0 if group is None else len(np.unique(group))
        raise InputError(
            f"Need users of {num_groups} groups, got {found}: lower --num_clusters or "
            "choose other texts."
        )
    labels, sizes = np.unique(group, return_counts=True)
    largest = labels[np.argsort(-sizes, kind="stable")[:num_groups]]
    keep = np.flatnonzero(np.isin(group, largest))

    def of_users(part: list | None) -> list | None:
        return None if part is None else [part[user] for user in keep]

    return Documents(
        [documents.users[user] for user in keep],
        [documents.train[user] for user in keep],
        of_users(documents.valid),
        of_users(documents.test),
        group[keep],
    )


def text_worlds(
    corpus: Corpus,
    setup: Setup,
    seed: int,
    num_runs: int,
    min_train: int,
    max_train: int | None,
) -> list[FederatedData]:
    """Other users in every run, as many of every group."""
    worlds = []
    for run in range(num_runs):
        users = text.select(
            corpus,
            num_agents=setup.num_agents,
            run=run,
            seed=seed,
            min_train=min_train,
            max_train=max_train,
            by_group=True,
        )
        rng = np.random.default_rng([seed, run])
        worlds.append(text.world_of_users(corpus, users, rng))
    return stacking.pad_to_same_size(worlds)
