"""The images and texts that `experiments.connections` deals to agents."""

import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from experiments.connections import networks
from experiments.connections.config import Config
from experiments.engine.datasets import is_format, least_words, load_dataset
from p2pjax.datasets.loaders import (
    cifar10,
    digits,
    glyphs,
    mnist,
    reddit,
    shakespeare,
    speakers,
    text,
)
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError

IN_PAIRS = 4  # groups of which each two are a study
GLYPHS_EACH = 200  # images per agent


def load_examples(config: Config) -> Examples:
    """The images that the config names.

    Those of a format that any data set may have can have users, who are then the
    agents. All others have one user: they are dealt to the agents.
    """
    readers = {"cifar10": cifar10.load, "mnist": mnist.load}
    _check_dataset(config, ["digits", "glyphs", *readers], takes_formats=True)

    def embedded() -> Examples:
        if config.dataset == "glyphs":
            size, seed = config.num_agents, config.seed
            task = networks.image_task(config, glyphs.SHAPE, 10)
            pixels = math.prod(glyphs.SHAPE)
            networks.check_room(config, task, pixels, GLYPHS_EACH)
            return glyphs.glyphs(size, GLYPHS_EACH, seed=seed, num_classes=10)
        return digits.load()

    note = "scikit-learn's small digits are used"
    found = load_dataset(config, config.dataset, embedded, note, readers)
    if config.dataset is not None and is_format(config.dataset):
        return found
    return found._replace(user=np.zeros_like(found.y))


def load_documents(config: Config) -> Documents:
    """The texts that the config names, of as many groups as there are clusters."""
    num_clusters = int(config.num_clusters)
    num_groups = IN_PAIRS if config.pairs else num_clusters

    def written() -> Documents:
        if config.first_run:
            raise InputError(
                "Need --first_run=0 for generated texts, which are by other speakers "
                f"where there are more runs, got {config.first_run}: make all runs at "
                "once."
            )
        num_ids = least_words(config, config.num_words)
        networks.check_room(config, networks.text_task(config, num_ids), text.WINDOW)
        return speakers.speakers(
            config.num_agents * config.num_runs * num_groups // num_clusters,
            seed=config.seed,
            num_topics=num_groups,
        )

    loaders: dict[str, Callable[[str], Documents]] = {
        "shakespeare": lambda path: shakespeare.by_play(shakespeare.load(path)),
        "reddit": partial(reddit.load, subreddits=config.subreddits[:num_groups]),
    }
    _check_dataset(config, ["speakers", *loaders])
    note = "generated texts of speakers are used"
    found = load_dataset(config, config.dataset, written, note, loaders)
    return in_largest_groups(found, num_groups)


def pairs_of_groups(documents: Documents) -> dict[str, Documents]:
    """Users of every two groups, by the numbers of these: `0+2`.

    Args:
      documents: of users in groups.
    """
    assert documents.group is not None, "load_documents refuses others"
    return {
        f"{one}+{other}": _of_groups(documents, [one, other])
        for one, other in itertools.combinations(np.unique(documents.group), 2)
    }


def _check_dataset(
    config: Config, possible: list[str], takes_formats: bool = False
) -> None:
    dataset = config.dataset
    if dataset is None or dataset in possible:
        return
    if not (takes_formats and is_format(dataset)):
        raise InputError(
            f"Need --dataset among {', '.join(possible)} for --study={config.study}, "
            f"got {config.dataset}."
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
    return _of_groups(documents, largest)


def _of_groups(documents: Documents, groups: ArrayLike) -> Documents:
    group = np.asarray(documents.group)
    keep = np.flatnonzero(np.isin(group, groups))

    def of_users(part: list | None) -> list | None:
        return None if part is None else [part[user] for user in keep]

    return Documents(
        [documents.users[user] for user in keep],
        [documents.train[user] for user in keep],
        of_users(documents.valid),
        of_users(documents.test),
        group[keep],
    )
