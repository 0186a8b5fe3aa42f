"""What `experiments.levels` compares: levels with other personal models."""

from pathlib import Path

from experiments.analysis import figures
from experiments.compare import results
from experiments.compare.entrants import Entrant, evaluation, jobs_of, swept
from experiments.compare.graphs import NamedGraph
from experiments.compare.methods import Problem
from experiments.compare.partial_models import at_levels
from experiments.engine.command import SUMMARY, Experiment
from experiments.engine.config import agent_loop, rate
from experiments.engine.jobs import Job
from experiments.levels.config import Config
from experiments.levels.subjects import subject_of
from experiments.report import command as report_command
from p2pjax.training.local_updates import epochs


def make_jobs(config: Config) -> list[Job]:
    """All runs of all levels and methods."""
    rates = config.learning_rates or (rate(config, 0.1),)
    optimizer = swept(config.optimizer, rates)
    task, data, head = subject_of(config, optimizer)
    problem = Problem(
        task=task,
        optimizer=optimizer,
        graph=NamedGraph(None),  # all methods have servers
        data=data(config.first_run),
        num_rounds=config.num_rounds,
        num_peers=0,
        penalty_weight=config.penalty_weight,
        batch_size=config.batch_size,
        local_updates=epochs(config.local_epochs),
        loss_probability=0,
        score_before=config.score_before,
        agent_loop=agent_loop(config, task),
        head=head,
    )
    entrants = [Entrant(name, problem) for name in config.methods]
    entrants += at_levels(problem, config.levels)
    evaluate = evaluation(config, task, validates=True)
    return jobs_of(config, entrants, config.optimizer, rates, evaluate, data)


def report(config: Config, folder: Path) -> None:
    """The tables at equal bytes and rounds, figures and the page about them."""
    rows = results.chosen_rows(folder, "bytes", config.budget_amount)
    figures.accuracy_by_round(folder, "rounds", rows)
    figures.accuracy_by_bytes(folder, rows)
    tables = [
        results.table(folder, "bytes", config.budget_amount),
        results.table(folder, "rounds", None),
    ]
    (folder / "comparison.md").write_text("\n".join(tables))
    print(*tables, sep="\n")
    report_command.main(report_command.Options(), [str(folder)])


EXPERIMENT = Experiment(
    "levels", Config, make_jobs, report, (*SUMMARY, "worst_decile", "valid_accuracy")
)
