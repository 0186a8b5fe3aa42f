"""What `experiments.virtual` compares: methods on one of the paper's data sets."""

import math
from functools import partial
from pathlib import Path

from experiments.analysis import figures
from experiments.analysis.chosen import print_chosen
from experiments.engine import fitting, reading
from experiments.engine.command import SUMMARY, Experiment
from experiments.engine.jobs import Job, jobs_of_runs, kept
from experiments.virtual.config import Config
from experiments.virtual.data import load_examples, make_data
from experiments.virtual.design import FLAGS, choices_of
from experiments.virtual.methods import PROGRAMS, Shape, classification
from experiments.virtual.paper import DATASETS, STEPS_KNOWN
from experiments.virtual.results import (
    EARLY,
    OBSERVED,
    print_observed,
    print_table,
    with_settings,
)
from p2pjax.nn.variational import VariationalMLP
from p2pjax.partial import schemes
from p2pjax.tasks.task import check_labels
from p2pjax.types import InputError, Layout


def network_layout(config: Config, shape: Shape, num_classes: int) -> Layout:
    """The network of every client, or of the only model."""
    num_inputs = math.prod(shape)
    if config.network is None:
        return (num_inputs, 100, 100, num_classes)
    network = schemes.network_layout(config.network)
    if network[0] != num_inputs:
        raise InputError(
            f"Need a network of {num_inputs} inputs for these examples, got "
            f"{config.network}."
        )
    return network


def check_room(config: Config, shape: Shape) -> None:
    """Refuses clients that cannot fit, before their examples of this shape are made."""
    layers = network_layout(config, shape, num_classes=2)[1:]
    samples = max(config.num_samples, config.num_test_samples)
    fitting.check_agents(
        config,
        1 if config.methods == ("global",) else config.num_agents,
        classification(config, VariationalMLP(layers), shape),
        examples=config.size * math.prod(shape),
        batch=4 * config.batch_size * samples * max(layers),
    )


def make_jobs(config: Config) -> list[Job]:
    """All runs of all methods."""
    examples = load_examples(config, partial(check_room, config))
    shape = examples.x.shape[1:]
    check_room(config, shape)
    layers = network_layout(config, shape, examples.num_classes)[1:]
    check_labels(examples.y, layers[-1])
    data = kept(config, partial(make_data, config, examples))
    own = {"study": config.study}
    return [
        job
        for name in config.methods
        for setting, choices in choices_of(config, name)
        for job in jobs_of_runs(
            config,
            name,
            own | setting,
            PROGRAMS[name](config, layers, shape, choices),
            data,
            facts=_facts(config, name),
        )
    ]


def _facts(config: Config, method: str) -> dict[str, float]:
    """Steps of a client in the authors' code, where they are known."""
    is_papers = config.dataset == "public" and method in STEPS_KNOWN
    return {"source_steps": DATASETS[config.study].steps} if is_papers else {}


def report(config: Config, folder: Path) -> None:
    """Accuracy over time, and tables for a person."""
    rows = with_settings(reading.rows(folder, ("accuracy",)))
    figures.accuracy_by_round(folder, "refinements of every client", rows)
    figures.print_summary(folder)
    print_table(config, folder)
    print_observed(folder)
    print_chosen(folder, FLAGS)


EXPERIMENT = Experiment(
    "virtual", Config, make_jobs, report, summary=(*SUMMARY, "steps", *EARLY, *OBSERVED)
)
