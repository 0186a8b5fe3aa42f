"""What `experiments.virtual` compares: methods on one of the paper's data sets."""

import math
from functools import partial
from pathlib import Path

from experiments.analysis import figures
from experiments.analysis.chosen import print_chosen
from experiments.engine import fitting, reading
from experiments.engine.command import SUMMARY, Experiment
from experiments.engine.jobs import Job, jobs_of_runs
from experiments.virtual.config import Config
from experiments.virtual.data import load_subject
from experiments.virtual.design import FLAGS, choices_of
from experiments.virtual.methods import PROGRAMS, classification
from experiments.virtual.networks import Shape, networks_of, num_outputs_of
from experiments.virtual.paper import DATASETS, STEPS_KNOWN
from experiments.virtual.results import (
    EARLY,
    OBSERVED,
    print_observed,
    print_table,
    with_settings,
)
from p2pjax.tasks.task import check_labels


def check_room(config: Config, shape: Shape, num_outputs: int = 2) -> None:
    """Refuses clients that cannot fit, before their examples of this shape are made."""
    networks = networks_of(config, shape, num_outputs_of(config, num_outputs))
    samples = max(config.num_samples, config.num_test_samples)
    fitting.check_agents(
        config,
        1 if config.methods == ("global",) else config.num_agents,
        classification(config, networks.plain, networks),
        examples=config.size * math.prod(shape),
        batch=4 * config.batch_size * samples * networks.widest,
    )


def make_jobs(config: Config) -> list[Job]:
    """All runs of all methods."""
    subject = load_subject(config, partial(check_room, config))
    check_room(config, subject.shape, subject.num_classes)
    num_outputs = num_outputs_of(config, subject.num_classes)
    if subject.labels is not None:
        check_labels(subject.labels, num_outputs)
    networks = networks_of(config, subject.shape, num_outputs)
    own = {"study": config.study}
    return [
        job
        for name in config.methods
        for setting, choices in choices_of(config, name)
        for job in jobs_of_runs(
            config,
            name,
            own | setting,
            PROGRAMS[name](config, networks, choices),
            subject.make_data,
            facts=_facts(config, name),
        )
    ]


def _facts(config: Config, method: str) -> dict[str, float]:
    """Steps of a client in the authors' code, where they are known."""
    own = DATASETS.get(config.study) if config.dataset == "public" else None
    return {"source_steps": own.steps} if own and method in STEPS_KNOWN else {}


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
