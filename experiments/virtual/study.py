"""What `experiments.virtual` compares: methods on one of the paper's data sets."""

import math
from functools import partial
from pathlib import Path

from experiments.analysis import figures
from experiments.engine import fitting, reading
from experiments.engine.command import Experiment
from experiments.engine.jobs import Job, jobs_of_runs, kept
from experiments.virtual.config import Config
from experiments.virtual.data import load_examples, make_data
from experiments.virtual.methods import PROGRAMS, Shape, classification
from experiments.virtual.paper import DATASETS
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
    setting = {"study": config.study}
    return [
        job
        for name in config.methods
        for job in jobs_of_runs(
            config, name, setting, PROGRAMS[name](config, layers, shape), data
        )
    ]


def report(config: Config, folder: Path) -> None:
    """Accuracy over time, and tables for a person."""
    figures.accuracy_by_round(folder, "refinements of every client")
    figures.print_summary(folder)
    print_table(config, folder)


def print_table(config: Config, folder: Path) -> None:
    """Mean accuracy and stddev over runs.

    On the paper's own data, those of its Table 2 are beside them; on a stand-in or on
    data of one's own they would not mean anything.
    """
    is_papers = config.dataset == "public"
    printed = DATASETS[config.study].printed if is_papers else {}
    heading = f"{'method':<14} {'accuracy, mean (std)':<22}"
    print(f"{heading} paper" if is_papers else heading.rstrip())
    for row in reading.summary_rows(folder, "accuracy", ("mean", "std")):
        own = f"{row['mean']:.4f} ({row['std']:.4f})"
        paper = printed.get(row["scheme"])
        shown = "" if paper is None else f"{paper[0]:.4f} ({paper[1]:.4f})"
        print(f"{row['scheme']:<14} {own:<22} {shown}".rstrip())


EXPERIMENT = Experiment("virtual", Config, make_jobs, report)
