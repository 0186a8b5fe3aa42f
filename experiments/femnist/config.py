"""The flags of `experiments.femnist`."""

import dataclasses

from experiments.averaging.config import AveragingConfig
from experiments.averaging.schemes import scheme_file_field
from experiments.engine.datasets import dataset_field
from experiments.engine.fields import DATA, choice, integer, integers, names
from experiments.engine.layouts import network_field
from p2pjax.datasets.loaders import femnist

WITH_FILES = ("level", "scheme")


@dataclasses.dataclass(frozen=True)
class Config(AveragingConfig):
    """What is compared, and on which writers."""

    study: str = choice(
        "level", ("level", "scheme", "peers"), "What is compared; see above."
    )
    dataset: str | None = dataset_field(
        ("glyphs", "femnist"),
        "Embedded procedural handwriting (glyphs, the default), or FEMNIST in "
        "--data_dir (femnist).",
    )
    variant: str = choice(
        "a",
        list(femnist.VARIANTS),
        "Classes: a all 62, m 47 with similar cases merged, d digits (ignored for "
        "other data).",
        topic=DATA,
    )
    num_agents: int = integer(16, "Writers, one per agent.", at_least=1, topic=DATA)
    train_size: int = integer(
        360, "Training examples per agent.", at_least=1, topic=DATA
    )
    test_size: int = integer(60, "Test examples per agent.", at_least=1, topic=DATA)
    network: str | None = network_field(
        None,
        "Layout of every agent's network, as in 784=300=100=62; if not given, two "
        "hidden layers of 300 and 100 between what the data needs.",
    )
    levels: tuple[int, ...] = integers(
        (0, 15, 30, 60, 80, 100), "Averaging levels in percent."
    )
    schemes: tuple[str, ...] | None = names(
        None,
        "Global models to compare, as in 784-250-80-62; if not given, level 80, "
        "nothing, everything and every run of whole layers.",
    )
    scheme_file: str | None = scheme_file_field(WITH_FILES)
    group_sizes: tuple[int, ...] = integers(
        (2, 4, 8, 16, 32, 64), "Agents that average together.", at_least=1
    )
