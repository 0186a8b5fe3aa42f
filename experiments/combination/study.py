"""What `experiments.combination` compares: ways to combine the models of hosts."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

from experiments.analysis import figures
from experiments.analysis.chosen import print_chosen
from experiments.combination.config import Config
from experiments.combination.data import (
    digits_data,
    hospital_data,
    load_examples,
    pooled,
    splits_of,
)
from experiments.combination.programs import (
    FLAGS,
    build_program,
    choices_of,
    factors_of,
    make_task,
)
from experiments.combination.results import draw_factors, print_costs
from experiments.combination.texts import load_corpus, next_word_task, texts_data
from experiments.engine.command import SUMMARY, Experiment
from experiments.engine.jobs import Job, jobs_of_runs, kept
from p2pjax.exchange.factors import relative_sizes
from p2pjax.tasks.task import Task
from p2pjax.types import FederatedData, InputError, num_agents

MakeData = Callable[[int], FederatedData]  # of a run
Setting = tuple[dict[str, Any], MakeData]  # what rows say about the data, and the data


def make_jobs(config: Config) -> list[Job]:
    """All runs of all schemes in all settings."""
    if "centralized" in config.schemes and jax.process_count() > 1:
        raise InputError(
            f"Need one process for the scheme centralized, got {jax.process_count()}: "
            "leave it out of --schemes, or leave out --num_processes."
        )
    tasks, settings = _subject(config)
    programs = [
        (scheme, own, build_program(config, scheme, tasks[choices.activation], choices))
        for scheme in config.schemes
        for own, choices in choices_of(config, scheme)
    ]
    jobs = []
    for setting, make_data in settings:
        for scheme, own, program in programs:
            jobs += jobs_of_runs(
                config,
                scheme,
                setting | own,
                program,
                partial(_pooled, make_data) if scheme == "centralized" else make_data,
                facts=_facts(config, scheme, make_data(config.runs[0])),
            )
    return jobs


def _subject(config: Config) -> tuple[dict[str, Task], list[Setting]]:
    """What hosts learn, by activation, and of which data."""
    if config.study == "texts":
        corpus = load_corpus(config)
        task = next_word_task(config, corpus.vocabulary.num_ids)
        settings: list[Setting] = [
            ({"hosts": hosts}, texts_data(config, corpus, hosts))
            for hosts in config.hosts
        ]
        return dict.fromkeys(config.activation, task), settings
    examples = load_examples(config)
    tasks = {name: make_task(config, examples, name) for name in config.activation}
    if config.study == "hospital":
        return tasks, [
            (
                {"split": name},
                kept(config, partial(hospital_data, config, examples, split)),
            )
            for name, split in splits_of(config, examples).items()
        ]
    return tasks, [
        ({"hosts": hosts}, kept(config, partial(digits_data, config, examples, hosts)))
        for hosts in config.hosts
    ]


def _pooled(make_data: MakeData, run: int) -> FederatedData:
    return pooled(make_data(run))


def _facts(config: Config, scheme: str, data: FederatedData) -> dict[str, float]:
    """The same in all runs, whose hosts are equally large."""
    factors = factors_of(config, scheme)
    facts = {"hosts": float(num_agents(data))}
    if factors is not None:
        facts["sum_of_factors"] = float(factors(relative_sizes(data)).sum())
    return facts


def report(config: Config, folder: Path) -> None:
    """Curves, factors, a table for a person and, for a target, what it cost."""
    panel = "split" if config.study == "hospital" else "hosts"
    figures.curves_by_round(folder, ("accuracy", "norm"), panel)
    draw_factors(folder)
    figures.print_summary(folder)
    print_chosen(folder, FLAGS)
    if config.target is not None:
        print_costs(folder, config.target)


EXPERIMENT = Experiment(
    "combination",
    Config,
    make_jobs,
    report,
    summary=(*SUMMARY, "norm", "non_finite"),
)
