"""What `experiments.compare` runs: every method with every learning rate."""

import math
from pathlib import Path

from experiments.analysis import figures
from experiments.compare import problem, results
from experiments.compare.config import Config
from experiments.compare.entrants import evaluation, jobs_of, swept
from experiments.compare.graphs import graph_of
from experiments.compare.methods import Problem
from experiments.compare.partial_models import entrants_of
from experiments.engine import fitting
from experiments.engine.command import SUMMARY, Experiment
from experiments.engine.config import agent_loop, rate
from experiments.engine.jobs import Job, data_rng, kept, of_all_runs
from experiments.report import command as report_command
from p2pjax.tasks._classification import classification
from p2pjax.training.local_updates import LocalUpdates, epochs, steps
from p2pjax.types import InputError


def make_jobs(config: Config) -> list[Job]:
    """All runs of all methods; learning rates of most methods share a program."""
    examples = problem.examples_of(config)
    network = problem.network_of(config, examples.num_classes)
    rates = config.learning_rates or (rate(config, 0.1),)
    optimizer = swept(config.optimizer, rates)
    inputs = math.prod(examples.x.shape[1:]) * examples.x.dtype.itemsize
    fitting.check_agents(
        config,
        1 if config.methods == ("central",) else config.num_agents,
        classification(network, examples.x.shape[1:]),
        optimizer,
        batch=config.batch_size * inputs,
    )
    of_runs = of_all_runs(
        config, lambda run: problem.data_of_run(config, examples, data_rng(config, run))
    )
    data = kept(config, of_runs.__getitem__)
    task = classification(network, data(config.first_run), per_class=True)
    made = Problem(
        task=task,
        optimizer=optimizer,
        graph=graph_of(config),
        data=data(config.first_run),
        num_rounds=config.num_rounds,
        num_peers=config.degree or 3,
        penalty_weight=config.penalty_weight,
        batch_size=config.batch_size,
        local_updates=_local_updates(config),
        loss_probability=config.loss_probability,
        score_before=config.score_before,
        agent_loop=agent_loop(config, task),
        consensus_step=config.consensus_step,
        head=problem.head_of(config),
    )
    entrants = entrants_of(config, made)
    evaluate = evaluation(config, task, validates=config.valid_fraction > 0)
    return jobs_of(config, entrants, config.optimizer, rates, evaluate, data)


def _local_updates(config: Config) -> LocalUpdates | None:
    if config.local_steps is not None and config.local_epochs is not None:
        raise InputError(
            "Need --local_steps or --local_epochs, got both: leave out one of them."
        )
    if config.local_steps is not None:
        return steps(config.local_steps)
    return None if config.local_epochs is None else epochs(config.local_epochs)


def report(config: Config, folder: Path) -> None:
    """Table, figures and the page about them."""
    rows = results.chosen_rows(folder, config.budget, config.budget_amount)
    figures.accuracy_by_round(folder, "rounds", rows)
    figures.accuracy_by_messages(folder, rows)
    table = results.table(folder, config.budget, config.budget_amount)
    (folder / "comparison.md").write_text(table)
    print(table)
    report_command.main(report_command.Options(), [str(folder)])


EXPERIMENT = Experiment(
    "compare", Config, make_jobs, report, (*SUMMARY, "worst_decile", "valid_accuracy")
)
