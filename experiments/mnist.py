"""Partial averaging on MNIST with permuted labels (Bouchra Pilet et al. 2021, V.3).

    python -m experiments.mnist --flagfile=experiments/flags/mnist.quick.flags

Agents have disjoint blocks of the training digits; some of them have other labels for
the same digits. A study compares averaging schemes (`mnist_studies`) and varies one
thing, whose values `--values` lists.
"""

from collections.abc import Callable
from functools import cache, lru_cache, partial

import jax
import numpy as np
from absl import flags

from experiments import (
    averaging_study,
    common,
    figures,
    jobs,
    mnist_auto,
    mnist_studies,
)
from experiments.averaging_study import Case, run_study
from p2pjax.datasets import partition
from p2pjax.datasets.loaders import digits, mnist, npz
from p2pjax.datasets.stacking import Examples
from p2pjax.partial import schemes
from p2pjax.tasks import task
from p2pjax.types import FederatedData, Layout

flags.adopt_module_key_flags(common)  # so that --help lists them
flags.adopt_module_key_flags(averaging_study)

STUDIES = mnist_studies.STUDIES | mnist_auto.STUDIES
_STUDY = flags.DEFINE_enum(
    "study", "level", list(STUDIES), "What is compared; see --values too."
)
_DATASET = flags.DEFINE_enum(
    "dataset",
    None,
    ["digits", "mnist", "npz"],
    "The 1797 small digits of scikit-learn (the default), MNIST in --data_dir, or your "
    "own arrays x, y, user in the npz file --data_dir.",
)
_NUM_AGENTS = flags.DEFINE_integer("num_agents", 16, "Agents of a run.", lower_bound=1)
_TRAIN_SIZE = flags.DEFINE_integer(
    "train_size", 3500, "Training examples per agent.", lower_bound=1
)
_TEST_SIZE = flags.DEFINE_integer(
    "test_size", 1000, "Test examples, the same for all agents.", lower_bound=1
)
_NUM_PERMUTED = flags.DEFINE_integer(
    "num_permuted", 7, "Agents with permuted labels, where the study does not say."
)
_NETWORK = flags.DEFINE_string(
    "network",
    None,
    "Layout of every agent's network, as in 784=300=100=10; if not given, two hidden "
    "layers of 300 and 100 between what the data needs.",
)
_LEVELS = flags.DEFINE_list(
    "levels", ["0", "15", "30", "60", "80", "100"], "Averaging levels in percent."
)
_VALUES = flags.DEFINE_list(
    "values",
    None,
    "Values of what the study varies: mini-batch sizes (level, semi_local, "
    "semi_local_local), agents (peers), length of the label cycle (difference, "
    "layouts), permuted agents (permuted), training examples (train_size), squared "
    "drift in hundredths (drift), mini-batches of local training before the grouping "
    "(auto, auto_rotated); the paper's if not given.",
)
_NEUTRAL_INPUT = flags.DEFINE_bool(
    "neutral_input",
    False,
    "Input cells belong to no model, so that the weights between the input and a "
    "semi-local cell are averaged without a declared dependency.",
)


def load_examples() -> Examples:
    """The data set that the flags name."""
    return common.load_dataset(
        _DATASET.value,
        digits.load,
        "scikit-learn's small digits are used",
        {"mnist": mnist.load, "npz": npz.load},
    )


def network_layout(examples: Examples) -> Layout:
    """The network of every agent."""
    if _NETWORK.value is not None:
        return schemes.network_layout(_NETWORK.value)
    return (int(np.prod(examples.x.shape[1:])), 300, 100, examples.num_classes)


def make_blocks(
    examples: Examples,
    num_agents: int,
    train_size: int,
    turns: tuple[int, ...] | None,
    run: int,
) -> FederatedData:
    """Shuffled and cut into blocks anew in every run; no agent's labels permuted yet.

    The images of agent n are turned by `turns[n]` times 90 degrees, if given.
    """
    world = partition.iid_blocks(
        examples,
        np.random.default_rng([common.SEED.value, run]),
        num_agents=num_agents,
        train_size=train_size,
        test_size=_TEST_SIZE.value,
    )
    return world if turns is None else partition.rotate(world, np.asarray(turns))


def blocks_of_runs(examples: Examples) -> mnist_studies.Blocks:
    """Blocks by run, which serve all schemes of a value of the study.

    One process keeps as many as there are runs. Of several, each keeps its own agents'
    images of all, and not those that they are made of.
    """
    latest = lru_cache(common.NUM_RUNS.value)(partial(make_blocks, examples))

    @cache
    def blocks(
        num_agents: int, train_size: int, turns: tuple[int, ...] | None = None
    ) -> Callable[[int], FederatedData]:
        make_world = partial(latest, num_agents, train_size, turns)
        if jax.process_count() == 1:
            return make_world
        return jobs.kept(make_world, names=("x",))

    return blocks


def make_cases(examples: Examples) -> list[Case]:
    """The schemes that the study compares."""
    network = network_layout(examples)
    task.check_labels(examples.y, network[-1])
    study = STUDIES[_STUDY.value]
    values = study.values
    if _VALUES.value is not None:
        values = tuple(common.integers("values", _VALUES.value))
    return study.cases(
        mnist_studies.Setup(
            network=network,
            num_agents=_NUM_AGENTS.value,
            num_permuted=_NUM_PERMUTED.value,
            train_size=_TRAIN_SIZE.value,
            levels=tuple(common.integers("levels", _LEVELS.value)),
            neutral_input=_NEUTRAL_INPUT.value,
            blocks=blocks_of_runs(examples),
        ),
        values,
    )


def main() -> None:
    """Runs the study that the flags name."""
    cases = make_cases(load_examples())
    folder = run_study("mnist", cases)
    STUDIES[_STUDY.value].figure(folder)
    figures.print_summary(folder)


if __name__ == "__main__":
    common.run(main)
