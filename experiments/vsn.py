"""Partial averaging on the vehicle sensor network (Bouchra Pilet et al. 2021, V.4).

    python -m experiments.vsn --flagfile=experiments/flags/vsn.quick.flags

Every agent is a sensor that tells two kinds of vehicle apart by what it hears and
feels; the study varies how much of the network is global.
"""

import numpy as np
from absl import flags

from experiments import averaging_study, common, figures
from experiments.averaging_study import Case, level_cases, run_study
from experiments.jobs import kept
from p2pjax.datasets import partition
from p2pjax.datasets.loaders import npz, vsn
from p2pjax.datasets.stacking import Examples
from p2pjax.partial import schemes
from p2pjax.tasks import task
from p2pjax.types import FederatedData

flags.adopt_module_key_flags(common)  # so that --help lists them
flags.adopt_module_key_flags(averaging_study)

_DATASET = flags.DEFINE_enum(
    "dataset",
    None,
    ["synthetic", "vsn", "npz"],
    "Generated sensors (the default), the vehicle sensor network in --data_dir, or "
    "your own arrays x, y, user in the npz file --data_dir.",
)
_NUM_AGENTS = flags.DEFINE_integer(
    "num_agents", 16, "Sensors, one per agent.", lower_bound=1
)
_TRAIN_SIZE = flags.DEFINE_integer(
    "train_size", 50, "Training examples per agent.", lower_bound=1
)
_TEST_SIZE = flags.DEFINE_integer(
    "test_size", 200, "Test examples per agent.", lower_bound=1
)
_NETWORK = flags.DEFINE_string(
    "network", "100=50=20=1", "Layout of every agent's network."
)
_LEVELS = flags.DEFINE_list(
    "levels", ["0", "15", "30", "60", "80", "100"], "Averaging levels in percent."
)
_STANDARDIZE = flags.DEFINE_bool(
    "standardize",
    False,
    "Centre and scale every feature by the agent's own training examples.",
)


def load_examples() -> Examples:
    """The data set that the flags name."""

    def drawn() -> Examples:
        size = _TRAIN_SIZE.value + _TEST_SIZE.value
        return vsn.synthetic(_NUM_AGENTS.value, size, seed=common.SEED.value)

    return common.load_dataset(
        _DATASET.value,
        drawn,
        "generated sensors are used",
        {"vsn": vsn.load, "npz": npz.load},
    )


def make_cases(examples: Examples) -> list[Case]:
    """The levels that are compared."""
    network = schemes.network_layout(_NETWORK.value)
    task.check_labels(examples.y, network[-1])

    @kept
    def make_world(run: int) -> FederatedData:
        world = partition.by_user(
            examples,
            np.random.default_rng([common.SEED.value, run]),
            num_agents=_NUM_AGENTS.value,
            train_size=_TRAIN_SIZE.value,
            test_size=_TEST_SIZE.value,
        )
        return vsn.standardize(world) if _STANDARDIZE.value else world

    levels = common.integers("levels", _LEVELS.value)
    return level_cases(network, levels, _NUM_AGENTS.value, make_world)


def main() -> None:
    """Runs the study."""
    folder = run_study("vsn", make_cases(load_examples()))
    figures.accuracy_by_level(folder)
    figures.print_summary(folder)


if __name__ == "__main__":
    common.run(main)
