"""What `experiments.protocols` compares, by study."""

from pathlib import Path

from experiments.engine import reading
from experiments.engine.command import SUMMARY, Experiment
from experiments.engine.jobs import Job, Measurement
from experiments.protocols import consensus, pictures, results, scores, training
from experiments.protocols.cases import check_given
from experiments.protocols.config import Config, settle_tuning
from p2pjax.types import InputError


def make_jobs(config: Config) -> list[Job] | list[Measurement]:
    """All runs of the study."""
    check_given(config)
    if config.study != "consensus":
        return training.jobs_of(config)
    if config.tune:
        raise InputError("Need a study that trains for --tune, got consensus.")
    return consensus.measurements(config)


def report(config: Config, folder: Path) -> None:
    """Figures, and a table for a person."""
    if config.study == "consensus":
        pictures.consensus(folder)
        _print_errors(folder)
        return
    if config.tune:
        found = results.tuned(folder)
        (folder / "rates.md").write_text(found)
        print(found)
        return
    if config.study == "heterogeneity":
        label = "alpha of Dirichlet shares"
        pictures.by_setting(folder, "alpha", label, x_log=True)
    elif config.study == "loss":
        pictures.by_setting(folder, "loss", "share of messages that are lost")
    elif config.study == "local_updates":
        label = "mini-batches between two exchanges"
        pictures.by_setting(folder, "local_steps", label, x_log=True)
    elif config.study == "merge":
        pictures.merged(folder)
    else:
        pictures.by_messages(folder)
    found = results.table(folder)
    (folder / "comparison.md").write_text(found)
    print(found)
    print(f"Results are in {folder}")


def _print_errors(folder: Path) -> None:
    """What is left after all mixings, and after how many it was round-off."""
    rows = reading.summary_rows(folder, "squared_error", ("mean",))
    by_graph: dict[str, dict[int, float]] = {}
    for row in rows:
        by_graph.setdefault(row["scheme"], {})[row["setting"]["t"]] = row["mean"]
    for graph, errors in by_graph.items():
        exact = [t for t, error in errors.items() if error == 0]
        said = f"below {consensus.EXACT:g} after {exact[0]} mixings" if exact else ""
        print(f"{graph:<22} {errors[max(errors)]:<10.2g} {said}".rstrip())
    print(f"Results are in {folder}")


EXPERIMENT = Experiment(
    "protocols",
    Config,
    make_jobs,
    report,
    summary=("squared_error", *SUMMARY, *scores.COLUMNS),
    prepare=settle_tuning,
    takes_processes=False,
)
