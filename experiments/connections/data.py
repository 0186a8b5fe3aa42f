"""Agents in clusters: the synthetic and the realistic environments of Sajina (2025).

Agents are numbered cluster by cluster, and `FederatedData.cluster` says who belongs
where. `rotation` and `swap` deal every class evenly, or give each agent the images of
one user, and then turn the images, or exchange two labels, of all clusters but the
first. `vehicles_animals`, `superclasses` and `pathological` give every cluster classes
of its own, `practical` most of two classes and a little of the others.
`text` takes users who write in one place: a subreddit, a group of plays, a topic.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from experiments.connections.config import Config
from experiments.engine.jobs import data_rng, of_all_runs
from p2pjax.datasets import label_skew, partition
from p2pjax.datasets.loaders import cifar10, text
from p2pjax.datasets.loaders.text import Corpus
from p2pjax.datasets.stacking import Examples
from p2pjax.types import FederatedData, InputError

TURNS = {"2": (0, 2), "4": (0, 1, 2, 3)}  # quarters, to the left
SWAPS = {"2": ((0, 0), (0, 2)), "4": ((0, 0), (0, 1), (2, 3), (4, 5))}
VARIED = ("rotation", "swap", "text")  # whose number of clusters can be chosen
OF_USERS = ("rotation", "swap")  # whose agents may be users with what they have
VALID_SHARE = 0.2  # of the training examples of each class

# (labels, source of randomness) -> rows of every agent
Split = Callable[[np.ndarray, np.random.Generator], list[np.ndarray]]


def cluster_of(config: Config, num_classes: int) -> np.ndarray:
    """The true cluster of every agent, `[N]`."""
    num_clusters = int(config.num_clusters)
    if config.study not in VARIED:
        num_clusters = len(_labels_of_clusters(config, num_classes))
    if config.num_agents % num_clusters:
        raise InputError(
            f"Need a number of agents that {num_clusters} clusters can share equally, "
            f"got {config.num_agents}: make it a multiple of {num_clusters}."
        )
    return np.repeat(np.arange(num_clusters), config.num_agents // num_clusters)


def _labels_of_clusters(config: Config, num_classes: int) -> list[tuple[int, ...]]:
    """Classes of every cluster; all in one where clusters do not differ in them."""
    if config.study == "vehicles_animals":
        labels = [cifar10.VEHICLES, cifar10.ANIMALS]
        if num_classes != sum(map(len, labels)):
            raise InputError(
                "Need the ten classes of CIFAR-10 for --study=vehicles_animals, got "
                f"{num_classes}: choose --study=superclasses for other data."
            )
        return labels
    if config.study == "superclasses":
        return _of_superclasses(config.superclasses or (), num_classes)
    if config.study in ("pathological", "practical"):
        if num_classes < 4 or num_classes % 2:
            raise InputError(
                f"Need an even number of classes, 4 or more, for --study={config.study}"
                f", whose clusters have two each, got {num_classes}."
            )
        return [(first, first + 1) for first in range(0, num_classes, 2)]
    return [tuple(range(num_classes))]


def _of_superclasses(names: tuple[str, ...], num_classes: int) -> list[tuple[int, ...]]:
    """Classes of every superclass, in the order in which they are named first."""
    distinct = tuple(dict.fromkeys(names))
    if len(names) != num_classes or len(distinct) < 2:
        raise InputError(
            f"Need --superclasses with a name for each of {num_classes} classes, two "
            f"different ones or more, got {len(names)} of which {len(distinct)} are "
            "different."
        )
    return [
        tuple(label for label, own in enumerate(names) if own == name)
        for name in distinct
    ]


def image_data(
    config: Config, examples: Examples, rng: np.random.Generator
) -> FederatedData:
    """One run's agents, with training, validation and test images."""
    cluster = cluster_of(config, examples.num_classes)
    if len(np.unique(examples.user)) > 1:
        train, test = _rows_of_users(config, examples, rng)
    else:
        train, test = _dealt_rows(config, examples, rng)
    data = partition.federated_data(examples, train, test, cluster.astype(np.int32))
    data = partition.hold_out(data, VALID_SHARE)
    if config.train_size is not None:
        data = partition.subsample_train(
            data, config.train_size, proportional=config.proportional
        )
    if config.study == "rotation":
        data = partition.rotate(data, np.take(TURNS[config.num_clusters], cluster))
    if config.study == "swap":
        data = partition.relabel(data, _swapped(config, examples, cluster))
    return data


def _dealt_rows(
    config: Config, examples: Examples, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Rows of the data that every agent trains and is tested on, by their classes."""
    is_test = examples.is_test
    if is_test is None:
        is_test = _held_out(examples.y, config.test_share, rng)
    train, test = (
        _dealt(config, examples, np.flatnonzero(part), rng)
        for part in (~is_test, is_test)
    )
    return train, test


def _dealt(
    config: Config, examples: Examples, part: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Rows that every agent gets of one part of the data."""
    labels = _labels_of_clusters(config, examples.num_classes)
    size = config.num_agents
    split: Split = partial(label_skew.clustered_classes, num_agents=size, labels=labels)
    if config.study == "practical":
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


def _rows_of_users(
    config: Config, examples: Examples, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Rows that every agent trains and is tested on: all of a user, drawn at random.

    Users need two rows to train on, of which one validates, and one to be tested on.
    """
    if config.study not in OF_USERS:
        raise InputError(
            f"Need images without users for --study={config.study}, which deals them "
            "to agents by class: leave the array user out of the file, or choose "
            f"--study={' or '.join(OF_USERS)}, where each user is an agent."
        )
    found = []
    for user in rng.permutation(np.unique(examples.user)):
        own = rng.permutation(np.flatnonzero(examples.user == user))
        if examples.is_test is None:
            is_test = np.arange(len(own)) < max(1, round(config.test_share * len(own)))
        else:
            is_test = examples.is_test[own]
        if is_test.any() and np.count_nonzero(~is_test) > 1:
            found.append((own[~is_test], own[is_test]))
    if len(found) < config.num_agents:
        raise InputError(
            f"Need {config.num_agents} users with two training images or more and one "
            f"to test on, one user per agent, but the data has {len(found)}: lower "
            "--num_agents."
        )
    train, test = zip(*found[: config.num_agents], strict=True)
    return list(train), list(test)


def _swapped(config: Config, examples: Examples, cluster: np.ndarray) -> np.ndarray:
    """`[N, k]`: what becomes of every label."""
    swaps = SWAPS[config.num_clusters]
    needed = np.max(swaps) + 1
    if examples.num_classes < needed:
        raise InputError(
            f"Need {needed} classes or more to swap labels in {config.num_clusters} "
            f"clusters, got {examples.num_classes}."
        )
    tables = np.tile(np.arange(examples.num_classes), (len(cluster), 1))
    for number, (one, other) in enumerate(swaps):
        own = cluster == number
        tables[own, one], tables[own, other] = other, one
    return tables


def image_data_of_runs(config: Config, examples: Examples) -> dict[int, FederatedData]:
    """Split anew in every run; all have the same shapes."""
    return of_all_runs(
        config, lambda run: image_data(config, examples, data_rng(config, run))
    )


def text_data_of_runs(config: Config, corpus: Corpus) -> dict[int, FederatedData]:
    """Other users in every run, as many of every group; all have the same shapes."""

    def of_run(run: int) -> FederatedData:
        users = text.select(
            corpus,
            num_agents=config.num_agents,
            run=run,
            seed=config.seed,
            min_train=config.min_train,
            max_train=config.max_train,
            by_group=True,
        )
        return text.world_of_users(corpus, users, data_rng(config, run))

    return of_all_runs(config, of_run)
