"""What `experiments.mnist` compares: one or more partial models, on permuted labels."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from experiments.analysis import figures
from experiments.averaging import pictures
from experiments.averaging.cases import Case, averaging_jobs, check_perceptrons
from experiments.averaging.design import varied as varied_choices
from experiments.averaging.schemes import check_scheme_file
from experiments.engine.command import Experiment
from experiments.engine.jobs import Job
from experiments.engine.run_folder import Row
from experiments.mnist import (
    changing_groups,
    found_groups,
    global_models,
    semi_local,
)
from experiments.mnist.config import (
    STUDIES,
    WITH_FILES,
    Config,
    check_periods,
    values_of,
)
from experiments.mnist.data import Blocks, blocks_of_runs, load_examples
from p2pjax.datasets.stacking import Examples
from p2pjax.partial import schemes
from p2pjax.tasks import task
from p2pjax.types import Layout

CASES: dict[str, Callable[[Config, Layout, Blocks, tuple[int, ...]], list[Case]]] = {
    "level": global_models.level,
    "convergence": global_models.convergence,
    "peers": global_models.peers,
    "semi_local": semi_local.semi_local,
    "semi_local_local": semi_local.semi_local_local,
    "difference": global_models.difference,
    "permuted": global_models.permuted,
    "train_size": global_models.train_size,
    "layouts": global_models.layouts,
    "drift": global_models.drift,
    "auto": found_groups.permuted_labels,
    "auto_rotated": found_groups.rotated_images,
    "changing": changing_groups.swapped_labels,
}


def network_layout(config: Config, examples: Examples) -> Layout:
    """The network of every agent."""
    if config.network is not None:
        return schemes.network_layout(config.network)
    return (int(np.prod(examples.x.shape[1:])), 300, 100, examples.num_classes)


def make_cases(config: Config, examples: Examples) -> list[Case]:
    """The schemes that the study compares."""
    network = network_layout(config, examples)
    task.check_labels(examples.y, network[-1])
    values = values_of(config)
    check_periods(config)
    check_scheme_file(config.scheme_file, config.study, WITH_FILES)
    _check_room(config, network, values)
    blocks = blocks_of_runs(config, examples)
    return CASES[config.study](config, network, blocks, values)


def _check_room(config: Config, network: Layout, values: Sequence[int]) -> None:
    """Refuses what cannot fit, before anything is made; also the largest value."""
    known = {
        "num_agents": config.num_agents,
        "train_size": config.train_size,
        "batch_size": config.batch_size,
    }
    varied = STUDIES[config.study]
    if varied is not None and varied.setting in known:
        known[varied.setting] = max(values)
    num_examples = known["train_size"] + config.test_size
    check_perceptrons(
        config,
        network,
        known["num_agents"],
        num_examples,
        batch_size=known["batch_size"],
    )


def make_jobs(config: Config) -> list[Job]:
    """All runs of the schemes that the study compares."""
    return averaging_jobs(config, make_cases(config, load_examples(config)))


def report(config: Config, folder: Path) -> None:
    """The study's figure, and a table for a person."""
    varied = STUDIES[config.study]
    if varied_choices(config):
        pictures.of_combinations(config, folder, *_axis(config))
    elif config.periods is not None:
        figures.accuracy_by_traffic(folder, _rhythm, ("drift", "period"))
    elif config.study == "level":
        figures.accuracy_by_level(folder)
    elif varied is None or config.study in ("auto", "auto_rotated", "changing"):
        figures.accuracy_by_round(folder)
    else:
        figures.accuracy_by_setting(folder, varied.setting, varied.label)
    figures.print_summary(folder)


def _axis(config: Config) -> tuple[str, str]:
    """What figures of several combinations have on their axis, and its label."""
    varied = STUDIES[config.study]
    if config.study == "level":
        return "level", "averaging level (%)"
    return ("round", "mini-batches") if varied is None else varied[:2]


def _rhythm(row: Row) -> str:
    """When agents average."""
    return "periodic" if "period" in row["setting"] else "dynamic"


EXPERIMENT = Experiment("mnist", Config, make_jobs, report)
