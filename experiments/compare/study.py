"""What `experiments.compare` runs: every method with every learning rate."""

import math
from functools import partial
from pathlib import Path

import optax

from experiments.analysis import figures
from experiments.compare import problem, results
from experiments.compare.config import Config
from experiments.compare.graphs import graph_of
from experiments.compare.methods import AFRESH, METHODS, Problem
from experiments.engine import fitting
from experiments.engine.command import SUMMARY, Experiment
from experiments.engine.config import agent_loop, rate
from experiments.engine.jobs import (
    Job,
    Program,
    data_rng,
    jobs_of_runs,
    kept,
    of_all_runs,
)
from experiments.report import command as report_command
from p2pjax.evaluation.models import worst_decile
from p2pjax.evaluation.test_sets import before_and_after, on_test_sets
from p2pjax.tasks._classification import classification
from p2pjax.tasks.task import Task
from p2pjax.training.local_updates import LocalUpdates, epochs, steps
from p2pjax.types import Array, Evaluate, FederatedData, InputError, Models

OPTIMIZERS = {
    "sgd": optax.sgd,
    "momentum": partial(optax.sgd, momentum=0.9),
    "adam": optax.adam,
}


def make_jobs(config: Config) -> list[Job]:
    """All runs of all methods; learning rates of most methods share a program."""
    examples = problem.examples_of(config)
    network = problem.network_of(config, examples.num_classes)
    rates = config.learning_rates or (rate(config, 0.1),)
    injected = optax.inject_hyperparams(OPTIMIZERS[config.optimizer])
    optimizer = injected(learning_rate=rates[0])
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
        level=config.level,
        batch_size=config.batch_size,
        local_updates=_local_updates(config),
        loss_probability=config.loss_probability,
        score_before=config.score_before,
        agent_loop=agent_loop(config, task),
        consensus_step=config.consensus_step,
        head=problem.head_of(config),
    )
    evaluate = _evaluation(config, task)
    jobs = []
    for name in config.methods:
        is_afresh = name in AFRESH
        if not is_afresh:
            program = Program(METHODS[name](made), evaluate)
        for value in rates:
            if is_afresh:  # no state has the rate, so each has a program
                fixed = made._replace(optimizer=OPTIMIZERS[config.optimizer](value))
                program = Program(METHODS[name](fixed), evaluate)
            jobs += jobs_of_runs(
                config,
                name,
                {"learning_rate": value},
                program,
                data,
                hyperparameters={} if is_afresh else {"learning_rate": value},
            )
    return jobs


def _local_updates(config: Config) -> LocalUpdates | None:
    if config.local_steps is not None and config.local_epochs is not None:
        raise InputError(
            "Need --local_steps or --local_epochs, got both: leave out one of them."
        )
    if config.local_steps is not None:
        return steps(config.local_steps)
    return None if config.local_epochs is None else epochs(config.local_epochs)


def _evaluation(config: Config, task: Task) -> Evaluate:
    """Scores on own tests, the worst tenth, and the validation that chooses rates."""
    loop = agent_loop(config, task)
    on_own_tests, on_parts = before_and_after(task, loop), on_test_sets(task, loop)

    def evaluate(models: Models, data: FederatedData) -> dict[str, Array]:
        values = dict(on_own_tests(models, data))
        values["worst_decile"] = worst_decile(values["accuracy"])
        if config.valid_fraction:
            found = on_parts(models, data._replace(test=data.valid))
            values["valid_accuracy"] = found["accuracy"]
        return values

    return evaluate


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
