"""What `experiments.femnist` compares: levels, schemes, sizes of groups."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from experiments.analysis import figures
from experiments.averaging import cases, pictures
from experiments.averaging.cases import Case, MakeData, averaging_jobs
from experiments.averaging.design import varied
from experiments.averaging.schemes import (
    check_scheme_file,
    level_layout,
    one_model,
)
from experiments.engine.command import Experiment
from experiments.engine.datasets import load_dataset
from experiments.engine.jobs import Job, data_rng, kept
from experiments.femnist.config import WITH_FILES, Config
from p2pjax.datasets import partition
from p2pjax.datasets.loaders import femnist, glyphs, needs
from p2pjax.datasets.stacking import Examples
from p2pjax.partial import schemes
from p2pjax.tasks import task
from p2pjax.types import FederatedData, Layout


def load_examples(config: Config) -> Examples:
    """The data set that the config names."""

    def drawn() -> Examples:
        check_room(config, network_layout(config, glyphs.SHAPE, 10))
        examples = glyphs.glyphs(
            config.num_agents,
            config.train_size + config.test_size,
            seed=config.seed,
            num_classes=10 if config.variant == "d" else 62,
        )
        return femnist.variant(examples, config.variant)

    def read(data_dir: str) -> Examples:
        return femnist.variant(femnist.load(data_dir), config.variant)

    note = "procedural handwriting (glyphs) is used"
    found = load_dataset(config, config.dataset, drawn, note, {"femnist": read})
    num_users = min(2, config.num_agents)
    return needs.need_users(found, config.dataset or "glyphs", num_users)


def make_data(config: Config, examples: Examples, run: int) -> FederatedData:
    """Shuffled, cut to equal sizes and split anew in every run."""
    return partition.by_user(
        examples,
        data_rng(config, run),
        num_agents=config.num_agents,
        train_size=config.train_size,
        test_size=config.test_size,
    )


def network_layout(config: Config, shape: Sequence[int], num_classes: int) -> Layout:
    """The network of every agent, for examples of a shape."""
    if config.network is not None:
        return schemes.network_layout(config.network)
    return (math.prod(shape), 300, 100, num_classes)


def check_room(config: Config, network: Layout) -> None:
    """Refuses what cannot fit, before anything is made."""
    num_examples = config.train_size + config.test_size
    cases.check_perceptrons(config, network, config.num_agents, num_examples)


def level_cases(config: Config, network: Layout, data: MakeData) -> list[Case]:
    """Figures 8 to 10: one global model of growing size."""
    levels = cases.level_cases(network, config.levels, config.num_agents, data)
    file, num_agents = config.scheme_file, config.num_agents
    return levels + cases.file_cases(file, network, num_agents, data)


def scheme_cases(config: Config, network: Layout, data: MakeData) -> list[Case]:
    """A part of every hidden layer against whole layers."""
    num_agents = config.num_agents
    if config.schemes is not None:
        layouts = [schemes.model_layout(text) for text in config.schemes]
    else:
        layouts = [level_layout(network, 80), (0,) * len(network), network]
        for first in range(len(network)):
            for last in range(first + 2, len(network) + 1):
                kept = range(first, last)
                layouts.append(
                    tuple(n if part in kept else 0 for part, n in enumerate(network))
                )
    unique = dict.fromkeys(layouts)
    return [
        Case(
            "-".join(map(str, cells)),
            {},
            one_model(network, cells, num_agents, num_agents),
            data,
        )
        for cells in unique
    ] + cases.file_cases(config.scheme_file, network, num_agents, data)


def peers_cases(config: Config, network: Layout, data: MakeData) -> list[Case]:
    """Agents average inside groups; at level 0 groups make no difference."""
    found = []
    for level in config.levels:
        cells = level_layout(network, level)
        for size in config.group_sizes if level else (1,):
            scheme = one_model(network, cells, config.num_agents, size)
            setting = {"level": level, "group_size": size}
            found.append(Case(f"level_{level}", setting, scheme, data))
    return found


STUDIES = {"level": level_cases, "scheme": scheme_cases, "peers": peers_cases}
FIGURES: dict[str, Callable[[Path], None]] = {
    "level": figures.accuracy_by_level,
    "scheme": figures.accuracy_by_round,
    "peers": partial(
        figures.accuracy_by_setting,
        setting="group_size",
        label="agents that average together",
    ),
}
COMBINED = {  # what figures of several combinations have on their axis
    "level": ("level", "averaging level (%)"),
    "scheme": ("round", "mini-batches"),
    "peers": ("group_size", "agents that average together"),
}


def make_jobs(config: Config) -> list[Job]:
    """All runs of the schemes that the study compares."""
    check_scheme_file(config.scheme_file, config.study, WITH_FILES)
    examples = load_examples(config)
    network = network_layout(config, examples.x.shape[1:], examples.num_classes)
    check_room(config, network)
    task.check_labels(examples.y, network[-1])
    data = kept(config, partial(make_data, config, examples))
    return averaging_jobs(config, STUDIES[config.study](config, network, data))


def report(config: Config, folder: Path) -> None:
    """The study's figure, and a table for a person."""
    if varied(config):
        x, label = COMBINED[config.study]
        pictures.of_combinations(config, folder, x, label)
    else:
        FIGURES[config.study](folder)
    figures.print_summary(folder)


EXPERIMENT = Experiment("femnist", Config, make_jobs, report)
