"""What `experiments.associative` compares: how many hidden cells are global."""

from functools import partial
from pathlib import Path

from experiments.analysis import figures
from experiments.associative.config import Config
from experiments.averaging import pictures
from experiments.averaging.cases import Case, averaging_jobs, averaging_program
from experiments.averaging.design import Choices, rate_of, varied
from experiments.averaging.schemes import one_model
from experiments.engine import fitting
from experiments.engine.command import Experiment
from experiments.engine.jobs import Job, Program, own_examples
from p2pjax.datasets.loaders import binary_vectors
from p2pjax.datasets.loaders.binary_vectors import Patterns
from p2pjax.nn.associative import wiring
from p2pjax.tasks._associative import associative
from p2pjax.training.associative import associative_rule
from p2pjax.types import FederatedData


def make_cases(config: Config) -> list[Case]:
    """The numbers of global hidden cells, for every vector that may be modified."""
    network = (config.num_bits, config.num_hidden)
    learned = associative(config.num_bits, config.num_hidden, config.threshold)
    fitting.check_agents(
        config,
        config.num_agents,
        learned,
        examples=2 * 100 * config.num_bits,  # over a hundred vectors x and y
        batch=config.batch_size * config.num_bits,
    )
    patterns = Patterns(config.num_bits, config.block_size, overflow=config.overflow)
    cases = []
    for modified in config.modified:
        data = binary_vectors.world(
            patterns,
            num_agents=config.num_agents,
            num_modified=config.num_modified,
            modified=modified,
        )
        same_in_all_runs = partial(_same, own_examples(config, data))
        for hidden in config.shared_hidden:
            cells = (config.num_bits, hidden) if hidden else (0, 0)
            scheme = one_model(network, cells, config.num_agents, config.num_agents)
            setting = {"hidden": hidden, "modified": modified}
            cases.append(Case(f"hidden_{hidden}", setting, scheme, same_in_all_runs))
    return cases


def _same(data: FederatedData, run: int) -> FederatedData:
    """The vectors are computed; runs differ in their initial weights."""
    del run
    return data


def build_program(
    config: Config, choices: Choices, case: Case, data: FederatedData
) -> Program:
    """Associative networks."""
    del data
    return averaging_program(
        config,
        choices,
        case,
        associative(config.num_bits, config.num_hidden, config.threshold),
        associative_rule(rate_of(config, choices), config.threshold),
        wiring(),
    )


def make_jobs(config: Config) -> list[Job]:
    """All runs of all numbers of global hidden cells."""
    return averaging_jobs(config, make_cases(config), build_program, ("init",))


def report(config: Config, folder: Path) -> None:
    """Accuracy against global cells, and a table for a person."""
    if varied(config):
        label = "global hidden cells"
        pictures.of_combinations(config, folder, "hidden", label, ("modified",))
    else:
        figures.accuracy_by_hidden(folder)
    figures.print_summary(folder)


EXPERIMENT = Experiment("associative", Config, make_jobs, report)
