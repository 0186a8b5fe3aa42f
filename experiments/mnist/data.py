"""Blocks of digits, one per agent, cut anew in every run."""

from collections.abc import Callable
from functools import cache, partial
from typing import Protocol

import numpy as np

from experiments.averaging.cases import MakeData
from experiments.engine.datasets import load_dataset
from experiments.engine.jobs import data_rng, kept
from experiments.mnist.config import Config
from p2pjax.datasets import partition
from p2pjax.datasets.loaders import digits, mnist
from p2pjax.datasets.stacking import Examples
from p2pjax.types import FederatedData


class Blocks(Protocol):
    """Images of so many agents, by run; no agent's labels are permuted yet."""

    def __call__(
        self, num_agents: int, train_size: int, turns: tuple[int, ...] | None = None
    ) -> MakeData:
        """With `turns`, the images of agent n are rotated by `turns[n]` quarters."""
        ...


def load_examples(config: Config) -> Examples:
    """The data set that the config names."""
    return load_dataset(
        config,
        config.dataset,
        digits.load,
        "scikit-learn's small digits are used",
        {"mnist": mnist.load},
    )


def make_blocks(
    config: Config,
    examples: Examples,
    num_agents: int,
    train_size: int,
    turns: tuple[int, ...] | None,
    run: int,
) -> FederatedData:
    """Shuffled and cut into blocks anew in every run; no agent's labels permuted yet.

    The images of agent n are turned by `turns[n]` times 90 degrees, if given.
    """
    data = partition.iid_blocks(
        examples,
        data_rng(config, run),
        num_agents=num_agents,
        train_size=train_size,
        test_size=config.test_size,
    )
    return data if turns is None else partition.rotate(data, np.asarray(turns))


def blocks_of_runs(config: Config, examples: Examples) -> Blocks:
    """Blocks by run, which serve all schemes of a value of the study."""

    @cache
    def blocks(
        num_agents: int, train_size: int, turns: tuple[int, ...] | None = None
    ) -> Callable[[int], FederatedData]:
        make_data = partial(
            make_blocks, config, examples, num_agents, train_size, turns
        )
        return kept(config, make_data, names=("x",))

    return blocks


def relabelled(make_data: MakeData, tables: np.ndarray) -> MakeData:
    """The same data, in which agent n has the labels `tables[n]`."""
    return lambda run: partition.relabel(make_data(run), tables)
