"""What agents learn from: examples of a named data set, split by label or by user."""

import math
from collections.abc import Callable

import numpy as np

from experiments.engine.datasets import load_dataset
from experiments.engine.jobs import data_rng
from experiments.protocols.config import Config
from p2pjax.datasets import split as splits
from p2pjax.datasets._federate import federate_examples, with_channels
from p2pjax.datasets.loaders import cifar10, digits, mnist
from p2pjax.datasets.loaders.named import load_examples
from p2pjax.datasets.split import Splitter
from p2pjax.datasets.stacking import Examples
from p2pjax.types import FederatedData, InputError


def examples_of(config: Config) -> Examples:
    """The data set that the config names; images have an axis of channels."""
    found = load_dataset(
        config,
        config.dataset,
        digits.load,
        "scikit-learn's small digits are used",
        {
            "mnist": mnist.load,
            "femnist": lambda folder: load_examples("femnist", folder),
            "cifar10": cifar10.load,
        },
    )
    return with_channels(found)


def data_of_run(
    config: Config, examples: Examples, alpha: float, run: int
) -> FederatedData:
    """The examples, split among agents.

    Where rates are chosen, examples are held out of the training ones to judge them,
    and stand in the place of the test examples, which are not used.

    Args:
      config: of the experiment.
      examples: of all agents.
      alpha: of Dirichlet shares.
      run: its number.
    """
    makers: dict[str, Callable[[], Splitter]] = {
        "dirichlet": lambda: splits.dirichlet(alpha, equal_sizes=True),
        "shards": lambda: splits.pathological(config.shards),
        "by_user": splits.by_user,
        "rotated": lambda: splits.rotated(config.num_clusters),
    }
    rng = data_rng(config, run)
    if config.train_size is not None:
        examples = _part(config, examples, rng)
    has_users = len(np.unique(examples.user)) > 1
    data = federate_examples(
        examples,
        examples.user if has_users else None,
        num_agents=config.num_agents,
        split=makers[config.chosen_split](),
        test_fraction=config.test_fraction,
        valid_fraction=config.test_fraction if config.tune else 0.0,
        seed=rng,
    )
    return data._replace(test=data.valid) if config.tune else data


def _part(config: Config, examples: Examples, rng: np.random.Generator) -> Examples:
    """As many as give each agent its training examples."""
    if config.chosen_split == "by_user":
        raise InputError(
            "Need no --train_size with --split=by_user, where users have what they "
            f"have, got {config.train_size}."
        )
    held = config.test_fraction * (2 if config.tune else 1)
    number = config.num_agents * math.ceil((config.train_size or 1) / (1 - held))
    if number > len(examples.y):
        raise InputError(
            f"Need {number} examples for {config.num_agents} agents with "
            f"{config.train_size} to train on, got {len(examples.y)}: lower "
            "--train_size or --num_agents."
        )
    rows = rng.permutation(len(examples.y))[:number]
    return examples._replace(
        x=examples.x[rows], y=examples.y[rows], user=examples.user[rows]
    )
