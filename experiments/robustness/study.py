"""What `experiments.robustness` compares, by study."""

from pathlib import Path

from experiments.analysis import figures
from experiments.engine import reading
from experiments.engine.command import SUMMARY, Experiment
from experiments.engine.jobs import Job, Measurement
from experiments.robustness import (
    averaging,
    partial,
    pictures,
    scores,
    selection,
    separated,
    training,
)
from experiments.robustness.config import Config
from p2pjax.types import InputError

_TRAINED = {
    "two_worlds": training.two_worlds_jobs,
    "dumbbell": training.dumbbell_jobs,
    "separated": separated.separated_jobs,
    "partial": partial.partial_jobs,
    "selection": selection.selection_jobs,
    "compression": training.compression_jobs,
}

_ACCURACIES = {
    "accuracy": "accuracy, mean of honest agents",
    "worst_accuracy": "accuracy of the worst",
}


def make_jobs(config: Config) -> list[Job] | list[Measurement]:
    """All runs of the study."""
    if config.size % 2 and config.study not in ("separated", "partial"):
        raise InputError(
            f"Need an even number of agents, half of them in each clique, got "
            f"--num_agents={config.size}."
        )
    if config.writers and config.study != "compression":
        raise InputError(
            "Need the study compression for agents that are writers, got "
            f"{config.study}: leave out --writers."
        )
    if config.study == "averaging":
        return averaging.measurements(config)
    return _TRAINED[config.study](config)


def report(config: Config, folder: Path) -> None:
    """Figures, and a table for a person."""
    if config.study == "averaging":
        errors = {
            "squared_error": "squared error",
            "disagreement": "disagreement",
        }
        pictures.by_attackers(folder, errors, "error_by_attackers")
        _print_errors(folder)
        return
    if config.study == "two_worlds":
        shown = _ACCURACIES | {"disagreement": "disagreement"}
        pictures.by_attackers(folder, shown, "accuracy_by_attackers")
    elif config.study == "separated":
        pictures.by_rule(folder, _ACCURACIES)
        separated.print_table(config, folder)
        return
    elif config.study == "partial":
        shown = _ACCURACIES | {"attack_success": "attack success"}
        pictures.by_level(folder, shown)
        partial.print_table(folder)
        return
    elif config.study == "compression":
        pictures.by_bytes(folder)
    elif config.study == "selection":
        pictures.by_attack(folder)
    else:
        means = tuple(name for name in scores.COLUMNS if name.startswith("mean_of"))
        pictures.by_group(folder, means)
    figures.print_summary(folder)


def _print_errors(folder: Path) -> None:
    for row in reading.summary_rows(folder, "squared_error", ("mean", "runs")):
        setting = ", ".join(f"{name} {v}" for name, v in row["setting"].items())
        print(f"{row['scheme']:<20} {setting:<28} {row['mean']:.2g}")
    print(f"Results are in {folder}")


EXPERIMENT = Experiment(
    "robustness",
    Config,
    make_jobs,
    report,
    summary=("squared_error", *SUMMARY, *scores.COLUMNS),
    takes_processes=False,
)
