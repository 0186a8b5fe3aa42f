"""Partial averaging on FEMNIST: one writer per agent (Pilet et al. 2021, V.2).

    python -m experiments.femnist --flagfile=experiments/flags/femnist.quick.flags

Studies: `level` (how much of the network is global), `scheme` (a part of every hidden
layer against whole layers) and `peers` (how many agents average together).
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from absl import flags

from experiments import averaging_study, common, figures
from experiments.averaging_schemes import level_layout, one_model
from experiments.averaging_study import Case, run_study
from experiments.jobs import kept
from p2pjax.datasets import partition
from p2pjax.datasets.loaders import femnist, glyphs, npz
from p2pjax.datasets.stacking import Examples
from p2pjax.partial import schemes
from p2pjax.tasks import task
from p2pjax.types import FederatedData, Layout

Worlds = Callable[[int], FederatedData]  # data of a run

flags.adopt_module_key_flags(common)  # so that --help lists them
flags.adopt_module_key_flags(averaging_study)

_STUDY = flags.DEFINE_enum(
    "study", "level", ["level", "scheme", "peers"], "What is compared; see above."
)
_DATASET = flags.DEFINE_enum(
    "dataset",
    None,
    ["glyphs", "femnist", "npz"],
    "Embedded procedural handwriting (the default), FEMNIST in --data_dir, or your own "
    "arrays x, y, user in the npz file --data_dir.",
)
_VARIANT = flags.DEFINE_enum(
    "variant",
    "a",
    list(femnist.VARIANTS),
    "Classes: a all 62, m 47 with similar cases merged, d digits (ignored for npz).",
)
_NUM_AGENTS = flags.DEFINE_integer(
    "num_agents", 16, "Writers, one per agent.", lower_bound=1
)
_TRAIN_SIZE = flags.DEFINE_integer(
    "train_size", 360, "Training examples per agent.", lower_bound=1
)
_TEST_SIZE = flags.DEFINE_integer(
    "test_size", 60, "Test examples per agent.", lower_bound=1
)
_NETWORK = flags.DEFINE_string(
    "network",
    None,
    "Layout of every agent's network, as in 784=300=100=62; if not given, two hidden "
    "layers of 300 and 100 between what the data needs.",
)
_LEVELS = flags.DEFINE_list(
    "levels", ["0", "15", "30", "60", "80", "100"], "Averaging levels in percent."
)
_SCHEMES = flags.DEFINE_list(
    "schemes",
    None,
    "Global models to compare, as in 784-250-80-62; if not given, level 80, nothing, "
    "everything and every run of whole layers.",
)
_GROUP_SIZES = flags.DEFINE_list(
    "group_sizes", ["2", "4", "8", "16", "32", "64"], "Agents that average together."
)


def load_examples() -> Examples:
    """The data set that the flags name."""

    def drawn() -> Examples:
        examples = glyphs.glyphs(
            _NUM_AGENTS.value,
            _TRAIN_SIZE.value + _TEST_SIZE.value,
            seed=common.SEED.value,
            num_classes=10 if _VARIANT.value == "d" else 62,
        )
        return femnist.variant(examples, _VARIANT.value)

    def read(data_dir: str) -> Examples:
        return femnist.variant(femnist.load(data_dir), _VARIANT.value)

    return common.load_dataset(
        _DATASET.value,
        drawn,
        "procedural handwriting (glyphs) is used",
        {"femnist": read, "npz": npz.load},
    )


def make_world(examples: Examples, run: int) -> FederatedData:
    """Shuffled, cut to equal sizes and split anew in every run."""
    return partition.by_user(
        examples,
        np.random.default_rng([common.SEED.value, run]),
        num_agents=_NUM_AGENTS.value,
        train_size=_TRAIN_SIZE.value,
        test_size=_TEST_SIZE.value,
    )


def network_layout(examples: Examples) -> Layout:
    """The network of every agent."""
    if _NETWORK.value is not None:
        return schemes.network_layout(_NETWORK.value)
    return (int(np.prod(examples.x.shape[1:])), 300, 100, examples.num_classes)


def level_cases(network: Layout, worlds: Worlds) -> list[Case]:
    """P-F1: one global model of growing size."""
    levels = common.integers("levels", _LEVELS.value)
    return averaging_study.level_cases(network, levels, _NUM_AGENTS.value, worlds)


def scheme_cases(network: Layout, worlds: Worlds) -> list[Case]:
    """P-F2: a part of every hidden layer against whole layers."""
    num_agents = _NUM_AGENTS.value
    if _SCHEMES.value is not None:
        layouts = [schemes.model_layout(text) for text in _SCHEMES.value]
    else:
        layouts = [level_layout(network, 80), (0,) * len(network), network]
        for first in range(len(network)):
            for last in range(first + 2, len(network) + 1):
                kept = range(first, last)
                layouts.append(
                    tuple(n if part in kept else 0 for part, n in enumerate(network))
                )
    unique = dict.fromkeys(layouts)
    return [
        Case(
            "-".join(map(str, cells)),
            {},
            one_model(network, cells, num_agents, num_agents),
            worlds,
        )
        for cells in unique
    ]


def peers_cases(network: Layout, worlds: Worlds) -> list[Case]:
    """P-F3: agents average inside groups; at level 0 groups make no difference."""
    num_agents = _NUM_AGENTS.value
    cases = []
    for level in common.integers("levels", _LEVELS.value):
        cells = level_layout(network, level)
        sizes = common.integers("group_sizes", _GROUP_SIZES.value) if level else [1]
        for size in sizes:
            scheme = one_model(network, cells, num_agents, size)
            setting = {"level": level, "group_size": size}
            cases.append(Case(f"level_{level}", setting, scheme, worlds))
    return cases


STUDIES = {"level": level_cases, "scheme": scheme_cases, "peers": peers_cases}
FIGURES: dict[str, Callable[[Path], None]] = {
    "level": figures.accuracy_by_level,
    "scheme": figures.accuracy_by_round,
    "peers": partial(
        figures.accuracy_by_setting,
        setting="group_size",
        label="agents that average together",
    ),
}


def make_cases(examples: Examples) -> list[Case]:
    """The schemes that the study compares."""
    network = network_layout(examples)
    task.check_labels(examples.y, network[-1])
    worlds = kept(partial(make_world, examples))
    return STUDIES[_STUDY.value](network, worlds)


def main() -> None:
    """Runs the study that the flags name."""
    folder = run_study("femnist", make_cases(load_examples()))
    FIGURES[_STUDY.value](folder)
    figures.print_summary(folder)


if __name__ == "__main__":
    common.run(main)
