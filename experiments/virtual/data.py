"""The clients of `experiments.virtual` and their examples."""

from collections.abc import Callable

import numpy as np

from experiments.engine.datasets import load_dataset
from experiments.engine.jobs import data_rng
from experiments.virtual.config import Config
from experiments.virtual.paper import DATASETS
from p2pjax.datasets import partition, stacking
from p2pjax.datasets.stacking import Examples
from p2pjax.types import FederatedData


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
