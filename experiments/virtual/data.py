"""The clients of `experiments.virtual` and their examples."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from experiments.engine.datasets import least_words, load_dataset, users_of_runs
from experiments.engine.jobs import data_rng, kept, of_all_runs, own_examples
from experiments.virtual.config import TEXTS, Config
from experiments.virtual.paper import DATASETS
from p2pjax.datasets import partition, stacking
from p2pjax.datasets.loaders import shakespeare, speakers, text
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.stacking import Examples
from p2pjax.types import FederatedData, InputError


class Subject(NamedTuple):
    """What clients learn of."""

    shape: tuple[int, ...]  # of an example
    num_classes: int
    labels: np.ndarray | None  # of all examples; None if they are made of a vocabulary
    make_data: Callable[[int], FederatedData]  # of a run


def load_subject(config: Config, check_room: Callable[..., None]) -> Subject:
    """The data that the config names, and how they are dealt.

    Args:
      config: of the experiment.
      check_room: refuses examples of a shape, and of so many classes, of which too many
        are to be made.
    """
    if config.study == TEXTS:
        return _texts(config, check_room)
    examples = load_examples(config, check_room)
    shape, num_classes = examples.x.shape[1:], examples.num_classes
    data = kept(config, partial(make_data, config, examples))
    return Subject(shape, num_classes, examples.y, data)


def _texts(config: Config, check_room: Callable[..., None]) -> Subject:
    """Roles of plays, or generated speakers, others in every run.

    Unlike the other studies, clients test on what they wrote last: of words drawn at
    random, neighbours would be in training.
    """
    if config.dataset not in (None, "embedded", "public"):
        raise InputError(
            f"Need --dataset=embedded or public for --study={TEXTS}, got "
            f"--dataset={config.dataset}."
        )

    def written() -> Documents:
        check_room((text.WINDOW,), least_words(config, config.num_words))
        users = users_of_runs(config, config.num_agents)
        return speakers.speakers(users, seed=config.seed)

    note = "generated texts of speakers are used"
    loaders = {"public": shakespeare.load}
    documents = load_dataset(config, config.dataset, written, note, loaders)
    corpus = text.encode(documents, config.num_words)

    def of_run(run: int) -> FederatedData:
        users = text.select(
            corpus,
            num_agents=config.num_agents,
            run=run,
            seed=config.seed,
            min_train=config.size,
            max_train=config.max_size,
        )
        return text.world_of_users(corpus, users, data_rng(config, run))

    data = {
        run: own_examples(config, own)
        for run, own in of_all_runs(config, of_run).items()
    }
    num_ids = corpus.vocabulary.num_ids
    return Subject((text.WINDOW,), num_ids, None, data.__getitem__)


def load_examples(
    config: Config, check_room: Callable[[tuple[int, ...]], None]
) -> Examples:
    """The data that the config names.

    Args:
      config: of the experiment.
      check_room: refuses examples of a shape of which too many are to be made.
    """
    own = DATASETS[config.study]

    def embedded() -> Examples:
        check_room(own.shape)
        return own.embedded(config.num_agents, config.size, config.seed)

    return load_dataset(
        config,
        config.dataset,
        embedded,
        "a stand-in that needs no download is used",
        {"public": own.load},
    )


def make_data(config: Config, examples: Examples, run: int) -> FederatedData:
    """Other clients where there are more, and other tests, in every run.

    All runs have the shapes that the largest client needs, whether it is drawn or not.
    """
    own, rng = DATASETS[config.study], data_rng(config, run)
    if own.is_dealt:
        examples = partition.assign_random_users(
            examples, rng, num_users=config.num_agents, size=config.size
        )
    data = partition.sample_users(
        examples,
        rng,
        num_agents=config.num_agents,
        test_share=config.test_share,
        min_size=config.size,
    )
    if own.is_permuted:
        num_inputs = int(np.prod(examples.x.shape[1:]))
        orders = [rng.permutation(num_inputs) for _ in range(config.num_agents)]
        data = partition.permute_features(data, np.stack(orders))
    largest = int(np.unique(examples.user, return_counts=True)[1].max())
    num_test = partition.num_tested(largest, config.test_share)
    return data._replace(
        train=stacking.pad_split(data.train, largest - num_test),
        test=stacking.pad_split(data.test, num_test),
    )
