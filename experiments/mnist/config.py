"""The flags of `experiments.mnist`, and what each study varies."""

import dataclasses
from typing import NamedTuple

from experiments.averaging.config import AveragingConfig
from experiments.averaging.schemes import scheme_file_field
from experiments.engine.datasets import dataset_field
from experiments.engine.fields import DATA, choice, integer, integers, switch
from experiments.engine.layouts import network_field
from p2pjax.types import InputError


class Varied(NamedTuple):
    """What a study varies."""

    setting: str  # its name in rows
    label: str  # for a person
    values: tuple[int, ...]  # in the paper
    at_least: int = 1


_BATCHES = Varied("batch_size", "examples of a mini-batch", (25, 50, 100, 150))
_CYCLES = Varied("cycle", "classes in the cycle", (0, 2, 4, 6, 8, 10), at_least=0)
_WARM_UP = Varied("warm_up", "mini-batches before the grouping", (10, 20))
STUDIES: dict[str, Varied | None] = {
    "level": _BATCHES._replace(values=(50, 100, 200, 500, 1000, 3000)),
    "convergence": None,
    "peers": Varied("num_agents", "agents", (4, 8, 12, 16)),
    "semi_local": _BATCHES,
    "semi_local_local": _BATCHES._replace(values=(100, 200, 400, 800)),
    "difference": _CYCLES,
    "permuted": Varied("num_permuted", "permuted agents", (0, 2, 4, 6, 8), at_least=0),
    "train_size": Varied(
        "train_size", "training examples per agent", (250, 500, 1000, 2000, 3500)
    ),
    "layouts": _CYCLES,
    "drift": Varied(
        "drift", "squared drift before averaging", (0, 1, 10, 100, 1000), at_least=0
    ),
    "auto": _WARM_UP,
    "auto_rotated": _WARM_UP,
    "changing": Varied("every", "mini-batches between two looks", (50, 200)),
}


WITH_FILES = (
    "level",
    "convergence",
    "semi_local",
    "semi_local_local",
    "difference",
    "permuted",
    "train_size",
)


@dataclasses.dataclass(frozen=True)
class Config(AveragingConfig):
    """What is compared, and on which digits."""

    study: str = choice("level", list(STUDIES), "What is compared; see --values too.")
    dataset: str | None = dataset_field(
        ("digits", "mnist"),
        "The 1797 small digits of scikit-learn (digits, the default), or MNIST in "
        "--data_dir (mnist).",
    )
    num_agents: int = integer(16, "Agents of a run.", at_least=1, topic=DATA)
    train_size: int = integer(
        3500, "Training examples per agent.", at_least=1, topic=DATA
    )
    test_size: int = integer(
        1000, "Test examples, the same for all agents.", at_least=1, topic=DATA
    )
    num_permuted: int = integer(
        7,
        "Agents with permuted labels, where the study does not say.",
        at_least=0,
        topic=DATA,
    )
    network: str | None = network_field(
        None,
        "Layout of every agent's network, as in 784=300=100=10; if not given, two "
        "hidden layers of 300 and 100 between what the data needs.",
    )
    levels: tuple[int, ...] = integers(
        (0, 15, 30, 60, 80, 100), "Averaging levels in percent."
    )
    values: tuple[int, ...] | None = integers(
        None,
        "Values of what the study varies: mini-batch sizes (level, semi_local, "
        "semi_local_local), agents (peers), length of the label cycle (difference, "
        "layouts), permuted agents (permuted), training examples (train_size), squared "
        "drift in hundredths (drift), mini-batches of local training before the "
        "grouping (auto, auto_rotated), mini-batches between two looks at what agents "
        "have learned (changing); the paper's, or some of ours, if not given.",
    )
    periods: tuple[int, ...] | None = integers(
        None,
        "Mini-batches between two averagings that are compared with drifts, in "
        "--study=drift; none if not given.",
        at_least=1,
    )
    scheme_file: str | None = scheme_file_field(WITH_FILES)
    neutral_input: bool = switch(
        False,
        "Input cells belong to no model, so that the weights between the input and a "
        "semi-local cell are averaged without a declared dependency.",
    )


def check_periods(config: Config) -> None:
    """Refuses periods where no drift is compared, and a drift beside them."""
    if config.periods is not None and config.study != "drift":
        raise InputError(
            f"Need --study=drift for --periods, got --study={config.study}: "
            "--average_every is one period for all."
        )
    if config.study == "drift" and config.drift is not None:
        raise InputError(
            "Need no --drift for --study=drift, which compares those in --values, got "
            f"{config.drift:g}."
        )


def values_of(config: Config) -> tuple[int, ...]:
    """Of what the study varies, as given or as in the paper."""
    varied = STUDIES[config.study]
    if varied is None:
        if config.values is not None:
            raise InputError(
                f"Need no --values for --study={config.study}, which varies nothing, "
                f"got {','.join(map(str, config.values))}."
            )
        return ()
    values = varied.values if config.values is None else config.values
    if min(values) < varied.at_least:
        raise InputError(
            f"Need --values of {varied.at_least} or more for --study={config.study} "
            f"({varied.label}), got {min(values)}."
        )
    return values
