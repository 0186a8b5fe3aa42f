"""What `experiments.vsn` compares: how much of the network is global."""

from functools import partial
from pathlib import Path

from experiments.analysis import figures
from experiments.averaging import pictures
from experiments.averaging.cases import (
    averaging_jobs,
    check_perceptrons,
    file_cases,
    level_cases,
)
from experiments.averaging.design import varied
from experiments.engine.command import Experiment
from experiments.engine.datasets import load_dataset
from experiments.engine.jobs import Job, data_rng, kept
from experiments.vsn.config import Config
from p2pjax.datasets import partition
from p2pjax.datasets.loaders import needs, vsn
from p2pjax.datasets.stacking import Examples
from p2pjax.partial import schemes
from p2pjax.tasks import task
from p2pjax.types import FederatedData


def load_examples(config: Config) -> Examples:
    """The data set that the config names."""

    def drawn() -> Examples:
        size = config.train_size + config.test_size
        return vsn.synthetic(config.num_agents, size, seed=config.seed)

    found: Examples = load_dataset(
        config,
        config.dataset,
        drawn,
        "generated sensors are used",
        {"vsn": vsn.load},
    )
    num_users = min(2, config.num_agents)
    return needs.need_users(found, config.dataset or "sensors", num_users)


def make_data(config: Config, examples: Examples, run: int) -> FederatedData:
    """Shuffled, cut to equal sizes and split anew in every run."""
    data = partition.by_user(
        examples,
        data_rng(config, run),
        num_agents=config.num_agents,
        train_size=config.train_size,
        test_size=config.test_size,
    )
    return vsn.standardize(data) if config.standardize else data


def make_jobs(config: Config) -> list[Job]:
    """All runs of the levels that are compared."""
    network = schemes.network_layout(config.network)
    num_examples = config.train_size + config.test_size
    check_perceptrons(config, network, config.num_agents, num_examples, itemsize=4)
    examples = load_examples(config)
    task.check_labels(examples.y, network[-1])
    data = kept(config, partial(make_data, config, examples))
    num_agents = config.num_agents
    levels = level_cases(network, config.levels, num_agents, data)
    files = file_cases(config.scheme_file, network, num_agents, data)
    return averaging_jobs(config, levels + files)


def report(config: Config, folder: Path) -> None:
    """Accuracy against the level, and a table for a person."""
    if varied(config):
        pictures.of_combinations(config, folder, "level", "averaging level (%)")
    else:
        figures.accuracy_by_level(folder)
    figures.print_summary(folder)


EXPERIMENT = Experiment("vsn", Config, make_jobs, report)
